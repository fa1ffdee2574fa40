package notice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// CloseStore closes windows.
type CloseStore interface {
	CloseNotices(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error)
}

// Decide says what becomes of a closed window. It is pure, and called within a transaction, perhaps more than once.
type Decide func(now time.Time, c *coupon.Closed) coupon.Decided

// More adds to a decision.
type More func(now time.Time, c *coupon.Closed, d coupon.Decided) coupon.Decided

// With is the decision and what each of more adds to it; nil ones add nothing.
func (d Decide) With(more ...More) Decide {
	return func(now time.Time, c *coupon.Closed) coupon.Decided {
		out := d(now, c)
		for _, add := range more {
			if add != nil {
				out = add(now, c, out)
			}
		}
		return out
	}
}

const backoffMax = 10 * time.Second

// CloserDeps is what a closer works with.
type CloserDeps struct {
	Store   CloseStore
	Decide  Decide
	Ring    func(coupon.Channel) // told which channels have something to send
	Metrics *Metrics
	Log     *zap.Logger
}

// Closer closes due windows: their members are fixed and their notices recorded. One loop; any number of pods run one.
type Closer struct {
	CloserDeps
	config Config
	plans  []coupon.ClosePlan
	fault  *telemetry.Repeats
}

// NewCloser makes the loop.
func NewCloser(c Config, d CloserDeps) (*Closer, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("notice config: %w", err)
	}
	k := &Closer{CloserDeps: d, config: c, fault: telemetry.NewRepeats(d.Log, 0, nil)}
	for _, kind := range coupon.NoticeKinds() {
		k.plans = append(k.plans, coupon.ClosePlan{Kind: kind, Rules: c.Rules(), Limit: c.Batch, Decide: d.Decide})
	}
	return k, nil
}

// Run closes until ctx ends; what has been begun then is finished, within Config.Drain.
func (k *Closer) Run(ctx context.Context) error {
	work, release := lingering(ctx, k.config.Drain)
	defer release()
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = k.config.PollMin, max(backoffMax, k.config.PollMin)
	for ctx.Err() == nil {
		wait, err := k.step(work)
		switch {
		case err != nil && ctx.Err() != nil:
			k.Log.Warn("notices: stopped before a batch of windows was closed; another pod closes it", zap.Error(err))
		case err != nil:
			k.fault.Failed("notices: cannot close windows, trying again", err)
			wait = pause.NextBackOff()
		default:
			k.fault.Recovered("notices: windows are closed again")
			pause.Reset()
		}
		_ = lifecycle.Sleep(ctx, wait)
	}
	return nil
}

// step closes one batch of each kind and says how long to wait. A kind that fails keeps no other from its work.
func (k *Closer) step(ctx context.Context) (time.Duration, error) {
	wait := k.config.PollMax
	var errs []error
	for i := range k.plans {
		c, err := k.Store.CloseNotices(ctx, k.plans[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("close windows of kind %s: %w", k.plans[i].Kind, err))
			continue
		}
		k.told(&c)
		switch {
		case c.More:
			wait = 0
		case !c.Next.IsZero():
			wait = min(wait, max(c.Next.Sub(c.Now), k.config.PollMin))
		}
	}
	return wait, errors.Join(errs...)
}

func (k *Closer) told(c *coupon.Closing) {
	for reason, n := range c.Suppressed {
		k.Metrics.suppress(reason, n)
	}
	rung := make(map[coupon.Channel]bool)
	for i := range c.Pending {
		if ch := c.Pending[i].Channel; !rung[ch] {
			rung[ch] = true
			k.Ring(ch)
		}
	}
}
