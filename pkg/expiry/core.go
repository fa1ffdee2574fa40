package expiry

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Settler is the store's transaction.
type Settler interface {
	ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(now time.Time) error) (time.Time, []coupon.Settlement, error)
}

// Result is what became of one trigger: a settlement, or the error that this trigger alone met.
type Result struct {
	coupon.Settlement
	Now time.Time // the database's clock of the decision
	Err error     // coupon.ErrIntegrity: cannot be helped; coupon.ErrContention: try again later
}

// Core is the one entrance to expiring for ladder, sweep and lazy triggers. Safe for concurrent use.
type Core struct {
	store   Settler
	guard   *clock.Guard
	metrics *metrics
	pulse   *pulse.Recorder // nil: nobody asks
	brakes  Brakes          // nil: nothing is ever paused
	traces  *telemetry.Traces
}

// Brakes tells what an operator has paused. The store itself moves nothing of that; who works for it asks so as not to work for
// nothing.
type Brakes interface {
	Brakes(ctx context.Context) (*coupon.Pauses, error)
}

// Heed gives who tells of the brakes. Called before the core is used.
func (c *Core) Heed(b Brakes) { c.brakes = b }

func (c *Core) pauses(ctx context.Context) (*coupon.Pauses, error) {
	if c.brakes == nil {
		return nil, nil //nolint:nilnil // no pauses
	}
	return c.brakes.Brakes(ctx) //nolint:wrapcheck // the store's, named
}

// Tell gives what the core tells of its work to. Called before the core is used.
func (c *Core) Tell(p *pulse.Recorder) { c.pulse = p }

// Trace gives who is told of settled triggers whose trace is sampled. Called before the core is used.
func (c *Core) Trace(t *telemetry.Traces) { c.traces = t }

// settled counts what a committed decision did; took is the time from before the decision to after the commit.
func (c *Core) settled(t coupon.Trigger, s coupon.Settlement, now time.Time, took time.Duration) {
	c.metrics.settled(t, s, now, took)
	if a := s.Decision.Action; s.Busy || a != coupon.Expire && a != coupon.Unlock {
		return
	}
	if t.Origin == coupon.OriginSweep {
		c.pulse.Count(pulse.CountRecovered, 1)
	}
	if t.Origin == coupon.OriginLadder && t.Attempt == 0 {
		wait := max(0, now.Sub(s.DueAt))
		c.pulse.Observe(pulse.DueWait, wait, false)
	}
	if s.Decision.Action == coupon.Expire {
		c.pulse.Count(pulse.CountExpired, 1)
		c.pulse.Late(max(0, now.Sub(s.DueAt)+took))
	}
}

// NewCore makes the core.
func NewCore(store Settler, guard *clock.Guard, reg prometheus.Registerer) *Core {
	return &Core{store: store, guard: guard, metrics: newMetrics(reg)}
}

// Settle gives one result per trigger, in order. When one row of a batch cannot be changed the batch is halved until
// it stands alone, so that it keeps nobody else. An error means that nothing can be done now (database away, clock
// guard); triggers settled before it are no-ops when they come again.
func (c *Core) Settle(ctx context.Context, ts []coupon.Trigger) ([]Result, error) {
	started := time.Now()
	now, settled, err := c.store.ExpireBatch(ctx, ts, c.guard.Begin())
	switch {
	case err == nil:
		out := make([]Result, len(settled))
		took := time.Since(started)
		for i, s := range settled {
			out[i] = Result{Settlement: s, Now: now}
			c.settled(ts[i], s, now, took)
		}
		c.metrics.batch.Observe(float64(len(ts)))
		return out, nil
	case errors.Is(err, coupon.ErrIntegrity) && len(ts) > 1:
		half := len(ts) / 2
		first, err := c.Settle(ctx, ts[:half])
		if err != nil {
			return nil, err
		}
		second, err := c.Settle(ctx, ts[half:])
		return append(first, second...), err
	case errors.Is(err, coupon.ErrIntegrity), errors.Is(err, coupon.ErrContention):
		out := make([]Result, len(ts))
		for i := range out {
			out[i].Err = err
		}
		return out, nil
	default:
		return nil, err
	}
}

// Clock reads the database's clock.
type Clock interface {
	Now(ctx context.Context) (time.Time, error)
}

// Ready reports whether anything could be settled now: the database answers and its clock is believed.
func (c *Core) Ready(ctx context.Context, source Clock) error {
	allow := c.guard.Begin()
	now, err := source.Now(ctx)
	if err != nil {
		return err //nolint:wrapcheck // the store's, named
	}
	return allow(now)
}
