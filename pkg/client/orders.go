package client

import (
	"context"
	"net/http"
	"time"
)

// Order is what an order asks of its coupons: all or none of them. What a verb does not know of is not sent, so that one value
// serves a whole checkout.
type Order struct {
	UserID    string // whose coupons they must be; required to lock and to redeem
	CouponIDs []string
	LockFor   time.Duration // Lock, Renew: from now; 0: the server's default (30 min)
	Partial   bool          // Refund: of a part of the order, which moves no coupon
}

// Acted is the answer of a verb.
type Acted struct {
	Now     time.Time     `json:"now"`     // the database's clock, which decided
	Coupons []ActedCoupon `json:"coupons"` // in the order of the ids
}

// ActedCoupon is a coupon after the verb.
type ActedCoupon struct {
	Coupon
	Repeated bool   `json:"repeated"` // it had been done before; this time nothing moved
	Note     string `json:"note"`     // for people: what may surprise, such as a refund past the end
}

const (
	lock    = "lock"
	renew   = "renew"
	redeem  = "redeem"
	release = "release"
	refund  = "refund"
)

// Lock reserves coupons for an order, from now for LockFor. Another order's lock is refused with CodeLockedByOther; the
// same order's is answered again as it stands.
func (c *Client) Lock(ctx context.Context, orderID string, o Order) (Acted, error) {
	return c.order(ctx, orderID, lock, o)
}

// Renew keeps an order's live lock until LockFor from now, never shorter than it stands.
func (c *Client) Renew(ctx context.Context, orderID string, o Order) (Acted, error) {
	return c.order(ctx, orderID, renew, o)
}

// Redeem uses coupons up for a paid order: those that it has locked, or that nobody has.
func (c *Client) Redeem(ctx context.Context, orderID string, o Order) (Acted, error) {
	return c.order(ctx, orderID, redeem, o)
}

// Release gives an order's locked coupons back. One whose end has passed meanwhile is expired, as its state says.
func (c *Client) Release(ctx context.Context, orderID string, o Order) (Acted, error) {
	return c.order(ctx, orderID, release, o)
}

// Refund gives a refunded order's coupons back. One whose end has passed is expired, as its state says.
func (c *Client) Refund(ctx context.Context, orderID string, o Order) (Acted, error) {
	return c.order(ctx, orderID, refund, o)
}

func (c *Client) order(ctx context.Context, orderID, verb string, o Order) (out Acted, err error) {
	body := struct {
		UserID    string   `json:"user_id,omitempty"`
		CouponIDs []string `json:"coupon_ids"`
		LockFor   string   `json:"lock_for,omitempty"`
		Partial   bool     `json:"partial,omitempty"`
	}{UserID: o.UserID, CouponIDs: o.CouponIDs}
	switch {
	case verb == refund:
		body.Partial = o.Partial
	case (verb == lock || verb == renew) && o.LockFor != 0:
		body.LockFor = o.LockFor.String()
	}
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"orders", orderID, verb}, body: body, into: &out, mutates: true, known: true})
	return out, err
}
