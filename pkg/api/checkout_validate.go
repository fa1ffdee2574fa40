package api

import (
	"context"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// CartItem is a part of a cart.
type CartItem struct {
	Amount int64    `json:"amount" minimum:"0" doc:"minor units"`
	Scopes []string `json:"scopes,omitempty" maxItems:"256" nullable:"false" doc:"its categories, its shop"`
}

// Validity says whether a user could use a coupon now, and what it would take off.
type Validity struct {
	Now       time.Time   `json:"now" doc:"the database's clock"`
	Usable    bool        `json:"usable" doc:"an order of the user's could lock and redeem it now"`
	Code      coupon.Code `json:"code" doc:"why not; empty if usable"`
	State     string      `json:"state" enum:"unused,locked,used,expired,voided"`
	Discount  int64       `json:"discount" doc:"minor units off the cart; 0 without one"`
	AppliesTo int64       `json:"applies_to" doc:"minor units of the cart that the coupon applies to; 0 without one"`
	Coupon    Coupon      `json:"coupon"`
}

type validateIn struct {
	CouponID string `path:"coupon_id" doc:"the coupon's id"`
	Body     struct {
		UserID   string     `json:"user_id" doc:"who wants to use it; another user's coupon is not_found"`
		OrderID  string     `json:"order_id,omitempty" doc:"the order it is for, if there is one: a lock of its own is no obstacle"`
		Amount   *int64     `json:"amount,omitempty" minimum:"0" doc:"of the cart, minor units; without it only the coupon is looked at"`
		Currency string     `json:"currency,omitempty" doc:"of the amount, ISO 4217"`
		Scopes   []string   `json:"scopes,omitempty" maxItems:"256" nullable:"false" doc:"what is in the cart: categories, shops"`
		Items    []CartItem `json:"items,omitempty" maxItems:"256" nullable:"false" doc:"how much of the amount each part is, instead of scopes: then a coupon with scopes counts those that it applies to alone"`
	}
}

type validateOut struct{ Body Validity }

func (a *API) addValidate() {
	register(a, route{
		id: "validateCoupon", method: http.MethodPost, path: "/v1/coupons/{coupon_id}/validate", tag: tagCheckout,
		summary: "Ask whether a coupon could be used now",
		text:    "Changes nothing and reserves nothing. The answer is a success also if the coupon is not usable: the code says why.",
		scopes:  []Scope{ScopeRead, ScopeOrder}, codes: []coupon.Code{coupon.CodeNotFound, CodeTooLarge},
	}, a.validate)
}

func (a *API) validate(ctx context.Context, in *validateIn) (*validateOut, error) {
	id, err := parseID("path.coupon_id", in.CouponID)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	if err := texts(text("body.user_id", b.UserID, true), text("body.order_id", b.OrderID, false)); err != nil {
		return nil, err
	}
	cart := coupon.Cart{Currency: b.Currency, Scopes: b.Scopes, Items: itemsOf(b.Items), OrderID: b.OrderID}
	switch {
	case b.Amount != nil:
		cart.Amount = *b.Amount
		if err := cart.Validate(); err != nil {
			return nil, fromJoined(err)
		}
	case b.Currency != "" || len(b.Scopes) > 0 || len(b.Items) > 0:
		return nil, badRequest("body.amount", "", "must be given with currency, scopes or items")
	}
	c, now, err := a.deps.Coupons.Coupon(ctx, id)
	if err != nil {
		return nil, ofRead(err)
	}
	if c.UserID != b.UserID {
		return nil, coupon.ErrNotFound
	}
	v := Validity{Now: now.UTC(), Coupon: a.couponOf(now, &c)}
	v.State = v.Coupon.State
	if b.Amount == nil {
		v.Code = coupon.Usable(c.Row, b.OrderID, now)
	} else {
		q := cart.Quote(&c, now)
		v.Code, v.Discount, v.AppliesTo = q.Reason, q.Off, q.Base
	}
	v.Usable = v.Code == ""
	return &validateOut{Body: v}, nil
}

func itemsOf(in []CartItem) []coupon.Item {
	out := make([]coupon.Item, len(in))
	for i, item := range in {
		out[i] = coupon.Item{Amount: item.Amount, Scopes: item.Scopes}
	}
	return out
}
