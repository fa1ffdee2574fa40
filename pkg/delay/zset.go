package delay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Clock is the database's clock.
type Clock func(ctx context.Context) (time.Time, error)

// ZSetDeps are what a ZSet works with.
type ZSetDeps struct {
	Prefix     string // of the installation: begins every key
	Exchange   string // that due triggers are published to
	Publisher  Publisher
	Clock      Clock
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// ZSet keeps triggers in sorted sets of a Redis server. Movers (Run) claim what is due for a lease, publish it with confirms,
// and only then remove it: a mover that dies leaves claims that run out, and another claims them again.
//
// The server accepts a trigger before Deliver answers. What becomes of it when the server's machine fails is a matter of its
// appendfsync; the sweep settles what is lost.
type ZSet struct {
	config  ZSetConfig
	deps    ZSetDeps
	client  *redis.Client
	shards  [Shards]shard
	metrics *metrics
	log     *zap.Logger

	ahead atomic.Pointer[time.Duration] // of the database's clock to the server's; nil: not known yet
	wakes []chan struct{}               // of each mover: something near was handed over

	mu              sync.Mutex
	err             error // of the last answer; errUnheard before the first
	waiting, flight [Shards]int64
}

var errUnheard = errors.New("redis has not answered yet")

// NewZSet makes the mechanism. Nothing is connected yet. Run closes the connections when it ends; who does not run it calls Close.
func NewZSet(c ZSetConfig, d ZSetDeps) (*ZSet, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	options, err := c.options()
	if err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = zap.NewNop()
	}
	z := &ZSet{
		config: c, deps: d, client: redis.NewClient(options), shards: shardsOf(d.Prefix), metrics: newMetrics(d.Registerer, "zset"),
		log: d.Log.Named("zset"), err: errUnheard, wakes: make([]chan struct{}, c.Movers),
	}
	for i := range z.wakes {
		z.wakes[i] = make(chan struct{}, 1)
	}
	return z, nil
}

// Close closes the connections.
func (z *ZSet) Close() error { return z.client.Close() } //nolint:wrapcheck // the client's

// Ready says nil while Redis answers.
func (z *ZSet) Ready() error {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.err
}

// heard notes what the last call came to.
func (z *ZSet) heard(err error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.err = err
	if err == nil {
		z.metrics.up.Set(1)
	} else {
		z.metrics.up.Set(0)
	}
}

// Deliver writes the triggers to their shards. Nil: Redis has them. Every call of Redis has its deadline, so that Redis being
// away costs the caller that much and no more.
func (z *ZSet) Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error {
	errs := make([]error, len(ts))
	var of [Shards][]int
	for i := range ts {
		s := coupon.Partition(ts[i].CouponID) % Shards
		of[s] = append(of[s], i)
	}
	var group sync.WaitGroup
	for s := range of {
		if len(of[s]) > 0 {
			group.Go(func() { z.deliver(ctx, now, s, ts, of[s], errs) })
		}
	}
	group.Wait()
	z.metrics.answered(errs)
	return errs
}

// deliver writes those of one shard, in steps. After one that failed the rest is not tried.
func (z *ZSet) deliver(ctx context.Context, now time.Time, s int, ts []coupon.Timed, of []int, errs []error) {
	var failed error
	near := false
	for len(of) > 0 {
		step := of[:min(len(of), maxClaim)]
		of = of[len(step):]
		if failed == nil {
			failed = z.write(ctx, s, ts, step)
		}
		for _, i := range step {
			errs[i] = failed
			near = near || ts[i].At.Sub(now) < z.config.Poll
		}
	}
	if near && failed == nil {
		select {
		case z.wakes[s%len(z.wakes)] <- struct{}{}:
		default:
		}
	}
}

func (z *ZSet) write(ctx context.Context, s int, ts []coupon.Timed, of []int) error {
	ctx, cancel := context.WithTimeout(ctx, z.config.Timeout)
	defer cancel()
	bodies := make([]any, 0, 2*len(of))
	instants := make([]redis.Z, 0, len(of))
	for _, i := range of {
		member := memberOf(&ts[i])
		bodies = append(bodies, member, encode(&ts[i]))
		instants = append(instants, redis.Z{Score: float64(ceilMilli(ts[i].At)), Member: member})
	}
	_, err := z.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, z.shards[s].bodies, bodies...)
		p.ZAdd(ctx, z.shards[s].waiting, instants...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("hand over to redis: %w", err)
	}
	return nil
}

// ceilMilli is the instant in milliseconds, never before it.
func ceilMilli(t time.Time) int64 {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	return ms
}

// Run moves what comes due until ctx ends, finishes what is in hand, and closes the connections.
func (z *ZSet) Run(ctx context.Context) error {
	defer func() { _ = z.Close() }() // nothing is written any more
	var movers sync.WaitGroup
	for i := range z.config.Movers {
		m := &mover{ZSet: z, wake: z.wakes[i], troubles: telemetry.NewRepeats(z.log, 0, time.Now)}
		for s := i; s < Shards; s += z.config.Movers {
			m.own = append(m.own, s)
		}
		movers.Go(func() { m.run(ctx) })
	}
	movers.Wait()
	z.heard(errUnheard)
	return nil
}

// measure learns how far the database's clock is ahead of the server's, rather too little: an estimate of the database's clock
// that is behind it makes nothing early.
func (z *ZSet) measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, z.config.Timeout)
	defer cancel()
	var ahead time.Duration
	if z.deps.Clock != nil {
		db, err := z.deps.Clock(ctx)
		if err != nil {
			return fmt.Errorf("ask the database for the time: %w", err)
		}
		server, err := z.client.Time(ctx).Result()
		if err != nil {
			return fmt.Errorf("ask redis for the time: %w", err)
		}
		ahead = db.Sub(server)
	}
	z.ahead.Store(&ahead)
	return nil
}

// saw notes how many a shard holds.
func (z *ZSet) saw(s int, waiting, flight int64) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.waiting[s], z.flight[s] = waiting, flight
	var w, f int64
	for i := range Shards {
		w, f = w+z.waiting[i], f+z.flight[i]
	}
	z.metrics.waiting.Set(float64(w))
	z.metrics.flight.Set(float64(f))
}

// Forget removes everything that waits, for an installation that is taken away.
func (z *ZSet) Forget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, z.config.Timeout)
	defer cancel()
	for _, s := range z.shards {
		if err := z.client.Unlink(ctx, s.keys()...).Err(); err != nil {
			return fmt.Errorf("remove what waits: %w", err)
		}
	}
	return nil
}

// Held counts what waits and what is being moved.
func (z *ZSet) Held(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, z.config.Timeout)
	defer cancel()
	for _, s := range z.shards {
		for _, key := range []string{s.waiting, s.flight} {
			some, err := z.client.ZCard(ctx, key).Result()
			if err != nil {
				return 0, fmt.Errorf("count what waits: %w", err)
			}
			n += some
		}
	}
	return n, nil
}

// look says in the log what of the server's settings loses triggers; those who may not ask are not told.
func (z *ZSet) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, z.config.Timeout)
	defer cancel()
	info := z.client.InfoMap(ctx, "memory", "persistence").Val()
	if policy := info["Memory"]["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		z.log.Warn("Redis evicts keys when it is full, and triggers with them: set maxmemory-policy to noeviction", zap.String("maxmemory_policy", policy))
	}
	if info["Persistence"]["aof_enabled"] == "0" {
		z.log.Warn("Redis keeps no append-only file: triggers are lost when it ends, and left to the sweep")
	}
}
