package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Checkout does what orders and operators ask of coupons.
type Checkout interface {
	Act(ctx context.Context, o coupon.Order) (now time.Time, out []coupon.Acted, err error)
}

// Acted is the answer of a verb: how each coupon is then.
type Acted struct {
	Now     time.Time     `json:"now" doc:"the database's clock, which decided"`
	Coupons []ActedCoupon `json:"coupons" nullable:"false" doc:"in the order of the ids"`
}

// ActedCoupon is a coupon after a verb.
type ActedCoupon struct {
	Coupon
	Repeated bool   `json:"repeated" doc:"it had been done before; this time nothing moved"`
	Note     string `json:"note,omitempty" doc:"for people: what may surprise, such as a refund past the coupon's end"`
}

type lockIn struct {
	OrderID string `path:"order_id" doc:"the shop's id of the order, percent-encoded"`
	Body    struct {
		UserID    string   `json:"user_id" doc:"whose coupons they must be"`
		CouponIDs []string `json:"coupon_ids" minItems:"1" maxItems:"10" nullable:"false"`
		LockFor   string   `json:"lock_for,omitempty" doc:"from now on, such as 30m (default), 90s or 2h; at most 168h; a fraction of a second is rounded up"`
	}
}

type renewIn struct {
	OrderID string `path:"order_id" doc:"the shop's id of the order, percent-encoded"`
	Body    struct {
		UserID    string   `json:"user_id,omitempty" doc:"whose coupons they must be; not looked at if absent"`
		CouponIDs []string `json:"coupon_ids" minItems:"1" maxItems:"10" nullable:"false"`
		LockFor   string   `json:"lock_for,omitempty" doc:"from now on, such as 30m (default); at most 168h. A renewal never takes time away"`
	}
}

type redeemIn struct {
	OrderID string `path:"order_id" doc:"the shop's id of the order, percent-encoded"`
	Body    struct {
		UserID    string   `json:"user_id" doc:"whose coupons they must be"`
		CouponIDs []string `json:"coupon_ids" minItems:"1" maxItems:"10" nullable:"false"`
	}
}

type releaseIn struct {
	OrderID string `path:"order_id" doc:"the shop's id of the order, percent-encoded"`
	Body    struct {
		UserID    string   `json:"user_id,omitempty" doc:"whose coupons they must be; not looked at if absent"`
		CouponIDs []string `json:"coupon_ids" minItems:"1" maxItems:"10" nullable:"false"`
	}
}

type refundIn struct {
	OrderID string `path:"order_id" doc:"the shop's id of the order, percent-encoded"`
	Body    struct {
		UserID    string   `json:"user_id,omitempty" doc:"whose coupons they must be; not looked at if absent"`
		CouponIDs []string `json:"coupon_ids" minItems:"1" maxItems:"10" nullable:"false"`
		Partial   bool     `json:"partial,omitempty" doc:"of a part of the order: moves no coupon"`
	}
}

type actedOut struct{ Body Acted }

func (a *API) addCheckout() {
	order := func(verb coupon.Verb, summary, text string, codes ...coupon.Code) route {
		return route{
			id: string(verb) + "Coupons", method: http.MethodPost, path: "/v1/orders/{order_id}/" + string(verb), tag: tagCheckout,
			summary: summary, text: text + "\n\nAll of the coupons or none: if one refuses, nothing moves and the problem says what became of each. " +
				"A coupon of another user reads not_found. The same request again gives the same answer, with repeated set.",
			scopes: []Scope{ScopeOrder}, mutates: true, codes: append(codes, coupon.CodeNotFound),
		}
	}
	gone := []coupon.Code{coupon.CodeExpired, coupon.CodeAlreadyUsed, coupon.CodeVoided, coupon.CodeObserved}
	register(a, order(coupon.VerbLock, "Lock coupons for an order",
		"From now on for lock_for, and no further than the template's late-pay window beyond the coupon's end. A lock that has run out is free for whoever comes next.",
		append(gone, coupon.CodeLockedByOther, coupon.CodeNotYetValid, coupon.CodeOrderClosed, coupon.CodeOrderRefunded)...),
		func(ctx context.Context, in *lockIn) (*actedOut, error) {
			return a.order(ctx, in.OrderID, in.Body.CouponIDs, in.Body.LockFor, coupon.Order{Verb: coupon.VerbLock, UserID: in.Body.UserID})
		})
	register(a, order(coupon.VerbRenew, "Keep an order's locks for longer", "Only those that are live, and this order's.",
		append(gone, coupon.CodeLockedByOther, coupon.CodeNotLocked)...),
		func(ctx context.Context, in *renewIn) (*actedOut, error) {
			return a.order(ctx, in.OrderID, in.Body.CouponIDs, in.Body.LockFor, coupon.Order{Verb: coupon.VerbRenew, UserID: in.Body.UserID})
		})
	register(a, order(coupon.VerbRedeem, "Use coupons up",
		"When the order is paid; also without a lock. Under its live lock an order may pay past a coupon's end, unless the template says strict.",
		append(gone, coupon.CodeLockedByOther, coupon.CodeNotYetValid, coupon.CodeOrderRefunded)...),
		func(ctx context.Context, in *redeemIn) (*actedOut, error) {
			return a.order(ctx, in.OrderID, in.Body.CouponIDs, "", coupon.Order{Verb: coupon.VerbRedeem, UserID: in.Body.UserID})
		})
	register(a, order(coupon.VerbRelease, "Give an order's locked coupons back", "A coupon whose end has passed meanwhile is expired, as its state says.",
		append(gone, coupon.CodeLockedByOther, coupon.CodeNotLocked)...),
		func(ctx context.Context, in *releaseIn) (*actedOut, error) {
			return a.order(ctx, in.OrderID, in.Body.CouponIDs, "", coupon.Order{Verb: coupon.VerbRelease, UserID: in.Body.UserID})
		})
	register(a, order(coupon.VerbRefund, "Give a refunded order's coupons back",
		"In full: a coupon whose end has passed is expired, as its state and its note say. A partial refund moves nothing.",
		coupon.CodeNotUsed, coupon.CodeUsedByOther, coupon.CodeObserved),
		func(ctx context.Context, in *refundIn) (*actedOut, error) {
			o := coupon.Order{Verb: coupon.VerbRefund, UserID: in.Body.UserID, Partial: in.Body.Partial}
			return a.order(ctx, in.OrderID, in.Body.CouponIDs, "", o)
		})
	a.addValidate()
}

