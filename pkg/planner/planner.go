package planner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
)

// Rows is what the planner asks of the database.
type Rows interface {
	SetHorizon(ctx context.Context, horizon, guard time.Duration) error
	ClaimPlan(ctx context.Context, plan, owner string, lease time.Duration) (p coupon.PlanPlace, held bool, err error)
	MovePlan(ctx context.Context, plan, owner string, p coupon.PlanPlace, lease time.Duration) (held bool, err error)
	ReleasePlan(ctx context.Context, plan, owner string, epoch uint64) error
	NextDue(ctx context.Context, from time.Time) (next, now time.Time, err error)
	PlanPage(ctx context.Context, end time.Time, from coupon.Cursor, limit int) ([]coupon.Timed, coupon.Cursor, time.Time, error)

	SetReminders(ctx context.Context, r coupon.Reminders) error
	Reminders(ctx context.Context) (coupon.Reminders, error)
	RemindPage(ctx context.Context, o coupon.Offset, zone *time.Location, end time.Time, from coupon.Cursor, limit int) (coupon.RemindPage, error)
}

// Deliverer is the delay mechanism: deliver these triggers at their instants; nil for each that it has taken over.
type Deliverer interface {
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
}

// Events publishes with confirms: one result for each message.
type Events interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// Encoder gives routing key, id and body of a reminder's event.
type Encoder interface {
	Expiring(e coupon.Expiring) (key, id string, body []byte)
}

// Deps is what the planner works with.
type Deps struct {
	Rows     Rows
	Deliver  Deliverer
	Events   Events
	Exchange string // of events
	Encoder  Encoder
	Log      *zap.Logger
	Registry prometheus.Registerer

	Owner     string           // names this process
	Limit     time.Duration    // the longest transaction of the installation
	Horizon   time.Duration    // 0 = unlimited
	Reminders coupon.Reminders // no offsets: nobody is reminded
}

// Planner walks the plans. Run it in every publisher; one of them works at each plan.
type Planner struct {
	config  Config
	deps    Deps
	metrics *metrics

	once      sync.Mutex
	announced bool
}

// New makes a planner.
func New(c Config, d Deps) *Planner {
	return &Planner{config: c, deps: d, metrics: newMetrics(d.Registry, d.Reminders)}
}

// idlePoll is between looks while nothing can be due for long.
const idlePoll = time.Minute

// Run walks until ctx ends: the promotion, and beside it the reminders, so that many of them do not keep a trigger from
// being published in time. Faults of database and broker are waited out.
func (p *Planner) Run(ctx context.Context) error {
	var side sync.WaitGroup
	side.Go(func() { p.loop(ctx, "reminders", p.Remind) })
	p.loop(ctx, "promotion", p.Promote)
	side.Wait()
	return nil
}

// loop runs rounds until ctx ends.
func (p *Planner) loop(ctx context.Context, of string, round func(context.Context) (idle bool, err error)) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 10*time.Second
	failing := ""
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		idle, err := round(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || errors.Is(err, errLost):
			failing = ""
			wait.Reset()
			poll := p.config.Poll
			if idle {
				poll = max(poll, idlePoll)
			}
			pause.Reset(poll)
		default:
			if err.Error() != failing {
				failing = err.Error()
				p.deps.Log.Warn("planner waits", zap.String("of", of), zap.Error(err))
			}
			pause.Reset(wait.NextBackOff())
		}
	}
}

// announce stores what this process was told, for all verbs, once.
func (p *Planner) announce(ctx context.Context) error {
	p.once.Lock()
	defer p.once.Unlock()
	if p.announced {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.deps.Limit)
	defer cancel()
	if err := p.deps.Rows.SetHorizon(ctx, p.deps.Horizon, p.config.Guard); err != nil {
		return fmt.Errorf("store horizon: %w", err)
	}
	if err := p.deps.Rows.SetReminders(ctx, p.deps.Reminders); err != nil {
		return fmt.Errorf("store reminders: %w", err)
	}
	p.announced = true
	return nil
}

// Promote publishes the triggers of every slice that is due into the horizon; idle says that none will be for long.
func (p *Planner) Promote(ctx context.Context) (idle bool, err error) {
	if err := p.announce(ctx); err != nil {
		return false, err
	}
	return p.round(ctx, walk{plan: coupon.PlanPromote, page: p.promote})
}

// promote publishes a page of triggers.
func (p *Planner) promote(ctx context.Context, place *coupon.PlanPlace) (next coupon.Cursor, rows int, err error) {
	ts, next, now, err := p.deps.Rows.PlanPage(ctx, place.End, place.Cursor, p.config.Page)
	if err != nil {
		return next, 0, fmt.Errorf("read slice: %w", err)
	}
	if len(ts) > 0 {
		crash.Before(crash.Publish, "promotion")
		if err := errors.Join(p.deps.Deliver.Deliver(ctx, now, ts)...); err != nil {
			return next, 0, fmt.Errorf("publish %d triggers: %w", len(ts), firstOf(err))
		}
		crash.After(crash.Publish, "promotion")
		p.metrics.promoted.Add(float64(len(ts)))
	}
	return next, len(ts), nil
}

// firstOf shortens a join of a thousand equal errors to its first.
func firstOf(err error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}
