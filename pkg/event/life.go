package event

import (
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The events of the steps after the grant. Each says from which state, by which cause, and the end that holds now.

func (c *Codec) locked(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeLocked, "locked")
	w.field("from", t.From.String()) // locked: its own order renewed it
	w.field("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("lock_until", t.LockUntil, seconds)
	w.instant("locked_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) released(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeReleased, "released")
	w.field("from", t.From.String())
	w.optional("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("released_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) used(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeUsed, "used")
	w.field("from", t.From.String())
	w.field("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("used_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) refunded(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeRefunded, "refunded")
	w.field("from", t.From.String())
	w.field("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("refunded_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) extended(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeExtended, "extended")
	w.field("from", t.From.String()) // and it stays so
	w.end("previous_expires_at", t.Previous)
	w.expiresAt(t.ExpiresAt)
	w.instant("extended_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) voided(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeVoided, "voided")
	w.field("from", t.From.String())
	w.optional("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("voided_at", t.At, milliseconds)
	return id, w.acted(t)
}

func (c *Codec) expired(t *coupon.Transition) (string, []byte) {
	w, id := c.ofCoupon(t, TypeExpired, "expired")
	w.field("from", t.From.String())
	w.optional("order_id", t.OrderID)
	w.expiresAt(t.ExpiresAt)
	w.instant("expired_at", t.At, milliseconds)
	w.number("lateness_ms", t.Lateness().Milliseconds())
	w.field("cause", string(t.Cause))
	return id, w.money(t.Terms).close()
}

// acted ends an event with why it came about, and the coupon's worth.
func (w *writer) acted(t *coupon.Transition) []byte {
	w.field("cause", string(t.Cause))
	w.optional("reason", t.Reason)
	return w.money(t.Terms).close()
}

// RedeemRefused gives routing key, id and body of the event of a paid order whose coupon cannot be redeemed. The id is
// that of coupon and order, so that the same payment told again is refused by the same event.
func (c *Codec) RedeemRefused(r coupon.RedeemRefused) (key, id string, body []byte, err error) {
	if r.Code == "" {
		return "", "", nil, fmt.Errorf("event of coupon %d: its redemption was not refused", r.CouponID)
	}
	couponID := strconv.FormatUint(r.CouponID, 10)
	id = couponID + ":" + r.OrderID + ":redeem_refused"
	w := c.begin(envelope{typ: TypeRedeemRefused, id: id, subject: "coupon/" + couponID, at: r.At, user: r.UserID, trace: r.Trace})
	w.field("coupon_id", couponID)
	w.field("order_id", r.OrderID)
	w.optional("user_id", r.UserID)
	w.field("code", string(r.Code))
	if r.TemplateID == 0 {
		w.raw(`,"template_id":null,"state":null,"value":null,"currency":null`)
	} else {
		w.field("template_id", strconv.FormatUint(r.TemplateID, 10))
		w.field("state", r.State.String())
		w.number("value", r.Value)
		w.field("currency", r.Currency)
	}
	w.instant("refused_at", r.At, milliseconds)
	return KeyRedeemRefused, id, w.close(), nil
}