// order reads what all verbs of orders have.
func (a *API) order(ctx context.Context, orderID string, couponIDs []string, lockFor string, o coupon.Order) (*actedOut, error) {
	required := o.Verb == coupon.VerbLock || o.Verb == coupon.VerbRedeem
	if err := texts(text("path.order_id", orderID, true), text("body.user_id", o.UserID, required)); err != nil {
		return nil, err
	}
	o.OrderID = orderID
	if o.Verb == coupon.VerbLock || o.Verb == coupon.VerbRenew {
		var err error
		if o.LockFor, err = parseLockFor(lockFor); err != nil {
			return nil, err
		}
	}
	o.CouponIDs = make([]uint64, len(couponIDs))
	for i, id := range couponIDs {
		var err error
		if o.CouponIDs[i], err = parseID(fmt.Sprintf("body.coupon_ids[%d]", i), id); err != nil {
			return nil, err
		}
	}
	acted, err := a.act(ctx, o)
	if err != nil {
		return nil, err
	}
	return &actedOut{Body: *acted}, nil
}

func parseLockFor(text string) (time.Duration, error) {
	if text == "" {
		return coupon.DefaultLock, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > coupon.MaxLock {
		return 0, badRequest("body.lock_for", text, "must be a duration above 0 and at most "+coupon.MaxLock.String()+", such as 30m, 90s or 1h30m")
	}
	return max(d, time.Second), nil // a lock's end is a whole second anyway
}

// act does it; a refusal becomes a problem.
func (a *API) act(ctx context.Context, o coupon.Order) (*Acted, error) {
	who := callerFrom(ctx)
	o.Actor, o.Trace = who.actor, who.trace
	if err := o.Validate(); err != nil {
		return nil, fromJoined(err)
	}
	now, out, err := a.deps.Checkout.Act(ctx, o)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	for i := range out {
		if out[i].Refused != "" {
			return nil, a.refused(now, out, &out[i])
		}
	}
	acted := &Acted{Now: now.UTC(), Coupons: make([]ActedCoupon, len(out))}
	for i := range out {
		acted.Coupons[i] = ActedCoupon{Coupon: a.couponOf(now, &out[i].Coupon), Repeated: out[i].Repeated, Note: note(&o, &out[i].Coupon)}
	}
	return acted, nil
}

// note says what may surprise whoever gave a coupon back.
func note(o *coupon.Order, c *coupon.Coupon) string {
	end := c.ExpiresAt.UTC().Format(time.RFC3339)
	switch {
	case o.Verb == coupon.VerbRefund && o.Partial:
		return "a partial refund moves no coupon"
	case o.Verb == coupon.VerbRefund && c.Status == coupon.Expired:
		return "its end had passed: it is expired, not usable again; it ended at " + end
	case o.Verb == coupon.VerbRelease && c.Status == coupon.Expired:
		return "its end has passed: it is expired; it ended at " + end
	default:
		return ""
	}
}

// refused is the answer to a request of which nothing was done. Whoever was refused for an end that has passed may
// have met it before any worker: the aside is told.
func (a *API) refused(now time.Time, out []coupon.Acted, first *coupon.Acted) *Problem {
	detail := "coupon " + formatID(first.Coupon.ID) + ": " + string(first.Refused)
	if first.Detail != "" {
		detail += ": " + first.Detail
	}
	p := problem(statusOf(first.Refused), first.Refused, detail)
	p.CouponID = formatID(first.Coupon.ID)
	p.Coupons = make([]RefusedCoupon, len(out))
	for i := range out {
		c := &out[i].Coupon
		r := RefusedCoupon{CouponID: formatID(c.ID), Code: out[i].Refused, Detail: out[i].Detail}
		if c.Status != 0 { // else there is none
			r.State = a.deps.Aside.Seen(now, c).String()
		}
		if &out[i] == first {
			p.State = r.State
		}
		p.Coupons[i] = r
	}
	return p
}
