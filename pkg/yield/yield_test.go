package yield_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/yield"
)

// outbox has an event as old as is said.
type outbox struct {
	oldest atomic.Int64
	asked  atomic.Int64
	fails  atomic.Bool
}

func (o *outbox) OutboxStats(_ context.Context, lane, limit int) (coupon.OutboxLane, error) {
	o.asked.Add(1)
	if lane != coupon.LaneEvent || limit != 1 {
		return coupon.OutboxLane{}, errors.New("another question was expected")
	}
	if o.fails.Load() {
		return coupon.OutboxLane{}, coupon.ErrUnavailable
	}
	return coupon.OutboxLane{Rows: 1, Oldest: time.Duration(o.oldest.Load())}, nil
}

// took is how long a handler of y's lets a batch wait.
func took(t *testing.T, y *yield.Yield) time.Duration {
	t.Helper()
	began := time.Now()
	var at time.Time
	out, err := y.Handler(func(context.Context, []broker.Delivery) ([]broker.Outcome, error) {
		at = time.Now()
		return []broker.Outcome{broker.Ack()}, nil
	})(t.Context(), make([]broker.Delivery, 1))
	require.NoError(t, err)
	require.Len(t, out, 1)
	return at.Sub(began)
}

// pass lets virtual time go by.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // in a bubble of synctest only

func standing(t *testing.T, c yield.Config, o *outbox) *yield.Yield {
	t.Helper()
	y, _ := watched(t, c, o)
	return y
}

// watched gives what the metric shows, too.
func watched(t *testing.T, c yield.Config, o *outbox) (y *yield.Yield, shown func() float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	y, err := yield.New(c, o, reg, nil)
	require.NoError(t, err)
	return y, func() float64 {
		families, err := reg.Gather()
		require.NoError(t, err)
		require.Len(t, families, 1)
		require.Equal(t, "lapse_standing_back", families[0].GetName())
		return families[0].GetMetric()[0].GetGauge().GetValue()
	}
}

func TestNobodyStandsBackWithoutNeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{}
		y := standing(t, yield.DefaultConfig(), o)
		for range 1000 {
			require.Zero(t, took(t, y))
		}
		require.EqualValues(t, 1, o.asked.Load(), "not for each batch")
		o.oldest.Store(int64(time.Second - 1))
		pass(time.Second)
		require.Zero(t, took(t, y))
		o.oldest.Store(int64(time.Hour))
		o.fails.Store(true)
		pass(time.Second)
		require.Zero(t, took(t, y)) // the handler finds out and says so
	})
}

func TestWhatCanWaitWaitsUntilEventsAreOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{}
		y, shown := watched(t, yield.DefaultConfig(), o)
		require.Zero(t, shown())
		o.oldest.Store(int64(time.Second))
		seen := make(chan float64, 1)
		time.AfterFunc(20*time.Second, func() { seen <- shown() })
		time.AfterFunc(40*time.Second, func() { o.oldest.Store(0) })
		waited := make(chan time.Duration, 1)
		go func(began time.Time) {
			_, _ = y.Handler(func(context.Context, []broker.Delivery) ([]broker.Outcome, error) {
				waited <- time.Since(began)
				return nil, nil
			})(t.Context(), nil)
		}(time.Now())
		require.InDelta(t, 40*time.Second, took(t, y), float64(time.Second))
		require.InDelta(t, 40*time.Second, <-waited, float64(time.Second))
		require.InDelta(t, 1, <-seen, 0)
		require.Zero(t, shown())
		require.LessOrEqual(t, o.asked.Load(), int64(40*4+2), "all callers together ask four times a second")
		require.Zero(t, took(t, y))
	})
}

// A backlog that does not end delays, and does not keep.
func TestStandingBackIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{}
		o.oldest.Store(int64(time.Hour))
		c := yield.Config{Behind: time.Second, AtMost: 30 * time.Second}
		y := standing(t, c, o)
		for range 3 {
			require.InDelta(t, c.AtMost, took(t, y), float64(time.Second))
			for worked := time.Now(); time.Since(worked) < c.AtMost-time.Second; {
				require.Zero(t, took(t, y))
				pass(100 * time.Millisecond)
			}
			pass(2 * time.Second)
		}
		require.Zero(t, took(t, standing(t, yield.Config{Behind: time.Second}, o)), "0: never")
	})
}

// A worker that stops finishes what it has in hand.
func TestNobodyStandsBackInAStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{}
		o.oldest.Store(int64(time.Hour))
		y := standing(t, yield.DefaultConfig(), o)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- y.Run(ctx) }()
		time.AfterFunc(10*time.Second, stop)
		require.Equal(t, 10*time.Second, took(t, y))
		require.NoError(t, <-ended)
		require.Zero(t, took(t, y))
	})
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, yield.DefaultConfig().Validate())
	err := yield.Config{Behind: time.Hour, AtMost: -1}.Validate()
	require.ErrorContains(t, err, "behind: must be between 100ms and 1m0s, got 1h0m0s")
	require.ErrorContains(t, err, "at_most: must be between 0s and 10m0s, got -1ns")
	_, err = yield.New(yield.Config{}, nil, nil, nil)
	require.ErrorContains(t, err, "yield config: behind")
}
