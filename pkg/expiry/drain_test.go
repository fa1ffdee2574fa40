package expiry_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
)

// ratings is the store of the drain rate.
type ratings struct {
	mu       sync.Mutex
	put      []coupon.DrainRate
	n, asked int64
	err      error
}

func (r *ratings) PutDrainRate(_ context.Context, perPod float64, measured bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put = append(r.put, coupon.DrainRate{PerPod: perPod, Measured: measured})
	return r.err
}

func (r *ratings) DueWithin(_ context.Context, within time.Duration, limit int) (int64, error) {
	r.asked++
	return min(r.n*int64(within/time.Minute), int64(limit)), r.err
}

func (r *ratings) DrainRate(context.Context) (coupon.DrainRate, error) {
	return coupon.DrainRate{PerPod: 10, Pods: 2}, r.err
}

// Only a backlog shows what a pod can do: quiet traffic must not pass for its limit.
func TestDrainIsMeasuredInABacklogOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &ratings{}
		c := expiry.DefaultConfig()
		c.Consumer.Batch = 10
		d := expiry.NewDrain(c, store, zap.NewNop())
		rows := table{now: start, rows: map[uint64]*coupon.Row{}}
		core := expiry.NewCore(&rows, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
		h := expiry.NewHandler(core, &route{}, codec(t), rate.NewLimiter(rate.Inf, 0), zap.NewNop()).WithDrain(d)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		next := uint64(0)
		handle := func(batches, size int) {
			for range batches {
				batch := make([]broker.Delivery, size)
				for i := range batch {
					next++
					rows.rows[next] = unused(next, start)
					batch[i].Body = codec(t).Trigger(coupon.Trigger{Kind: coupon.KindExpire, CouponID: next, At: start, ID: "v", Origin: coupon.OriginLadder})
				}
				_, err := h.Handle(ctx, batch)
				require.NoError(t, err)
			}
			<-time.After(5 * time.Second)
			synctest.Wait()
		}
		handle(100, 1)
		handle(5, 10)
		require.Equal(t, []coupon.DrainRate{{PerPod: 5000}}, store.put, "what is configured")
		handle(100, 10)
		require.Equal(t, coupon.DrainRate{PerPod: 200, Measured: true}, store.put[len(store.put)-1])
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestForecastGaugesAreReadSeldomAndAbsentWithoutADatabase(t *testing.T) {
	t.Parallel()
	now := start
	due := &ratings{n: 100}
	reg := prometheus.NewRegistry()
	reg.MustRegister(expiry.NewForecastGauges(due, func() time.Time { return now }))
	count := func() int {
		n, err := testutil.GatherAndCount(reg, "lapse_forecast_coupons", "lapse_drain_rate")
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 5, count())
	require.EqualValues(t, 4, due.asked)
	count()
	require.EqualValues(t, 4, due.asked, "cached")
	now = now.Add(10 * time.Second)
	due.n = 100_000
	require.Equal(t, 5, count())
	require.EqualValues(t, 5, due.asked, "a full window is not counted again within a longer one")
	now = now.Add(10 * time.Second)
	due.err = errors.New("away")
	require.Zero(t, count())
}
