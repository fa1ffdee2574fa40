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
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/operation"
)

// Kind is the name of the operation in the database.
const Kind = "rebuild"

// resumable is how long after its last step an unfinished rebuild is gone on with. What it published may be lost again
// since, and nobody would remember: later, a new one begins.
const resumable = time.Hour

// Config tunes a rebuild.
type Config struct {
	operation.Config // default: unbounded, 15s

	Page     int           // triggers published and confirmed at once; default 4000
	Patience time.Duration // how long a broker may refuse everything before it is given up; default 60s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Config: operation.DefaultConfig(), Page: 4000, Patience: time.Minute}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	return errors.Join(operation.Between("page", c.Page, 1, 10_000), c.Config.Validate(),
		operation.Between("patience", c.Patience, time.Second, time.Hour))
}

// Rows is what a rebuild asks of the database.
type Rows interface {
	operation.Rows
	RebuildReach(ctx context.Context) (now, until time.Time, err error)
	RebuildPage(ctx context.Context, p coupon.RebuildPlace, limit int) ([]coupon.Timed, coupon.Cursor, time.Time, error)
}

// Deliverer is the delay mechanism: deliver these triggers at their instants; nil for each that it has taken over.
type Deliverer interface {
	Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error
}

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

// New makes one; owner names this process and no other, past or present. d may be nil for Peek alone.
func New(c Config, owner string, rows Rows, d Deliverer, log *zap.Logger) *Rebuild {
	r := &Rebuild{config: c, owner: owner, rows: rows, deliver: d, log: log}
	r.limit, r.page = c.Pace(c.Page)
	return r
}

// terms are kept of an ask.
type terms struct {
	Target string `json:"target"`
}

// operationOf is one for the whole installation, whatever is asked for: an unfinished one to another target is not gone on with.
func operationOf(ask coupon.RebuildAsk) operation.Ask {
	return operation.Ask{Kind: Kind, Terms: terms{ask.Target}, Fresh: ask.FromScratch, GoesOn: func(op coupon.Operation) bool {
		var t terms
		return json.Unmarshal(op.Ask, &t) == nil && t.Target == ask.Target && op.Idle < resumable
	}}
}

// Peek says where Run would begin, and takes nothing.
func (r *Rebuild) Peek(ctx context.Context, ask coupon.RebuildAsk) (coupon.Operation, coupon.RebuildPlace, error) {
	var p coupon.RebuildPlace
	op, resumed, err := operation.Peek(ctx, r.rows, operationOf(ask), &p)
	if err != nil {
		return op, p, err
	}
	now, err := r.reach(ctx, ask, &p)
	if op.Resumed = resumed; !resumed {
		op.Created = now
	}
	return op, p, err
}

// Claim takes the rebuild, and says where it stands: an unfinished one to the same target that stopped within the last hour goes on,
// else a new one begins. The lease of a process that was killed is waited for; operation.ErrRunning if its holder lives.
func (r *Rebuild) Claim(ctx context.Context, ask coupon.RebuildAsk) (*operation.Work, coupon.RebuildPlace, error) {
	var p coupon.RebuildPlace
	w, err := operation.Claim(ctx, r.rows, r.config.Config, r.owner, operationOf(ask), &p)
	if err != nil {
		return nil, p, err
	}
	now, err := r.reach(ctx, ask, &p)
	if !w.Resumed {
		w.Created = now
	}
	return w, p, err
}

// reach fills in what depends on the instant.
func (r *Rebuild) reach(ctx context.Context, ask coupon.RebuildAsk, p *coupon.RebuildPlace) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	now, until, err := r.rows.RebuildReach(ctx)
	p.Until, p.Since = until, now.Add(-ask.Grace)
	return now, err
}

// Run publishes from the claimed place to the end, and tells of each page. However it ends, the place says how far it
// came, and the claim is given back. When ctx ends, the page in hand is seen to its end.
func (r *Rebuild) Run(ctx context.Context, w *operation.Work, p coupon.RebuildPlace, tell func(coupon.RebuildPlace)) (coupon.RebuildPlace, error) {
	var err error
	for err == nil && !p.Done {
		if err = r.step(ctx, w, &p); err == nil {
			tell(p)
		}
	}
	return p, w.End(ctx, p, p.Done, err)
}

// step publishes a page, or goes from locks to the unused, or ends it.
func (r *Rebuild) step(ctx context.Context, w *operation.Work, p *coupon.RebuildPlace) error {
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
		if err := r.publish(ctx, w, *p, now, read, ts); err != nil {
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
	if err := w.Keep(ctx, to); err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	*p = to
	return nil
}

func (r *Rebuild) read(ctx context.Context, p coupon.RebuildPlace) ([]coupon.Timed, coupon.Cursor, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	return r.rows.RebuildPage(ctx, p, r.page)
}

// publish hands the triggers over until the broker has confirmed all. Those that it refuses are sent again, for as long
// as patience lasts without one going through; the lease is kept meanwhile.
func (r *Rebuild) publish(ctx context.Context, w *operation.Work, p coupon.RebuildPlace, now, read time.Time, ts []coupon.Timed) error {
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
			if err := w.Keep(ctx, p); err != nil {
				return err //nolint:wrapcheck // says what it does
			}
			kept = time.Now()
		}
	}
}
