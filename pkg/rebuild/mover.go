package rebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// Met is what a mover asks of the database: what triggers would meet at this moment, and the precision class of each
// row. MaxMeet at most.
type Met interface {
	Meet(ctx context.Context, ts []coupon.Trigger) (now time.Time, ds []coupon.Decision, classes []byte, err error)
}

// MaxMeet bounds a batch.
const MaxMeet = 900

// Router finds a trigger's way on the new ladder.
type Router interface {
	Message(now time.Time, t coupon.Timed) broker.Message
}

// Publisher publishes with confirms: one result for each message.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// Moved counts what became of messages.
type Moved struct {
	Triggers int64 // sent again for the instant that their rows say
	Dropped  int64 // of coupons that need none: they would have been dropped at their time
	Others   int64 // handed on as they were
	Parked   int64 // no triggers, though they stood where only triggers do
}

// Mover takes messages of one layout to another. A trigger goes for as long as its row says: how long it has waited is
// not written on it. One that the row no longer needs is dropped, by the same table as at its time. Everything else
// goes as it is to the queue of the same name.
type Mover struct {
	rows    Met
	router  Router
	publish Publisher
	to      *ladder.Ladder
	moved   Moved
}

// NewMover makes one that sends to the ladder.
func NewMover(rows Met, router Router, p Publisher, to *ladder.Ladder) *Mover {
	return &Mover{rows: rows, router: router, publish: p, to: to}
}

// Moved says what became of everything so far.
func (m *Mover) Moved() Moved { return m.moved }

// Triggers moves a batch from a queue of triggers; nil when the broker has confirmed all that had to be sent.
func (m *Mover) Triggers(ctx context.Context, batch []broker.Delivery) error {
	var (
		ts    []coupon.Trigger
		of    []int
		ms    []broker.Message
		count Moved
	)
	for i := range batch {
		d := &batch[i]
		t, err := event.DecodeTrigger(d.Body)
		if err == nil {
			ts, of = append(ts, t), append(of, i)
			continue
		}
		if k, keyErr := ladder.ParseKey(d.Key); keyErr == nil && k.Kind == ladder.Order {
			// An order event that was set aside for a while; it may come back at once.
			ms = append(ms, d.Again("", m.to.Orders()))
			count.Others++
			continue
		}
		p := d.Parked(m.to.ParkExchange(), fmt.Sprintf("not a trigger: %v", err))
		p.Mandatory = true
		ms = append(ms, p)
		count.Parked++
	}
	now, ds, classes, err := m.rows.Meet(ctx, ts)
	if err != nil {
		return fmt.Errorf("look at the rows: %w", err)
	}
	for i, d := range ds {
		at := now
		switch d.Action {
		case coupon.Drop:
			count.Dropped++
			continue
		case coupon.Reschedule:
			at = d.Until
		case coupon.Expire, coupon.Unlock:
		}
		t, from := &ts[i], &batch[of[i]]
		timed := coupon.Timed{ID: t.ID, Body: from.Body, Kind: t.Kind, Class: classes[i], CouponID: t.CouponID, At: at}
		if trace, ok := from.Headers[broker.HeaderTrace].(string); ok {
			timed.Trace = trace
		}
		msg := m.router.Message(now, timed)
		msg.Attempt = from.Attempt
		ms = append(ms, msg)
		count.Triggers++
	}
	if err := m.send(ctx, ms); err != nil {
		return err
	}
	m.count(count)
	return nil
}

// Others hands a batch on to the queue of the same name as it is.
func (m *Mover) Others(ctx context.Context, queue string, batch []broker.Delivery) error {
	ms := make([]broker.Message, len(batch))
	for i := range batch {
		ms[i] = batch[i].Again("", queue)
	}
	if err := m.send(ctx, ms); err != nil {
		return err
	}
	m.count(Moved{Others: int64(len(ms))})
	return nil
}

func (m *Mover) count(n Moved) {
	m.moved.Triggers += n.Triggers
	m.moved.Dropped += n.Dropped
	m.moved.Others += n.Others
	m.moved.Parked += n.Parked
}

func (m *Mover) send(ctx context.Context, ms []broker.Message) error {
	if len(ms) == 0 {
		return nil
	}
	failed, errs := 0, m.publish.Publish(ctx, ms)
	var first error
	for _, err := range errs {
		if err != nil {
			failed++
			if first == nil || errors.Is(err, broker.ErrReturned) {
				first = err
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("publish: %d of %d messages failed: %w", failed, len(ms), first)
	}
	return nil
}
