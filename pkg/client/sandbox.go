package client

import (
	"context"
	"net/http"
	"time"
)

// Ahead names what a sandbox brings forward.
type Ahead string

// What can be brought forward.
const (
	AheadEnd      Ahead = "end"      // the coupon's end
	AheadLock     Ahead = "lock"     // the end of the lock that an order holds
	AheadReminder Ahead = "reminder" // the next reminder, and the coupon's end with it
)

// Forwarded is a coupon of which something comes soon.
type Forwarded struct {
	Now time.Time `json:"now"` // the database's clock, which decided
	At  time.Time `json:"at"`  // when it comes
	ActedCoupon
}

// Forward brings a coupon's end, its lock's end or its next reminder to the instant in from now (whole seconds). Only an
// installation in sandbox mode does it; others answer CodeForbidden.
func (c *Client) Forward(ctx context.Context, id string, what Ahead, in time.Duration) (out Forwarded, err error) {
	body := struct {
		What      Ahead `json:"what"`
		InSeconds int64 `json:"in_seconds"`
	}{what, int64((in + time.Second - 1) / time.Second)}
	path := []string{"sandbox", "coupons", id, "forward"}
	err = c.do(ctx, call{method: http.MethodPost, path: path, body: body, into: &out, mutates: true})
	return out, err
}
