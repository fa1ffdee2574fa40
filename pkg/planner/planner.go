// Package planner brings coupons into the horizon: with a finite horizon a coupon that ends later waits as a row, and
// the planner publishes its trigger in time by walking slices of the (status, due_at, id) index.
//
// One pod holds the plan by lease; its place (slice, cursor, frontier) is a row, moved only after the broker has
// confirmed what lies before it, so that a pod that dies is resumed where it stood and repeats at most a page.
// Repeats are no-ops at the expiry core.
//
// Nothing falls between the verbs and the planner: a verb that leaves a coupon unused writes its trigger itself if
// the coupon is due before max(now + H, frontier) + guard, and a slice [m, m + slice) is walked when m ≤ now + H,
// lowest first. With guard > 2 × slice + the longest transaction, a coupon that was locked or not yet committed
// while its slice passed is within the verb's reach when it comes back.
package planner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Config tunes the planner. The horizon itself is the ladder's (ladder.horizon), since the levels follow from it.
type Config struct {
	Slice time.Duration `koanf:"slice"` // default 1m
	Guard time.Duration `koanf:"guard"` // how far beyond the horizon verbs publish by themselves; default 10m
	Page  int           `koanf:"page"`  // triggers published and confirmed at once; default 1000
	Poll  time.Duration `koanf:"poll"`  // between looks when nothing is due into the horizon; default 5s
	Lease time.Duration `koanf:"lease"` // how long a dead pod keeps the plan; default 15s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Slice: time.Minute, Guard: 10 * time.Minute, Page: 1000, Poll: 5 * time.Second, Lease: 15 * time.Second}
}

// Validate reports every fault, each beginning with the field's name. ValidateLimit adds what depends on the database.
func (c Config) Validate() error {
	var errs []error
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	span("slice", c.Slice, time.Second, time.Hour)
	if c.Slice%time.Second != 0 {
		errs = append(errs, fmt.Errorf("slice: must be whole seconds, got %s", c.Slice))
	}
	span("guard", c.Guard, time.Second, 24*time.Hour)
	span("poll", c.Poll, 10*time.Millisecond, time.Minute)
	span("lease", c.Lease, time.Second, time.Hour)
	if c.Page < 1 || c.Page > 10_000 {
		errs = append(errs, fmt.Errorf("page: must be between 1 and 10000, got %d", c.Page))
	}
	return errors.Join(errs...)
}

// ValidateLimit checks the guard against the longest transaction: a shorter one would let a coupon fall between a
// verb and the planner.
func (c Config) ValidateLimit(limit time.Duration) error {
	if least := 2*c.Slice + limit; c.Guard <= least {
		return fmt.Errorf("guard: must be above 2 × slice + database.tx_limit = %s, got %s", least, c.Guard)
	}
	return nil
}

// Rows is what the planner asks of the database.
type Rows interface {
	SetHorizon(ctx context.Context, horizon, guard time.Duration) error
	ClaimPlan(ctx context.Context, owner string, lease time.Duration) (p coupon.PlanPlace, held bool, err error)
	MovePlan(ctx context.Context, owner string, p coupon.PlanPlace, lease time.Duration) (held bool, err error)
	ReleasePlan(ctx context.Context, owner string, epoch uint64) error
	NextDue(ctx context.Context, from time.Time) (next, now time.Time, err error)
	PlanPage(ctx context.Context, end time.Time, from coupon.Cursor, limit int) ([]coupon.Timed, coupon.Cursor, time.Time, error)
}

// Deliverer is the delay mechanism: deliver these triggers at their instants; nil for each that it has taken over.
type Deliverer interface {
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
}

// Planner promotes. Run it in every publisher; one of them works.
type Planner struct {
	config  Config
	horizon time.Duration
	limit   time.Duration
	owner   string
	rows    Rows
	deliver Deliverer
	log     *zap.Logger

	promoted prometheus.Counter
	lag      prometheus.Gauge
}

// New makes a planner for the horizon (0 = unlimited); limit is the longest transaction of the installation and owner
// names this process.
func New(c Config, horizon, limit time.Duration, owner string, rows Rows, d Deliverer, log *zap.Logger, reg prometheus.Registerer) *Planner {
	lag := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "lapse_planner_lag_seconds", Help: "How far the plan is behind where it should be.",
	}, []string{"plan"})
	p := &Planner{
		config: c, horizon: horizon, limit: limit, owner: owner, rows: rows, deliver: d, log: log,
		promoted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_planner_promoted_total", Help: "Triggers that the planner brought into the horizon.",
		}),
		lag: lag.WithLabelValues("promote"),
	}
	reg.MustRegister(lag, p.promoted)
	return p
}

// idlePoll is between looks while the horizon is unlimited and nothing waits as a row.
const idlePoll = time.Minute

// errLost: another pod has taken the plan over.
var errLost = errors.New("plan taken over by another pod")

