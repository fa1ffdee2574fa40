// Package delay holds the delay mechanisms: one call, "deliver this trigger at T", behind the relay's trigger lane
// and the planner (design.md §2, Mechanism). The ladder is the default; with the sweep alone nothing is sent.
package delay

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// Publisher publishes with confirms: one result for each message.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// Ladder delivers through RabbitMQ's TTL buckets.
type Ladder struct {
	ladder    *ladder.Ladder
	publisher Publisher
}

// NewLadder makes the mechanism that routes by l and publishes with p.
func NewLadder(l *ladder.Ladder, p Publisher) *Ladder { return &Ladder{ladder: l, publisher: p} }

// Deliver hands the triggers over for delivery at their instants; now is the database's clock. One result each: nil
// when the broker has confirmed and routed it.
func (m *Ladder) Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error {
	ms := make([]broker.Message, len(ts))
	for i := range ts {
		ms[i] = m.Message(now, ts[i])
	}
	return m.publisher.Publish(ctx, ms)
}

// Message is the first step of a trigger's way from now on to its instant; it may come a unit early (ladder.Slack), and the
// expirer holds it. A way longer than the ladder ends at its top, and the expirer sends it on from there.
func (m *Ladder) Message(now time.Time, t coupon.Timed) broker.Message {
	return message(m.ladder.RouteAt(now, t.At, ladder.Kind(t.Kind), ladder.Class(t.Class), coupon.Partition(t.CouponID)), t)
}

// After is the first step of a trigger that is to come again after a wait, never sooner: its instant may have passed, so
// that nobody would hold it.
func (m *Ladder) After(wait time.Duration, t coupon.Timed) broker.Message {
	return message(m.ladder.Route(wait, ladder.Kind(t.Kind), ladder.Class(t.Class), coupon.Partition(t.CouponID)), t)
}

func message(route ladder.Route, t coupon.Timed) broker.Message {
	msg := broker.Message{
		Exchange: route.Exchange, Key: route.Key, ID: t.ID, Body: t.Body, Expiration: route.Expiration, Mandatory: true,
	}
	if t.Trace != "" {
		msg.Headers = map[string]any{"traceparent": t.Trace}
	}
	return msg
}

// SweepOnly sends nothing: the sweep finds every end by its row.
type SweepOnly struct{}

// Deliver drops the triggers.
func (SweepOnly) Deliver(_ context.Context, _ time.Time, ts []coupon.Timed) []error {
	return make([]error, len(ts))
}
