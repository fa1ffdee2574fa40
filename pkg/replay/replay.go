// Package replay tells events of coupons once more, from their history: for a consumer that has lost some, or that came late.
//
// They have the ids and the bodies that they had first, so whoever keeps to the contract (drop repeats by source and id) takes up what it
// lacks and nothing else. A page is published and confirmed before the place moves: whoever goes on after a kill repeats a page at most.
// The outbox is not written, and no coupon is touched.
package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Kind is the name of the operation in the database.
const Kind = "events.replay"

// Config tunes a replay.
type Config struct {
	Page     int           // steps of history read at once; default 1000
	Rate     float64       // events a second at most; 0 is unbounded; default 500
	Lease    time.Duration // how long a dead process keeps others out; default 15s
	Patience time.Duration // how long a broker may refuse everything before it is given up; default 60s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Page: 1000, Rate: 500, Lease: 15 * time.Second, Patience: time.Minute}
}

// MaxRate is the highest rate, in events a second.
const MaxRate = 1_000_000

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Page < 1 || c.Page > 10_000 {
		errs = append(errs, fmt.Errorf("page: must be between 1 and 10000, got %d", c.Page))
	}
	if c.Rate != 0 && !(c.Rate >= 1 && c.Rate <= MaxRate) {
		errs = append(errs, fmt.Errorf("rate: must be between 1 and %d events a second, or 0 for no bound, got %g", MaxRate, c.Rate))
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

// Rows is what a replay asks of the database.
type Rows interface {
	ReplayPage(ctx context.Context, a *coupon.ReplayAsk, from coupon.ReplayPlace, limit int) ([]coupon.Replayed, coupon.ReplayPlace, error)
	ClaimOperation(ctx context.Context, owner, kind string, hash [32]byte, ask []byte, fresh bool, lease time.Duration) (coupon.Operation, error)
	MoveOperation(ctx context.Context, h coupon.OperationHold, progress []byte, done bool) error
}

// Publisher publishes with confirms: nil for each message that the broker has.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// ErrRunning: another process is at the same replay.
var ErrRunning = errors.New("the same replay is running in another process")

const (
	callLimit = 30 * time.Second // of one call to the database
	chunk     = 500              // events published at once
)

// Replay is one process's work on one replay.
type Replay struct {
	config    Config
	owner     string
	rows      Rows
	publisher Publisher // nil: for counting alone
	exchange  string
	limit     *rate.Limiter
	chunk     int
}

// New makes one; owner names this process and no other, past or present. Events go to the exchange.
func New(c Config, owner string, rows Rows, p Publisher, exchange string) (*Replay, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("replay config: %w", err)
	}
	r := &Replay{config: c, owner: owner, rows: rows, publisher: p, exchange: exchange, limit: rate.NewLimiter(rate.Inf, 0), chunk: chunk}
	if c.Rate > 0 {
		r.chunk = max(1, min(chunk, int(c.Rate)))
		r.limit = rate.NewLimiter(rate.Limit(c.Rate), r.chunk)
	}
	return r, nil
}

// Count walks over the history and publishes nothing: how many events there are, by their keys.
func (r *Replay) Count(ctx context.Context, a *coupon.ReplayAsk, tell func(coupon.ReplayPlace)) (coupon.ReplayPlace, map[string]int64, error) {
	counts := map[string]int64{}
	p := coupon.ReplayPlace{}
	for !p.Done {
		out, next, err := r.page(ctx, a, p)
		if err != nil {
			return p, counts, err
		}
		for i := range out {
			counts[out[i].Key]++
		}
		p = next
		tell(p)
	}
	return p, counts, nil
}

func (r *Replay) page(ctx context.Context, a *coupon.ReplayAsk, p coupon.ReplayPlace) ([]coupon.Replayed, coupon.ReplayPlace, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return r.rows.ReplayPage(ctx, a, p, r.config.Page)
}

