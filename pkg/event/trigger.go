package event

import (
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	triggerFormat = "1"
	maxTriggerID  = 64
	maxAttempt    = 999
	maxTrigger    = 4096 // bytes that are looked at; what we write has less than 200
)

// Trigger gives the body of a trigger, format 1.
func (c *Codec) Trigger(t coupon.Trigger) []byte {
	w := &writer{b: make([]byte, 0, 192)}
	w.raw(`{"v":` + triggerFormat)
	w.field("kind", string(t.Kind))
	w.name("coupon_id")
	w.b = append(w.b, '"')
	w.b = strconv.AppendUint(w.b, t.CouponID, 10)
	w.b = append(w.b, '"')
	layout := seconds
	if t.At.Nanosecond() != 0 {
		layout = time.RFC3339Nano
	}
	w.instant("at", t.At, layout)
	w.field("id", t.ID)
	w.field("origin", string(t.Origin))
	w.number("attempt", int64(t.Attempt))
	return append(w.b, '}')
}

// DecodeTrigger reads a trigger. It is strict: every field is there and nothing
// else, since a trigger is written by nobody but this package. A release that
// needs another field needs another format.
func DecodeTrigger(body []byte) (coupon.Trigger, error) {
	t, err := decodeTrigger(body)
	if err != nil {
		return coupon.Trigger{}, fmt.Errorf("decode trigger: %w", err)
	}
	return t, nil
}

func decodeTrigger(body []byte) (coupon.Trigger, error) {
	o, err := document(body, maxTrigger)
	if err != nil {
		return coupon.Trigger{}, err
	}
	if format, ok := o.fields["v"]; !ok {
		o.fail("v", "is required")
		return coupon.Trigger{}, o.err()
	} else if string(format) != triggerFormat {
		o.failAs(ErrUnknownVersion, "v", "must be "+triggerFormat)
		return coupon.Trigger{}, o.err()
	}
	for field := range o.fields {
		switch field {
		case "v", "kind", "coupon_id", "at", "id", "origin", "attempt":
		default:
			return coupon.Trigger{}, &FieldError{Field: cut(field, 64), Value: shorten(o.fields[field]), Reason: "is not a field of a trigger", Kind: ErrMalformed}
		}
	}
	t := coupon.Trigger{
		Kind:     coupon.Kind(o.text("kind", true, MaxID)),
		CouponID: o.id("coupon_id", false),
		ID:       o.text("id", true, maxTriggerID),
		Origin:   coupon.Origin(o.text("origin", true, MaxID)),
		Attempt:  int(o.integer("attempt", 0, maxAttempt)),
	}
	t.At, _ = o.instant("at", true)
	if t.Kind != "" && t.Kind != coupon.KindExpire && t.Kind != coupon.KindUnlock {
		o.fail("kind", "must be expire or unlock")
	}
	switch t.Origin {
	case coupon.OriginLadder, coupon.OriginLazy, coupon.OriginRebuild, "":
	case coupon.OriginSweep, coupon.OriginRepair: // these send no messages
		o.fail("origin", "must be ladder, lazy or rebuild")
	default:
		o.fail("origin", "must be ladder, lazy or rebuild")
	}
	if err := o.err(); err != nil {
		return coupon.Trigger{}, err
	}
	return t, nil
}
