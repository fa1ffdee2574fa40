// Package rebuild publishes the triggers of all coupons again from the database, for a broker that has lost them: the
// unlock of every lock, then the expiry of every unused coupon within the horizon.
//
// The row is the schedule, so nothing but rows is needed, and a trigger that is out already costs a no-op. A page is
// read by keyset, published, confirmed, and only then the place moves: whoever goes on after a kill repeats a page at
// most. The place is a row with owner and lease, so that two do not run at once.
//
// What has been overdue for longer than the grace is the sweep's and is passed over; what came due since is published
// as due now. What ends beyond the horizon is the planner's: it walks on from its frontier, and the rebuild covers all
// that lies before it.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Config tunes a rebuild.
type Config struct {
	Page     int           // triggers published and confirmed at once; default 4000
	Rate     float64       // triggers a second at most; 0, the default, is unbounded
	Lease    time.Duration // how long a dead process keeps others out; default 15s
	Patience time.Duration // how long a broker may refuse everything before it is given up; default 60s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Page: 4000, Lease: 15 * time.Second, Patience: time.Minute}
}

// MaxRate is the highest rate, in triggers a second.
const MaxRate = 1_000_000

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Page < 1 || c.Page > 10_000 {
		errs = append(errs, fmt.Errorf("page: must be between 1 and 10000, got %d", c.Page))
	}
	if c.Rate != 0 && !(c.Rate >= 1 && c.Rate <= MaxRate) {
		errs = append(errs, fmt.Errorf("rate: must be between 1 and %d triggers a second, or 0 for no bound, got %g", MaxRate, c.Rate))
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"lease", c.Lease}, {"patience", c.Patience}} {
		if f.d < time.Second || f.d > time.Hour {
			errs = append(errs, fmt.Errorf("%s: must be between 1s and 1h, got %s", f.name, f.d))
		}
	}
	return errors.Join(errs...)
}

// Rows is what a rebuild asks of the database.
type Rows interface {
	ClaimRebuild(ctx context.Context, owner string, ask coupon.RebuildAsk, lease time.Duration) (coupon.RebuildClaim, error)
	MoveRebuild(ctx context.Context, owner string, p coupon.RebuildPlace, lease time.Duration) (held bool, err error)
	RebuildPage(ctx context.Context, p coupon.RebuildPlace, limit int) ([]coupon.Timed, coupon.Cursor, time.Time, error)
}

// Deliverer is the delay mechanism: deliver these triggers at their instants; nil for each that it has taken over.
type Deliverer interface {
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
}

// ErrRunning: another process is at it. ErrLost: another process has taken over.
var (
	ErrRunning = errors.New("another rebuild is running")
	ErrLost    = errors.New("another process has taken the rebuild over")
)

// Rebuild is one process's attempt at the installation's one rebuild.
type Rebuild struct {
	config  Config
	owner   string
	rows    Rows
	deliver Deliverer
	log     *zap.Logger
	limit   *rate.Limiter
	page    int
}

// New makes one; owner names this process and no other, past or present.
func New(c Config, owner string, rows Rows, d Deliverer, log *zap.Logger) *Rebuild {
	r := &Rebuild{config: c, owner: owner, rows: rows, deliver: d, log: log, page: c.Page, limit: rate.NewLimiter(rate.Inf, 0)}
	if c.Rate > 0 {
		// A page lasts a second at most, or the lease would run out over it.
		r.page = max(1, min(c.Page, int(c.Rate)))
		r.limit = rate.NewLimiter(rate.Limit(c.Rate), r.page)
	}
	return r
}

const callLimit = 30 * time.Second // of one call to the database

// Claim takes the rebuild. The lease of a process that was killed is waited for; ErrRunning if its holder lives.
func (r *Rebuild) Claim(ctx context.Context, ask coupon.RebuildAsk) (coupon.RebuildClaim, error) {
	var moved time.Time
	for {
		c, err := r.claim(ctx, ask)
		if err != nil || c.Held {
			return c, err
		}
		if !moved.IsZero() && !c.Moved.Equal(moved) {
			return c, ErrRunning
		}
		moved = c.Moved
		// Short, so that a living holder is seen to move.
		if err := lifecycle.Sleep(ctx, min(c.Left+time.Millisecond, time.Second)); err != nil {
			return c, err
		}
	}
}

