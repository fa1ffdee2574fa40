// Package replay tells events of coupons once more, from their history: for a consumer that has lost some, or that came late.
//
// They have the ids and the bodies that they had first, so whoever keeps to the contract (drop repeats by source and id) takes up what it
// lacks and nothing else. A page is published and confirmed before the place moves: whoever goes on after a kill repeats a page at most.
// The outbox is not written, and no coupon is touched.
package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/operation"
)

// Kind is the name of the operation in the database.
const Kind = "events.replay"

// Config tunes a replay.
type Config struct {
	operation.Config // default: 500 events a second, 15s

	Page     int           // steps of history read at once; default 1000
	Patience time.Duration // how long a broker may refuse everything before it is given up; default 60s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	c := Config{Config: operation.DefaultConfig(), Page: 1000, Patience: time.Minute}
	c.Rate = 500
	return c
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	return errors.Join(operation.Between("page", c.Page, 1, 10_000), c.Config.Validate(),
		operation.Between("patience", c.Patience, time.Second, time.Hour))
}

// Rows is what a replay asks of the database.
type Rows interface {
	operation.Rows
	ReplayPage(ctx context.Context, a *coupon.ReplayAsk, from coupon.ReplayPlace, limit int) ([]coupon.Replayed, coupon.ReplayPlace, error)
}

// Publisher publishes with confirms: nil for each message that the broker has.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

const chunk = 500 // events published at once

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
	r := &Replay{config: c, owner: owner, rows: rows, publisher: p, exchange: exchange}
	r.limit, r.chunk = c.Pace(chunk)
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
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	return r.rows.ReplayPage(ctx, a, p, r.config.Page)
}

// Claim takes the replay, and says where it stands: one that was begun and not finished is gone on with, unless fresh.
func (r *Replay) Claim(ctx context.Context, a *coupon.ReplayAsk, fresh bool) (*operation.Work, coupon.ReplayPlace, error) {
	var p coupon.ReplayPlace
	w, err := operation.Claim(ctx, r.rows, r.config.Config, r.owner, operation.Ask{Kind: Kind, Hash: a.Hash(), Terms: a, Fresh: fresh}, &p)
	return w, p, err
}

// Run publishes from the place to the end, and tells of each page. However it ends, the database says how far it came. When ctx ends,
// the page in hand is seen to its end.
func (r *Replay) Run(ctx context.Context, a *coupon.ReplayAsk, w *operation.Work, p coupon.ReplayPlace, tell func(coupon.ReplayPlace)) (coupon.ReplayPlace, error) {
	var err error
	for err == nil && !p.Done {
		if err = r.step(ctx, w, a, &p); err == nil {
			tell(p)
		}
		if err == nil && ctx.Err() != nil && !p.Done {
			err = context.Cause(ctx)
		}
	}
	return p, w.End(ctx, p, p.Done, err)
}

func (r *Replay) step(ctx context.Context, w *operation.Work, a *coupon.ReplayAsk, p *coupon.ReplayPlace) error {
	out, next, err := r.page(ctx, a, *p)
	if err != nil {
		return err
	}
	for len(out) > 0 {
		n := min(len(out), r.chunk)
		if err := r.limit.WaitN(ctx, n); err != nil {
			return fmt.Errorf("wait for the rate: %w", err)
		}
		if err := r.publish(ctx, w, *p, out[:n]); err != nil {
			return err
		}
		out = out[n:]
	}
	if err := w.Keep(ctx, next); err != nil {
		return err
	}
	*p = next
	return nil
}

// publish hands the events over until the broker has confirmed all, in order: what is refused is sent again with all behind it, for as
// long as patience lasts. The lease is kept meanwhile.
func (r *Replay) publish(ctx context.Context, w *operation.Work, p coupon.ReplayPlace, out []coupon.Replayed) error {
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
			return w.Keep(ctx, p)
		}
		if first > 0 {
			progress, out = time.Now(), out[first:]
		}
		if time.Since(progress) > r.config.Patience {
			return fmt.Errorf("publish %d events: %w", len(out), errs[first])
		}
		if err := w.Keep(ctx, p); err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, time.Second); err != nil {
			return err //nolint:wrapcheck // ctx's
		}
	}
}
