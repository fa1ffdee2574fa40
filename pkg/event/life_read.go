package event

import (
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Life is one step of a coupon's life, as a consumer of any of its events reads it. Consumers drop repeats by Source
// and EventID and order a coupon's steps by Version.
type Life struct {
	EventID    string
	Source     string
	Trace      string
	Type       string // TypeIssued, TypeLocked, …
	CouponID   uint64
	Version    uint32
	UserID     string
	TemplateID uint64
	BatchID    string        // empty if none
	From       coupon.Status // zero: it was granted
	To         coupon.Status // From itself if a lock was renewed or an end moved
	At         time.Time     // when it happened, to the millisecond
	ExpiresAt  time.Time     // the end that holds now; coupon.Never if there is none
	OrderID    string        // empty if no order had to do with it
	Cause      coupon.Cause
	Value      int64 // minor units
	Currency   string
}

// Renewed reports whether an order kept a lock that it held already.
func (l Life) Renewed() bool { return l.Type == TypeLocked && l.From == coupon.Locked }

// Moved reports whether an operator moved the coupon's end.
func (l Life) Moved() bool { return l.Type == TypeExtended }

// LifeTypes are the types of event that DecodeLife reads: one for every step of a coupon's life.
func LifeTypes() []string {
	types := make([]string, len(steps))
	for i := range steps {
		types[i] = steps[i].typ
	}
	return types
}

// OutTypes are the types of all events of ours.
func OutTypes() []string {
	return append(LifeTypes(), TypeRefused, TypeRedeemRefused, TypeExpiring, TypeAtRisk)
}

// DecodeLife reads the event of any step of a coupon's life. Unknown fields are ignored; an event that tells of no
// step (coupon.refused and others) is ErrUnknownType.
func DecodeLife(body []byte) (Life, error) {
	l, err := decodeLife(body)
	if err != nil {
		return Life{}, fmt.Errorf("decode an event of a coupon: %w", err)
	}
	return l, nil
}

func decodeLife(body []byte) (Life, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return Life{}, err
	}
	in, err := open(o, LifeTypes()...)
	if err != nil {
		return Life{}, err
	}
	var s step
	for _, s = range steps {
		if s.typ == in.typ {
			break
		}
	}
	o = in.data
	l := Life{
		EventID: in.id, Source: in.source, Trace: in.trace, Type: in.typ,
		CouponID:   o.id("coupon_id", false),
		Version:    uint32(o.integer("version", 1, math.MaxUint32)),
		UserID:     o.text("user_id", true, MaxID),
		TemplateID: o.id("template_id", false),
		BatchID:    o.text("batch_id", false, MaxID),
		OrderID:    o.text("order_id", s.order, MaxID),
		Value:      o.integer("value", 0, math.MaxInt64),
		Currency:   o.text("currency", true, 3),
		From:       o.status("from", s.from),
		To:         s.to,
		Cause:      coupon.CauseGrant,
	}
	if s.from != nil {
		l.Cause = coupon.Cause(o.text("cause", true, MaxID))
	}
	if l.To == 0 {
		l.To = l.From
	}
	l.At, _ = o.instant(s.at, true)
	l.ExpiresAt = o.end("expires_at", !s.ends)
	if err := o.err(); err != nil {
		return Life{}, err
	}
	return l, nil
}

// status reads a state that must be one of those; zero if none can be.
func (o *object) status(field string, of []coupon.Status) coupon.Status {
	if len(of) == 0 {
		return 0
	}
	name, names := o.text(field, true, MaxID), ""
	for i, s := range of {
		if s.String() == name {
			return s
		}
		switch {
		case i == 0:
		case i == len(of)-1:
			names += " or "
		default:
			names += ", "
		}
		names += s.String()
	}
	if name != "" { // else it has been said already
		o.fail(field, "must be "+names)
	}
	return 0
}

// end reads a coupon's end. Where it may be null, that is never; it is not to be left out.
func (o *object) end(field string, never bool) time.Time {
	if raw, there := o.fields[field]; there && never && raw[0] == 'n' {
		return coupon.Never
	}
	at, ok := o.instant(field, true)
	if ok {
		o.within(field, at)
	}
	return at
}
