// Package yield lets what can wait stand back behind what cannot: statistics and notices are gathered when no event waits in the outbox to be
// told. A broker on which a million coupons end at once has work enough, and each message that goes out to be counted meanwhile makes the
// next expiry later.
//
// The age of the outbox's oldest event is the sign: it rises when broker or relay are at their limit, and falls when the last event is out. Whoever
// stands back does so for Config.AtMost in a row and then works for as long, whatever the sign says, so that a backlog without end delays notices, and
// does not keep them.
package yield

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	lookEvery  = 250 * time.Millisecond // all callers together
	lookWithin = 2 * time.Second
)

// Config says when to stand back, and for how long.
type Config struct {
	Behind time.Duration `koanf:"behind"`  // the age of the oldest event in the outbox from which on others stand back; default 1s
	AtMost time.Duration `koanf:"at_most"` // in a row; 0: never; default 1m, well below the age at which a heartbeat that comes by the notices is missed
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config { return Config{Behind: time.Second, AtMost: time.Minute} }

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Behind < 100*time.Millisecond || c.Behind > time.Minute {
		errs = append(errs, fmt.Errorf("behind: must be between 100ms and 1m0s, got %s", c.Behind))
	}
	if c.AtMost < 0 || c.AtMost > 10*time.Minute {
		errs = append(errs, fmt.Errorf("at_most: must be between 0s and 10m0s, got %s", c.AtMost))
	}
	return errors.Join(errs...)
}

// Store tells how old the oldest row of an outbox lane is; its cost is bounded by limit.
type Store interface {
	OutboxStats(ctx context.Context, lane, limit int) (coupon.OutboxLane, error)
}

// Yield stands back. Safe for concurrent use.
type Yield struct {
	config Config
	store  Store
	now    func() time.Time
	every  time.Duration
	ended  chan struct{}
	shown  prometheus.Gauge

	mu     sync.Mutex
	looked time.Time // when the answer below was had
	behind bool
	since  time.Time // since when those who ask have been standing back; zero: they do not
	free   time.Time // until then nobody does
}

// New makes one, with its metric on reg. now may be nil for time.Now.
func New(c Config, s Store, reg prometheus.Registerer, now func() time.Time) (*Yield, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("yield config: %w", err)
	}
	if now == nil {
		now = time.Now
	}
	shown := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lapse_standing_back", Help: "1 while statistics or notices wait for the events in the outbox to be told.",
	})
	reg.MustRegister(shown)
	return &Yield{config: c, store: s, now: now, every: lookEvery, ended: make(chan struct{}), shown: shown}, nil
}

// Run waits for ctx to end; from then on nobody stands back, so that what is in hand can be finished. Run it once, and end it before those who use
// Handler.
func (y *Yield) Run(ctx context.Context) error {
	<-ctx.Done()
	close(y.ended)
	return nil
}

// Handler gives a handler that stands back before it lets h see a batch.
func (y *Yield) Handler(h broker.Handler) broker.Handler {
	return func(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		y.wait(ctx)
		return h(ctx, batch)
	}
}

// wait returns when there is no reason to stand back, or no more time for it.
func (y *Yield) wait(ctx context.Context) {
	defer y.shown.Set(0)
	for y.must(ctx) {
		y.shown.Set(1)
		t := time.NewTimer(y.every)
		select {
		case <-t.C:
		case <-y.ended:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// must says whether to stand back now. The database is asked by one caller at a time, and not more often than every so often.
func (y *Yield) must(ctx context.Context) bool {
	select {
	case <-y.ended:
		return false
	default:
	}
	if ctx.Err() != nil || y.config.AtMost == 0 {
		return false
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	now := y.now()
	if now.Before(y.free) {
		return false
	}
	if now.Sub(y.looked) >= y.every {
		y.behind, y.looked = y.look(ctx), now
	}
	switch {
	case !y.behind:
		y.since = time.Time{}
	case y.since.IsZero():
		y.since = now
	case now.Sub(y.since) >= y.config.AtMost:
		y.since, y.free = time.Time{}, now.Add(y.config.AtMost)
		return false
	}
	return y.behind
}

// look asks the database. That it does not answer is for the handler to find and to tell.
func (y *Yield) look(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	waiting, err := y.store.OutboxStats(ctx, coupon.LaneEvent, 1)
	return err == nil && waiting.Oldest >= y.config.Behind
}
