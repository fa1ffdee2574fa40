package event

import (
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Expired is a coupon.expired event as a consumer reads it. Consumers drop
// repeats by Source and EventID.
type Expired struct {
	EventID    string
	Source     string
	Trace      string
	CouponID   uint64
	UserID     string
	TemplateID uint64
	BatchID    string // empty if none
	From       coupon.Status
	OrderID    string // of the lock that ended with it or the redemption that was refunded; empty if none
	ExpiresAt  time.Time
	ExpiredAt  time.Time
	// Lateness is from the later of the due instant, spread included, and the lock's end; below zero if a reader came
	// before that. Zero if a release or a refund past the end expired it: it was not owed before.
	Lateness time.Duration
	Cause    coupon.Cause
	Version  uint32
	Value    int64 // minor units
	Currency string
}

// DecodeExpired reads a coupon.expired event. Unknown fields are ignored.
func DecodeExpired(body []byte) (Expired, error) {
	e, err := decodeExpired(body)
	if err != nil {
		return Expired{}, fmt.Errorf("decode %s: %w", TypeExpired, err)
	}
	return e, nil
}

func decodeExpired(body []byte) (Expired, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return Expired{}, err
	}
	in, err := open(o, TypeExpired)
	if err != nil {
		return Expired{}, err
	}
	o = in.data
	e := Expired{
		EventID: in.id, Source: in.source, Trace: in.trace,
		CouponID:   o.id("coupon_id", false),
		UserID:     o.text("user_id", true, MaxID),
		TemplateID: o.id("template_id", false),
		BatchID:    o.text("batch_id", false, MaxID),
		OrderID:    o.text("order_id", false, MaxID),
		Cause:      coupon.Cause(o.text("cause", true, MaxID)),
		Version:    uint32(o.integer("version", 1, math.MaxUint32)),
		Lateness:   time.Duration(o.integer("lateness_ms", -maxLateness, maxLateness)) * time.Millisecond,
		Value:      o.integer("value", 0, math.MaxInt64),
		Currency:   o.text("currency", true, 3),
	}
	e.ExpiresAt = o.end("expires_at", false)
	e.ExpiredAt, _ = o.instant("expired_at", true)
	e.From = o.status("from", []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used})
	if err := o.err(); err != nil {
		return Expired{}, err
	}
	return e, nil
}

const maxLateness = math.MaxInt64 / int64(time.Millisecond)