func (r *Rebuild) claim(ctx context.Context, ask coupon.RebuildAsk) (coupon.RebuildClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return r.rows.ClaimRebuild(ctx, r.owner, ask, r.config.Lease)
}

// Run publishes from the claimed place to the end, and tells of each page. However it ends, the place says how far it
// came, and the claim is given back. When ctx ends, the page in hand is seen to its end.
func (r *Rebuild) Run(ctx context.Context, p coupon.RebuildPlace, tell func(coupon.RebuildPlace)) (coupon.RebuildPlace, error) {
	var err error
	for err == nil && !p.Done {
		if err = r.step(ctx, &p); err == nil {
			tell(p)
		}
	}
	if !errors.Is(err, ErrLost) {
		err = errors.Join(err, r.move(context.WithoutCancel(ctx), p, 0))
	}
	return p, err
}

// step publishes a page, or goes from locks to the unused, or ends it.
func (r *Rebuild) step(ctx context.Context, p *coupon.RebuildPlace) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// Waited for before the page is read: its delays are computed from the clock of the reading.
	if err := r.limit.WaitN(ctx, r.page); err != nil {
		return fmt.Errorf("wait for the rate: %w", err)
	}
	ts, next, now, err := r.read(ctx, *p)
	if err != nil {
		return fmt.Errorf("read a page: %w", err)
	}
	read := time.Now()
	to := *p
	if len(ts) > 0 {
		if err := r.publish(ctx, *p, now, read, ts); err != nil {
			return err
		}
		to.Cursor = next
		if to.Unused {
			to.Expires += int64(len(ts))
		} else {
			to.Unlocks += int64(len(ts))
		}
	}
	if len(ts) < r.page {
		to.Cursor, to.Unused, to.Done = coupon.Cursor{}, true, p.Unused
	}
	if to.Cursor.At.Before(to.Since) {
		to.Cursor = coupon.Cursor{At: to.Since}
	}
	if err := r.move(context.WithoutCancel(ctx), to, r.config.Lease); err != nil {
		return err
	}
	*p = to
	return nil
}

func (r *Rebuild) read(ctx context.Context, p coupon.RebuildPlace) ([]coupon.Timed, coupon.Cursor, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return r.rows.RebuildPage(ctx, p, r.page)
}

func (r *Rebuild) move(ctx context.Context, p coupon.RebuildPlace, lease time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	held, err := r.rows.MoveRebuild(ctx, r.owner, p, lease)
	switch {
	case err != nil:
		return fmt.Errorf("store the place: %w", err)
	case !held:
		return ErrLost
	default:
		return nil
	}
}

// publish hands the triggers over until the broker has confirmed all. Those that it refuses are sent again, for as long
// as patience lasts without one going through; the lease is kept meanwhile.
func (r *Rebuild) publish(ctx context.Context, p coupon.RebuildPlace, now, read time.Time, ts []coupon.Timed) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 2*time.Second
	progress, kept, told := time.Now(), time.Now(), false
	for {
		// The page in hand is finished also when ctx ends: its messages are on their way.
		crash.Before(crash.Publish, "rebuild")
		errs := r.deliver.Deliver(context.WithoutCancel(ctx), now.Add(time.Since(read)), ts)
		crash.After(crash.Publish, "rebuild")
		var left []coupon.Timed
		var first error
		for i, err := range errs {
			if err != nil {
				left = append(left, ts[i])
				if first == nil {
					first = err
				}
			}
		}
		if len(left) == 0 {
			return nil
		}
		if len(left) < len(ts) {
			progress, ts = time.Now(), left
		}
		if time.Since(progress) > r.config.Patience {
			return fmt.Errorf("publish %d triggers: %w", len(ts), first)
		}
		if !told {
			told = true
			r.log.Warn("the broker does not take triggers; trying again", zap.Error(first))
		}
		if err := lifecycle.Sleep(ctx, wait.NextBackOff()); err != nil {
			return err
		}
		if time.Since(kept) > r.config.Lease/3 {
			if err := r.move(ctx, p, r.config.Lease); err != nil {
				return err
			}
			kept = time.Now()
		}
	}
}
