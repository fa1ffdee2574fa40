package coupon

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Order says what one order, or an operator, asks of up to MaxOrderCoupons coupons at once: all or none of them.
type Order struct {
	Verb      Verb
	OrderID   string // of the verbs of orders
	UserID    string // whose coupons they must be; empty: not looked at
	CouponIDs []uint64
	LockFor   time.Duration // lock, renew
	EndsAt    time.Time     // extend, reinstate
	BreakLock bool          // void
	Partial   bool          // refund: of a part, which moves nothing
	Each      bool          // every coupon by itself instead of all or none
	Tombstone bool          // release, refund: remember that the order is closed or refunded, whatever the coupons' states
	Actor     string
	Reason    string
	Trace     string // W3C traceparent, may be empty
}

// Acted is what became of one coupon of an Order.
type Acted struct {
	Coupon   Coupon // as it is after the verb; only its ID is set if there is none
	Refused  Code   // empty if it was done, or was to be done and another coupon of the order prevented it
	Detail   string // for people: which field, which value
	Repeated bool   // it had been done before
}

// String names the verb and the number of coupons, never whose.
func (o Order) String() string { return fmt.Sprintf("%s %d coupons", o.Verb, len(o.CouponIDs)) }

// Validate reports every fault of what was asked, each beginning with the field's name.
func (o Order) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	text := func(field, value string, least, most int) {
		if len(value) < least || len(value) > most || !utf8.ValidString(value) {
			bad("%s: must have %d to %d bytes of UTF-8, got %d", field, least, most, len(value))
		}
	}
	least := 0
	if o.Verb.OfOrder() {
		least = 1
	}
	text("order_id", o.OrderID, least, MaxText)
	text("user_id", o.UserID, 0, MaxText)
	text("actor", o.Actor, 0, MaxText)
	text("reason", o.Reason, 0, MaxReason)
	if n := len(o.CouponIDs); n < 1 || n > MaxOrderCoupons {
		bad("coupon_ids: must have 1 to %d members, got %d", MaxOrderCoupons, n)
	}
	seen := make(map[uint64]bool, len(o.CouponIDs))
	for _, id := range o.CouponIDs {
		if id == 0 || seen[id] {
			bad("coupon_ids: must be distinct and above 0, got %d", id)
		}
		seen[id] = true
	}
	switch o.Verb {
	case VerbLock, VerbRenew:
		if o.LockFor < time.Second || o.LockFor > MaxLock {
			bad("lock_for: must be between 1s and %s, got %s", MaxLock, o.LockFor)
		}
	case VerbExtend, VerbReinstate:
		if o.EndsAt.Nanosecond() != 0 || o.EndsAt.Unix() <= 0 || o.EndsAt.After(Never) {
			bad("expires_at: must be a whole second, got %s", o.EndsAt.Format(time.RFC3339Nano))
		}
	case VerbRedeem, VerbRelease, VerbRefund, VerbVoid:
	default:
		bad("verb: must be one of %v, got %q", Verbs(), o.Verb)
	}
	if !o.Verb.OfOrder() && (o.Actor == "" || o.Reason == "") {
		bad("actor, reason: must be given, an operator's act has both")
	}
	return errors.Join(errs...)
}
