package event

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// step is one step of a coupon's life, as its event tells of it.
type step struct {
	typ   string
	at    string          // the field that says when
	from  []coupon.Status // that it may leave; none: it is the grant, which has no such field
	to    coupon.Status   // zero: the state stays, and the end moves
	order bool            // it is an order's, and names it
	ends  bool            // it has an end always
	moves bool            // the end moves with the state
}

//nolint:gochecknoglobals // a constant list
var steps = [...]step{
	{typ: TypeIssued, at: "granted_at", to: coupon.Unused},
	{typ: TypeLocked, at: "locked_at", from: []coupon.Status{coupon.Unused, coupon.Locked}, to: coupon.Locked, order: true},
	{typ: TypeReleased, at: "released_at", from: []coupon.Status{coupon.Locked}, to: coupon.Unused},
	{typ: TypeUsed, at: "used_at", from: []coupon.Status{coupon.Unused, coupon.Locked}, to: coupon.Used, order: true},
	{typ: TypeRefunded, at: "refunded_at", from: []coupon.Status{coupon.Used}, to: coupon.Unused, order: true},
	{typ: TypeExtended, at: "extended_at", from: []coupon.Status{coupon.Unused, coupon.Locked}},
	{typ: TypeVoided, at: "voided_at", from: []coupon.Status{coupon.Unused, coupon.Locked}, to: coupon.Voided},
	{typ: TypeExpired, at: "expired_at", from: []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used}, to: coupon.Expired, ends: true},
	{typ: TypeReinstated, at: "reinstated_at", from: []coupon.Status{coupon.Expired}, to: coupon.Unused, moves: true},
}

// stepOf gives the step that a transition is.
func stepOf(t *coupon.Transition) (step, bool) {
	moved := t.From == t.To && !t.Previous.IsZero()
	for _, s := range steps {
		left := s.from == nil && t.From == 0 || slices.Contains(s.from, t.From)
		if left && moved == (s.to == 0) && (moved || s.to == t.To) {
			return s, true
		}
	}
	return step{}, false
}

// key is the routing key: the type without its version.
func (s step) key() string {
	key, _ := splitVersion(s.typ)
	return key
}

// moved writes the event of a step after the grant: from which state, by whom and why, and the end that holds now.
func (c *Codec) moved(t *coupon.Transition, s step) (string, []byte) {
	w, id := c.ofCoupon(t, s.typ)
	w.field("from", t.From.String())
	if s.to == 0 || s.moves { // a lock, and its order, stay as they are
		w.end("previous_expires_at", t.Previous)
	} else {
		w.optional("order_id", t.OrderID)
	}
	w.expiresAt(t.ExpiresAt)
	if s.to == coupon.Locked {
		w.instant("lock_until", t.LockUntil, seconds)
	}
	w.instant(s.at, t.At, milliseconds)
	if s.to == coupon.Expired {
		w.number("lateness_ms", t.Lateness().Milliseconds())
	}
	w.field("cause", string(t.Cause))
	if s.to != coupon.Expired {
		w.optional("reason", t.Reason)
	}
	return id, w.money(t.Terms).close()
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
