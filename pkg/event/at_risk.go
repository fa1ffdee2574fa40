package event

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A user who was about to buy and is about to lose coupons. It is no step of a coupon's life.
const (
	TypeAtRisk = "coupon.at_risk.v1"
	KeyAtRisk  = "coupon.at_risk"
)

// AtRisk is a coupon.at_risk event as a consumer reads it.
type AtRisk struct {
	EventID string
	Source  string
	Trace   string
	coupon.AtRisk
}

// maxTotals is how many currencies one event is read with.
const maxTotals = 200

// AtRisk gives routing key, id and body of the event. The id is that of user and day.
func (c *Codec) AtRisk(a coupon.AtRisk) (key, id string, body []byte) {
	id = a.AtRiskID()
	w := c.begin(envelope{typ: TypeAtRisk, id: id, subject: "user/" + a.UserID, at: a.At, user: a.UserID})
	w.field("user_id", a.UserID)
	w.field("day", a.Day)
	w.instant("ends_at", coupon.CeilSecond(a.EndsAt), seconds)
	w.number("coupons", int64(a.Coupons))
	w.name("totals")
	w.raw("[")
	for i, sum := range a.Totals {
		if i > 0 {
			w.raw(",")
		}
		w.raw("{")
		w.number("minor", sum.Minor)
		w.field("currency", sum.Currency)
		w.raw("}")
	}
	w.raw("]")
	w.instantOrNull("browsed_at", a.BrowsedAt)
	w.instantOrNull("carted_at", a.CartedAt)
	w.field("offer", a.Offer)
	w.instant("at", a.At, milliseconds)
	return KeyAtRisk, id, w.close()
}

func (w *writer) instantOrNull(name string, at time.Time) {
	if at.IsZero() {
		w.name(name)
		w.raw("null")
		return
	}
	w.instant(name, at, milliseconds)
}

// DecodeAtRisk reads a coupon.at_risk event. Unknown fields are ignored.
func DecodeAtRisk(body []byte) (AtRisk, error) {
	a, err := decodeAtRisk(body)
	if err != nil {
		return AtRisk{}, fmt.Errorf("decode %s: %w", TypeAtRisk, err)
	}
	return a, nil
}

func decodeAtRisk(body []byte) (AtRisk, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return AtRisk{}, err
	}
	in, err := open(o, TypeAtRisk)
	if err != nil {
		return AtRisk{}, err
	}
	o = in.data
	a := AtRisk{EventID: in.id, Source: in.source, Trace: in.trace, AtRisk: coupon.AtRisk{
		UserID:  o.text("user_id", true, MaxID),
		Day:     o.text("day", true, len(time.DateOnly)),
		EndsAt:  o.end("ends_at", false),
		Coupons: int(o.integer("coupons", 1, math.MaxInt32)),
		Totals:  o.amounts("totals"),
		Offer:   o.text("offer", true, MaxID),
	}}
	if _, err := time.Parse(time.DateOnly, a.Day); err != nil && a.Day != "" {
		o.fail("day", "must be a date such as 2026-11-01")
	}
	if a.Offer != "" && !slices.Contains(coupon.AtRiskOffers(), a.Offer) {
		o.fail("offer", "must be "+strings.Join(coupon.AtRiskOffers(), ", "))
	}
	a.BrowsedAt, _ = o.instant("browsed_at", false)
	a.CartedAt, _ = o.instant("carted_at", false)
	a.At, _ = o.instant("at", true)
	if err := o.err(); err != nil {
		return AtRisk{}, err
	}
	return a, nil
}

// amounts reads sums of money.
func (o *object) amounts(field string) []coupon.Amount {
	var out []coupon.Amount
	for _, m := range o.members(field, true, maxTotals) {
		out = append(out, coupon.Amount{Minor: m.integer("minor", 0, math.MaxInt64), Currency: m.text("currency", true, 3)})
		o.errs = append(o.errs, m.errs...)
	}
	return out
}

// members reads an array of objects. A caller adds the errors of each to o.
func (o *object) members(field string, required bool, most int) []*object {
	raw, ok := o.get(field)
	if !ok {
		if required {
			o.fail(field, "is required")
		}
		return nil
	}
	if raw[0] != '[' {
		o.fail(field, "must be an array")
		return nil
	}
	values, ok := elements(raw, most)
	if !ok {
		o.failAs(ErrTooLarge, field, fmt.Sprintf("must have at most %d members", most))
		return nil
	}
	out := make([]*object, 0, len(values))
	for i, value := range values {
		m, err := newObject(fmt.Sprintf("%s%s[%d].", o.path, field, i), value)
		if err != nil {
			o.errs = append(o.errs, err)
			continue
		}
		out = append(out, m)
	}
	return out
}
