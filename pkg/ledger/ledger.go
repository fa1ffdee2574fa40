package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// Store is what the ledger needs of the database. coupon.ErrIntegrity from CountEvents says that one of the events
// cannot be counted at all.
type Store interface {
	CountEvents(ctx context.Context, events []coupon.Counted) (fresh int, err error)
	SeedStats(ctx context.Context, limit int) (counted int, done bool, err error)
	FoldQuota(ctx context.Context, limit int) (folded int, more bool, err error)
	PruneTombstones(ctx context.Context, olderThan time.Duration, limit int) (int, error)
}

// Ledger counts what P.ledger delivers, seeds the statistics, and folds quota back. Safe for concurrent use.
type Ledger struct {
	config  Config
	store   Store
	log     *zap.Logger
	metrics *metrics
}

// New makes the ledger.
func New(c Config, s Store, log *zap.Logger, reg prometheus.Registerer) (*Ledger, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("ledger config: %w", err)
	}
	return &Ledger{config: c, store: s, log: log, metrics: newMetrics(reg)}, nil
}

// Handle answers each delivery of a batch, of Config.Batch at most. An error means that nothing can be done now: what was counted before it is
// found again.
func (l *Ledger) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	events := make([]coupon.Counted, 0, len(batch))
	of := make([]int, 0, len(batch)) // the delivery of each event
	ignored, parked := 0, 0
	for i := range batch {
		out[i] = broker.Ack()
		life, err := event.DecodeLife(batch[i].Body)
		switch {
		case errors.Is(err, event.ErrUnknownType):
			ignored++
		case err != nil:
			out[i] = broker.Park(err.Error())
			parked++
		default:
			events = append(events, counted(life))
			of = append(of, i)
		}
	}
	if len(events) > 0 {
		err := l.count(ctx, events, of, func(i int, reason error) {
			out[i] = broker.Park(reason.Error())
			parked++
		})
		if err != nil {
			return nil, err
		}
	}
	l.metrics.add(resultIgnored, ignored)
	l.metrics.add(resultParked, parked)
	if parked > 0 { // the reasons are with the messages
		l.log.Warn("events parked: they cannot be read or counted", zap.Int("events", parked))
	}
	return out, nil
}

func counted(e event.Life) coupon.Counted {
	return coupon.Counted{
		CouponID: e.CouponID, Version: e.Version, TemplateID: e.TemplateID, From: e.From, To: e.To,
		Moved: e.Renewed() || e.Moved(), At: e.At, Value: e.Value,
	}
}

// count counts what can be counted. A batch that the database refuses is halved until the bad event is alone, and told
// to cannot by its delivery.
func (l *Ledger) count(ctx context.Context, events []coupon.Counted, of []int, cannot func(i int, reason error)) error {
	fresh, err := l.store.CountEvents(ctx, events)
	switch {
	case err == nil:
		l.metrics.add(resultCounted, fresh)
		l.metrics.add(resultRepeated, len(events)-fresh)
		return nil
	case !errors.Is(err, coupon.ErrIntegrity):
		return fmt.Errorf("count %d events: %w", len(events), err)
	case len(events) == 1:
		cannot(of[0], err)
		return nil
	}
	half := len(events) / 2
	if err := l.count(ctx, events[:half], of[:half], cannot); err != nil {
		return err
	}
	return l.count(ctx, events[half:], of[half:], cannot)
}
