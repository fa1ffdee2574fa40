// Package delay holds the delay mechanisms: one call, "deliver this trigger at its instant", behind the relay's trigger
// lane and the planner. Which one is in force is a choice (delay.mechanism); all of them feed the same due queues, and none
// of them is an authority: the row is the schedule, and the sweep settles what a mechanism lost.
//
//   - Ladder, the default: triggers wait in RabbitMQ's TTL buckets.
//   - ZSet: they wait in sorted sets of a Redis server, and movers bring them to the due exchange.
//   - Wheel: they wait in the memory of the process that relays their partition, read from the rows again and again.
//   - SweepOnly: nothing waits anywhere; the sweep finds every end by its row.
//
// # Invariants
//
//   - Deliver answers nil for a trigger only when the mechanism holds it (as safely as it holds anything) or when it will
//     come by the row without it. A trigger that was answered with an error stays in the outbox.
//   - A trigger that is held is published to the due exchange with a confirm, at its instant on the database's clock or
//     after it, at least once. The ladder alone may be a unit early (ladder.Slack), and the expirer holds what is.
//   - Repeats are harmless, order is not kept, and an instant may be past or years ahead.
//   - What waits in the broker anyway (a busy row, a retry, an order event that was set aside) waits in the ladder's
//     buckets with every mechanism.
package delay

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// Mechanism delivers triggers at their instants.
type Mechanism interface {
	// Deliver hands the triggers over; now is the database's clock. One result each: nil when the mechanism has it.
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
	// Run does what the mechanism needs done in this process, until ctx ends; then nil.
	Run(ctx context.Context) error
	// Ready says nil while what is held can come due: when it cannot, the sweep need not wait for it.
	Ready() error
}

// Publisher publishes with confirms: one result for each message. Ready says whether it can.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
	Ready() error
}

// Ladder delivers through RabbitMQ's TTL buckets. Nothing has to run for it.
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

// Run waits for the end.
func (m *Ladder) Run(ctx context.Context) error { return idle(ctx) }

// Ready is the broker's word.
func (m *Ladder) Ready() error { return m.publisher.Ready() } //nolint:wrapcheck // the broker's

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
		msg.Headers = map[string]any{broker.HeaderTrace: t.Trace}
	}
	return msg
}

// dueKey is the routing key of a trigger that is due now.
func dueKey(t *coupon.Timed) string {
	return ladder.Key{Kind: ladder.Kind(t.Kind), Class: ladder.Class(t.Class), Partition: coupon.Partition(t.CouponID)}.String()
}

// dueMessage rings at once.
func dueMessage(exchange string, t *coupon.Timed) broker.Message {
	return message(ladder.Route{Exchange: exchange, Key: dueKey(t)}, *t)
}

// SweepOnly sends nothing: the sweep finds every end by its row.
type SweepOnly struct{}

// Deliver drops the triggers.
func (SweepOnly) Deliver(_ context.Context, _ time.Time, ts []coupon.Timed) []error {
	return make([]error, len(ts))
}

// Run waits for the end.
func (SweepOnly) Run(ctx context.Context) error { return idle(ctx) }

// Ready is always nil: there is nothing to be heard.
func (SweepOnly) Ready() error { return nil }

func idle(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
