package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	pairRate  = 300 // lock and redeem, a second
	apiConns  = 128
	drainRate = 2000 // coupons a second that a spike is drained at, at least, while a checkout goes on
	calmMost  = 20 * time.Second
	apiBefore = 3 * time.Second // of pairs that are not counted, so that connections and caches are warm
)

func (b *bench) apis() []subject {
	return []subject{
		{name: "calm", what: "publisher and expirer, nothing else to do", run: b.calm},
		{name: "spike", what: fmt.Sprintf("from the instant in which %d coupons end to the last of their events", 10*b.cfg.Size), run: b.busy},
	}
}

// checkout is what does pairs at a pace, whatever the answers: a pair that has to wait for the one before is late from when it was due.
type checkout struct {
	api    *client.Client
	first  uint64
	failed atomic.Int64

	mu   sync.Mutex
	took []time.Duration
	err  error // the first
}

func (b *bench) checkout(s *site, first uint64) (*checkout, error) {
	ports, err := s.Fleet().Ports(demo.Publisher)
	if err != nil {
		return nil, err
	}
	api, err := client.New(client.Config{
		URL: "http://127.0.0.1:" + strconv.Itoa(ports["api"]), Token: b.cfg.token, Attempts: 1,
		Transport: &http.Transport{MaxConnsPerHost: apiConns, MaxIdleConnsPerHost: apiConns, MaxIdleConns: apiConns},
	})
	if err != nil {
		return nil, fmt.Errorf("a client of the API: %w", err)
	}
	return &checkout{api: api, first: first}, nil
}

func (k *checkout) pair(ctx context.Context, i int) error {
	id := k.first + uint64(i)
	ask := client.Order{
		UserID: "user-" + strconv.FormatUint(id%100_000, 10), CouponIDs: []string{strconv.FormatUint(id, 10)}, LockFor: time.Hour,
	}
	order := "order-" + ask.CouponIDs[0]
	if _, err := k.api.Lock(ctx, order, ask); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := k.api.Redeem(ctx, order, ask); err != nil {
		return fmt.Errorf("redeem: %w", err)
	}
	return nil
}

// run does pairs from the one numbered from on, at most n, until stop ends; those due before counted are not counted.
func (k *checkout) run(ctx context.Context, n int, counted time.Time, stop <-chan struct{}) {
	var all sync.WaitGroup
	start := time.Now()
pairs:
	for i := range n {
		due := start.Add(time.Duration(i) * time.Second / pairRate)
		select {
		case <-stop:
			break pairs
		case <-ctx.Done():
			break pairs
		case <-time.After(time.Until(due)):
		}
		all.Go(func() {
			err := k.pair(ctx, i)
			took := time.Since(due)
			k.mu.Lock()
			defer k.mu.Unlock()
			switch {
			case err != nil:
				k.failed.Add(1)
				if k.err == nil {
					k.err = err
				}
			case !due.Before(counted):
				k.took = append(k.took, took)
			}
		})
	}
	all.Wait()
}

func (k *checkout) metrics() metrics {
	slices.Sort(k.took)
	return metrics{
		"pairs": float64(len(k.took)), "errors": float64(k.failed.Load()),
		"pair_p50_ms": percentile(k.took, 500), "pair_p99_ms": percentile(k.took, 990), "pair_p999_ms": percentile(k.took, 999),
	}
}

// calm measures the checkout alone.
func (b *bench) calm(ctx context.Context) (metrics, error) {
	s, err := b.fresh(ctx, "api", twoWorkers()...)
	if err != nil {
		return nil, err
	}
	span := min(calmMost, b.cfg.Steady) + apiBefore
	n := int(math.Ceil(span.Seconds() * pairRate))
	first, err := s.stock(ctx, n)
	if err != nil {
		return nil, err
	}
	k, err := b.checkout(s, first)
	if err != nil {
		return nil, err
	}
	defer k.api.Close()
	k.run(ctx, n, time.Now().Add(apiBefore), nil)
	if k.err != nil {
		b.view.step("api calm: %s", k.err)
	}
	return k.metrics(), ctx.Err()
}

// stock plants coupons that can be used, for the checkout.
func (s *site) stock(ctx context.Context, n int) (uint64, error) {
	due, err := s.soon(ctx, 12*time.Hour)
	if err != nil {
		return 0, err
	}
	c, err := s.plant(ctx, n, pace{}, due)
	return c.first, err
}

// busy measures it while a spike drains.
func (b *bench) busy(ctx context.Context) (m metrics, err error) {
	s, err := b.fresh(ctx, "api", twoWorkers()...)
	if err != nil {
		return nil, err
	}
	spike := 10 * b.cfg.Size
	n := pairRate * (spike/drainRate + 15)
	first, err := s.stock(ctx, n)
	if err != nil {
		return nil, err
	}
	e, err := listen(s.stack.AMQPURL.Reveal(), s.Ladder().Events())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	c, err := b.sow(ctx, s, spike, pace{})
	if err != nil {
		return nil, err
	}
	ahead, err := s.ahead(ctx)
	if err != nil {
		return nil, err
	}
	e.expect(c.first, c.n)
	k, err := b.checkout(s, first)
	if err != nil {
		return nil, err
	}
	defer k.api.Close()
	due := c.due.Add(-ahead)
	if err := lifecycle.Sleep(ctx, time.Until(due.Add(-apiBefore))); err != nil {
		return nil, err
	}
	drained, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		k.run(ctx, n, due, drained)
	}()
	err = e.wait(ctx, c.due, s.Fleet().Ended)
	close(drained)
	<-over
	if err != nil {
		return nil, err
	}
	if k.err != nil {
		b.view.step("api spike: %s", k.err)
	}
	if m, err = b.weigh(ctx, s, e, c); err != nil {
		return nil, err
	}
	for name, v := range k.metrics() {
		m[name] = v
	}
	m["rss_publisher_mib"], err = s.peak(demo.Publisher)
	return m, err
}
