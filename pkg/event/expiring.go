package event

import (
	"fmt"
	"math"
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The reminder before a coupon's end. It is no step of a coupon's life.
const (
	TypeExpiring = "coupon.expiring.v1"
	KeyExpiring  = "coupon.expiring"
)

// Expiring is a coupon.expiring event as a consumer reads it. Consumers drop repeats by Source and EventID: the verbs and the
// planner may both have told of one reminder, by the same id.
type Expiring struct {
	EventID string
	Source  string
	coupon.Expiring
}

// Expiring gives routing key, id and body of a reminder's event. Whoever writes it, verb or planner, writes the same but for
// the trace and the version that it met the coupon in; its time is that of the reminder.
func (c *Codec) Expiring(e coupon.Expiring) (key, id string, body []byte) {
	id = coupon.ExpiringID(e.CouponID, e.ExpiresAt, e.Offset)
	if e.Late {
		id += ":" + strconv.FormatUint(uint64(e.Version), 10)
	}
	couponID := strconv.FormatUint(e.CouponID, 10)
	w := c.begin(envelope{typ: TypeExpiring, id: id, subject: "coupon/" + couponID, at: e.NotifyAt, user: e.UserID, trace: e.Trace})
	w.field("coupon_id", couponID)
	w.field("user_id", e.UserID)
	w.field("template_id", strconv.FormatUint(e.TemplateID, 10))
	w.optional("batch_id", e.BatchID)
	w.number("version", int64(e.Version))
	w.expiresAt(e.ExpiresAt)
	w.field("offset", e.Offset)
	w.instant("notify_at", e.NotifyAt, seconds)
	if e.Late {
		w.name("late")
		w.raw("true")
	}
	w.number("value", e.Value)
	w.field("currency", e.Currency)
	return KeyExpiring, id, w.close()
}

// DecodeExpiring reads a coupon.expiring event. Unknown fields are ignored.
func DecodeExpiring(body []byte) (Expiring, error) {
	e, err := decodeExpiring(body)
	if err != nil {
		return Expiring{}, fmt.Errorf("decode %s: %w", TypeExpiring, err)
	}
	return e, nil
}

func decodeExpiring(body []byte) (Expiring, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return Expiring{}, err
	}
	in, err := open(o, TypeExpiring)
	if err != nil {
		return Expiring{}, err
	}
	o = in.data
	e := Expiring{EventID: in.id, Source: in.source, Expiring: coupon.Expiring{
		CouponID:   o.id("coupon_id", false),
		UserID:     o.text("user_id", true, MaxID),
		TemplateID: o.id("template_id", false),
		BatchID:    o.text("batch_id", false, MaxID),
		Version:    uint32(o.integer("version", 1, math.MaxUint32)),
		Offset:     o.text("offset", true, maxOffset),
		Late:       o.boolean("late", false),
		Value:      o.integer("value", 0, math.MaxInt64),
		Currency:   o.text("currency", true, 3),
		Trace:      in.trace,
	}}
	if e.Offset != "" {
		if _, err := coupon.ParseOffset(e.Offset); err != nil {
			o.fail("offset", "must be like -3d, -30m or -1d@10:00")
		}
	}
	e.ExpiresAt = o.end("expires_at", false)
	e.NotifyAt, _ = o.instant("notify_at", true)
	if !e.NotifyAt.IsZero() {
		o.within("notify_at", e.NotifyAt)
	}
	if err := o.err(); err != nil {
		return Expiring{}, err
	}
	return e, nil
}

const maxOffset = 16 // bytes, as the windows hold it
