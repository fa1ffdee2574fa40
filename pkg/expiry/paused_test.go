package expiry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
)

// brakes are what an operator has paused.
type brakes struct{ on []coupon.Pause }

func (b *brakes) Brakes(context.Context) (*coupon.Pauses, error) { return coupon.NewPauses(b.on), nil }

func (b *brakes) put(scope coupon.PauseScope, id string, since time.Time) {
	b.on = []coupon.Pause{{Brake: coupon.BrakeExpiry, Scope: scope, ID: id, Since: since}}
}

// rows gives how many rows the sweep has looked at since it was last asked.
func (s *shelf) looked(before *int) int {
	n := s.calls - *before
	*before = s.calls
	return n
}

func braked(sh *shelf, b *brakes, c expiry.SweepConfig) *expiry.Sweeper {
	core := expiry.NewCore(sh, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	core.Heed(b)
	return expiry.NewSweeper(c, sh, core, sh.heard, rate.NewLimiter(rate.Inf, 0), zap.NewNop())
}

// Rows of a paused template are looked at once, then gone past in one step, for a while; what comes behind them is not.
func TestSweepGoesPastWhatIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start, paused: map[uint64]bool{}}}
		fill(sh, 1000, start.Add(-time.Hour))
		for id := uint64(1); id <= 900; id++ {
			sh.paused[id] = true
		}
		b := &brakes{}
		b.put(coupon.PauseTemplate, "7", start)
		c := expiry.DefaultConfig().Sweep
		c.Batch = 100
		s := braked(sh, b, c)
		calls := 0
		done, err := s.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 100, done.Expired)
		require.Equal(t, 900, done.Paused)
		require.Greater(t, sh.looked(&calls), 9)
		for range 5 {
			sh.rows[uint64(len(sh.rows)+1)] = unused(uint64(len(sh.rows)+1), start.Add(-time.Hour))
			done, err = s.Once(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, done.Expired, "what is behind it is settled")
			require.Zero(t, done.Paused)
			require.LessOrEqual(t, sh.looked(&calls), 2)
		}
		<-time.After(6 * time.Minute) // after a while they are looked at again
		done, err = s.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 900, done.Paused)

		b.on, sh.paused = nil, nil
		done, err = s.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 900, done.Expired, "at once when the brake is off")
	})
}

// What a resumed template owes is caught up with at full rate, whatever the hour.
func TestSweepCatchesUpAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start, paused: map[uint64]bool{}}}
		fill(sh, 2000, start.Add(-time.Hour))
		for id := range sh.rows {
			sh.paused[id] = true
		}
		b := &brakes{}
		b.put(coupon.PauseTemplate, "7", start)
		c := expiry.DefaultConfig().Sweep
		c.Batch, c.Budget, c.RateOutside = 100, time.Second, 10
		c.QuietWindows = []string{"02:00-02:01 UTC"}
		s := braked(sh, b, c)
		for range 500 {
			_, err := s.Once(t.Context())
			require.NoError(t, err)
		}
		b.on, sh.paused = nil, nil
		done, err := s.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2000, done.Expired)
		<-time.After(3 * time.Minute)
		_, err = s.Once(t.Context()) // ends it
		require.NoError(t, err)
		fill(sh, 2000, start.Add(-time.Hour))
		done, err = s.Once(t.Context())
		require.NoError(t, err)
		require.Less(t, done.Expired, 100, "then it is slow again")
	})
}

// While everything is paused what is due is not looked at, and for a moment afterwards it is left to the ladder.
func TestSweepRestsWhileAllIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start}}
		fill(sh, 10, start.Add(-time.Hour))
		b := &brakes{}
		b.put(coupon.PauseAll, "", start)
		s := braked(sh, b, expiry.DefaultConfig().Sweep)
		for range 3 {
			done, err := s.Once(t.Context())
			require.NoError(t, err)
			require.Zero(t, done.Settled())
		}
		require.Zero(t, sh.calls)
		b.on = nil
		done, err := s.Once(t.Context())
		require.NoError(t, err)
		require.Zero(t, done.Settled())
		<-time.After(11 * time.Second)
		done, err = s.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 10, done.Settled())
	})
}

// The queues of ends wait without a decision while all is paused; that of locks does not, and what belongs to a paused template is
// acknowledged: the sweep finds its row.
func TestHandlerOfPausedTriggers(t *testing.T) {
	t.Parallel()
	ended := start.Add(-time.Second)
	tb := &table{now: start, rows: map[uint64]*coupon.Row{1: unused(1, ended), 2: unused(2, ended)}, paused: map[uint64]bool{1: true, 2: true}}
	core := expiry.NewCore(tb, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	b := &brakes{}
	core.Heed(b)
	h := expiry.NewHandler(core, &route{}, codec(t), rate.NewLimiter(rate.Inf, 0), zap.NewNop())
	batch := make([]broker.Delivery, 2)
	for i := range batch {
		batch[i] = broker.Delivery{Body: codec(t).Trigger(coupon.Trigger{Kind: coupon.KindExpire, CouponID: uint64(i + 1), At: ended, ID: "v", Origin: coupon.OriginLadder})}
	}
	b.put(coupon.PauseAll, "", start)
	_, err := h.Waiting().Handle(t.Context(), batch)
	require.ErrorIs(t, err, coupon.ErrPaused)
	require.Zero(t, tb.calls)
	out, err := h.Handle(t.Context(), batch) // of locks
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack()}, out)
	b.put(coupon.PauseTemplate, "7", start)
	out, err = h.Waiting().Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack()}, out)
	require.Equal(t, coupon.Unused, tb.rows[1].Status)
}