// Run promotes until ctx ends. Faults of database and broker are waited out.
func (p *Planner) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 10*time.Second
	announced, failing := false, ""
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		poll := p.config.Poll
		err := p.announce(ctx, &announced)
		if err == nil {
			var idle bool
			if idle, err = p.round(ctx); idle {
				poll = max(poll, idlePoll)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil || errors.Is(err, errLost):
			failing = ""
			wait.Reset()
			pause.Reset(poll)
		default:
			if err.Error() != failing {
				failing = err.Error()
				p.log.Warn("planner waits", zap.Error(err))
			}
			pause.Reset(wait.NextBackOff())
		}
	}
}

func (p *Planner) announce(ctx context.Context, done *bool) error {
	if *done {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	if err := p.rows.SetHorizon(ctx, p.horizon, p.config.Guard); err != nil {
		return fmt.Errorf("store horizon: %w", err)
	}
	*done = true
	return nil
}

// round walks every slice that is due into the horizon; idle says that nothing will be for long.
func (p *Planner) round(ctx context.Context) (idle bool, err error) {
	place, held, err := p.claim(ctx)
	if err != nil || !held {
		return false, err
	}
	defer p.release(ctx, place.Epoch)
	if place.Horizon == 0 && place.Frontier.IsZero() {
		return true, nil
	}
	// A verb that read the former horizon may still be in its transaction.
	if place.Now.Sub(place.HorizonSince) < p.limit {
		return false, nil
	}
	for ctx.Err() == nil {
		more, err := p.step(ctx, &place)
		if err != nil || !more {
			return false, err
		}
	}
	return false, nil
}

func (p *Planner) claim(ctx context.Context) (coupon.PlanPlace, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	place, held, err := p.rows.ClaimPlan(ctx, p.owner, p.config.Lease)
	if err != nil {
		return place, false, fmt.Errorf("claim plan: %w", err)
	}
	return place, held, nil
}

func (p *Planner) release(ctx context.Context, epoch uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.limit)
	defer cancel()
	if err := p.rows.ReleasePlan(ctx, p.owner, epoch); err != nil {
		p.log.Debug("plan not released; its lease runs out", zap.Error(err))
	}
}

// step opens the next slice or publishes one page of the open one. more is false when there is nothing to do now.
func (p *Planner) step(ctx context.Context, place *coupon.PlanPlace) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Lease)
	defer cancel()
	// A finite horizon was set again while all of the rest was being published: back to slices.
	endless := place.Horizon != 0 && !place.End.Before(coupon.Never)
	if endless || !place.Start.Before(place.End) {
		if more, err = p.open(ctx, place); err != nil || !more {
			return false, err
		}
	}
	ts, next, now, err := p.rows.PlanPage(ctx, place.End, place.Cursor, p.config.Page)
	if err != nil {
		return false, fmt.Errorf("read slice: %w", err)
	}
	if len(ts) > 0 {
		if err := errors.Join(p.deliver.Deliver(ctx, now, ts)...); err != nil {
			return false, fmt.Errorf("publish %d triggers: %w", len(ts), firstOf(err))
		}
		p.promoted.Add(float64(len(ts)))
	}
	place.Cursor = next
	if len(ts) < p.config.Page {
		place.Frontier, place.Start = place.End, place.End
		if place.Horizon == 0 && place.End.Equal(coupon.Never) {
			place.Frontier = time.Time{}
		}
	}
	return true, p.move(ctx, place)
}

// firstOf shortens a join of a thousand equal errors to its first.
func firstOf(err error) error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}

func (p *Planner) move(ctx context.Context, place *coupon.PlanPlace) error {
	held, err := p.rows.MovePlan(ctx, p.owner, *place, p.config.Lease)
	if err != nil {
		return fmt.Errorf("move plan: %w", err)
	}
	if !held {
		return errLost
	}
	return nil
}

// open finds the next slice: the lowest from the frontier on that holds a coupon and begins within the horizon. Slices
// wholly past are the sweep's, empty ones are jumped over by one index read.
func (p *Planner) open(ctx context.Context, place *coupon.PlanPlace) (bool, error) {
	if place.Horizon == 0 {
		// The horizon was lifted: what waits behind the last frontier is published once, all of it.
		if place.Frontier.IsZero() {
			return false, nil
		}
		place.Start, place.End, place.Cursor = place.Frontier, coupon.Never, coupon.Cursor{At: place.Frontier}
		return true, nil
	}
	from := place.Now.Truncate(p.config.Slice)
	if place.Frontier.After(from) {
		from = place.Frontier
	}
	next, now, err := p.rows.NextDue(ctx, from)
	if err != nil {
		return false, fmt.Errorf("find next slice: %w", err)
	}
	place.Now = now
	end := now.Add(place.Horizon).Truncate(p.config.Slice).Add(p.config.Slice)
	if !next.Before(end) {
		p.lag.Set(0)
		if end.After(place.Frontier) {
			place.Frontier, place.Start, place.End, place.Cursor = end, end, end, coupon.Cursor{At: end}
			return false, p.move(ctx, place)
		}
		return false, nil
	}
	place.Start = next.Truncate(p.config.Slice)
	place.End = place.Start.Add(p.config.Slice)
	if place.Start.Before(from) {
		place.Start = from
	}
	place.Cursor = coupon.Cursor{At: place.Start}
	p.lag.Set(max(0, now.Add(place.Horizon).Sub(place.Start).Seconds()))
	return true, nil
}
