package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	chunk       = 200 // grants of one event
	answerPoll  = 20 * time.Millisecond
	answerLimit = 60 * time.Second // without any answer
)

// grant sends every grant as coupon.grant events over RabbitMQ, as an issuer would, and waits until all are answered.
// Who is not answered is left to the audit.
func (r *run) grant(ctx context.Context) (time.Duration, error) {
	publisher, stop, err := r.place.publisher(ctx)
	if err != nil {
		return 0, err
	}
	defer stop() //nolint:errcheck // it ends because it is stopped

	r.cfg.View.Step(fmt.Sprintf("granting %d coupons, and %d that will be waiting", r.cfg.Coupons, r.cfg.Waiting))
	start := time.Now()
	total := r.cfg.Coupons + r.cfg.Waiting
	pace := &pace{}
	for r.plan.sent < total {
		if err := answered(ctx, r.audit, r.plan.sent-pace.outstanding()); err != nil {
			return 0, err
		}
		pace.answered(r.audit.Answered(), time.Now())
		if r.plan.move(r.audit.Now(), pace.slowest) {
			r.cfg.View.Step("granting takes longer than that: the last end moves to " + r.plan.last.Format(time.TimeOnly) + " UTC")
			if err := r.renotify(ctx); err != nil {
				return 0, err
			}
			continue
		}
		if err := r.send(ctx, publisher, pace.slowest); err != nil {
			return 0, err
		}
		pace.sent(r.plan.sent, time.Now())
	}
	err = answered(ctx, r.audit, total)
	if errors.Is(err, errSilent) {
		err = nil
	}
	return time.Since(start), err
}

func (r *run) send(ctx context.Context, publisher *broker.Publisher, slowest time.Duration) error {
	now := r.audit.Now()
	asks := r.plan.next(now, slowest, chunk)
	m, err := r.message(asks)
	if err != nil {
		return err
	}
	r.audit.Expect(asks...)
	for {
		err := publisher.Publish(ctx, []broker.Message{m})[0]
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, broker.ErrUnknown) && !errors.Is(err, broker.ErrNotSent):
			return fmt.Errorf("sending grants: %w", err)
		}
		// Sent again under the same keys: granted once.
	}
}

var errSilent = errors.New("grants are not answered")

// answered waits until so many grants were answered, by an issued or a refused event.
func answered(ctx context.Context, a *audit.Audit, want int) error {
	last, since := -1, time.Now()
	return rig.Until(ctx, answerPoll, func() (bool, error) {
		have := a.Answered()
		switch {
		case have >= want:
			return true, nil
		case have > last:
			last, since = have, time.Now()
		case time.Since(since) > answerLimit:
			return false, fmt.Errorf("%w: %d of %d for %s; refused: %s", errSilent, have, want, answerLimit, a.Refusals())
		}
		return false, nil
	})
}