// Claim takes the replay: one that was begun and not finished is gone on with, unless fresh.
func (r *Replay) Claim(ctx context.Context, a *coupon.ReplayAsk, fresh bool) (coupon.Operation, coupon.ReplayPlace, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var p coupon.ReplayPlace
	ask, err := json.Marshal(a)
	if err != nil {
		return coupon.Operation{}, p, fmt.Errorf("replay: %w", err)
	}
	op, err := r.rows.ClaimOperation(ctx, r.owner, Kind, a.Hash(), ask, fresh, r.config.Lease)
	switch {
	case err != nil:
		return op, p, err
	case !op.Held:
		return op, p, ErrRunning
	case len(op.Progress) == 0:
		return op, p, nil
	}
	if err := json.Unmarshal(op.Progress, &p); err != nil {
		return op, p, fmt.Errorf("replay: progress: %w", err)
	}
	return op, p, nil
}

// Run publishes from the place to the end, and tells of each page. However it ends, the database says how far it came. When ctx ends,
// the page in hand is seen to its end.
func (r *Replay) Run(ctx context.Context, a *coupon.ReplayAsk, op coupon.Operation, p coupon.ReplayPlace, tell func(coupon.ReplayPlace)) (coupon.ReplayPlace, error) {
	h := coupon.OperationHold{Owner: r.owner, ID: op.ID, Epoch: op.Epoch, Lease: r.config.Lease}
	var err error
	for err == nil && !p.Done {
		if err = r.step(ctx, h, a, &p); err == nil {
			tell(p)
		}
		if err == nil && ctx.Err() != nil && !p.Done {
			err = context.Cause(ctx)
		}
	}
	if errors.Is(err, coupon.ErrConflict) {
		return p, err // it is another's now
	}
	h.Lease = 0
	return p, errors.Join(err, r.move(context.WithoutCancel(ctx), h, p, p.Done))
}

func (r *Replay) step(ctx context.Context, h coupon.OperationHold, a *coupon.ReplayAsk, p *coupon.ReplayPlace) error {
	out, next, err := r.page(ctx, a, *p)
	if err != nil {
		return err
	}
	for len(out) > 0 {
		n := min(len(out), r.chunk)
		if err := r.limit.WaitN(ctx, n); err != nil {
			return fmt.Errorf("wait for the rate: %w", err)
		}
		if err := r.publish(ctx, h, *p, out[:n]); err != nil {
			return err
		}
		out = out[n:]
	}
	if err := r.move(context.WithoutCancel(ctx), h, next, false); err != nil {
		return err
	}
	*p = next
	return nil
}

// publish hands the events over until the broker has confirmed all, in order: what is refused is sent again with all behind it, for as
// long as patience lasts. The lease is kept meanwhile.
func (r *Replay) publish(ctx context.Context, h coupon.OperationHold, p coupon.ReplayPlace, out []coupon.Replayed) error {
	progress := time.Now()
	for {
		ms := make([]broker.Message, len(out))
		for i := range out {
			ms[i] = broker.Event(r.exchange, out[i].Key, out[i].ID, out[i].Trace, out[i].Body)
		}
		errs := r.publisher.Publish(context.WithoutCancel(ctx), ms)
		first := 0
		for first < len(errs) && errs[first] == nil {
			first++
		}
		if first == len(out) {
			return r.move(context.WithoutCancel(ctx), h, p, false)
		}
		if first > 0 {
			progress, out = time.Now(), out[first:]
		}
		if time.Since(progress) > r.config.Patience {
			return fmt.Errorf("publish %d events: %w", len(out), errs[first])
		}
		if err := r.move(context.WithoutCancel(ctx), h, p, false); err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, time.Second); err != nil {
			return err //nolint:wrapcheck // ctx's
		}
	}
}

func (r *Replay) move(ctx context.Context, h coupon.OperationHold, p coupon.ReplayPlace, done bool) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	progress, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("replay: progress: %w", err)
	}
	if err := r.rows.MoveOperation(ctx, h, progress, done); err != nil {
		return fmt.Errorf("store how far it came: %w", err)
	}
	return nil
}
