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

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
)

// Outside of the quiet hours the sweep takes its time, and a pass ends with its budget; within them it does not.
func TestSweepIsSlowOutsideOfItsQuietHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the clock begins at midnight UTC, 2000-01-01
		const overdue = 5000
		c := expiry.DefaultConfig().Sweep
		c.Grace, c.OutageGrace, c.Batch, c.Budget, c.RateOutside = 0, 0, 100, 10*time.Second, 100
		c.QuietWindows = []string{"00:01-00:02 UTC", "02:00-03:00 Asia/Shanghai"}
		require.NoError(t, expiry.Config{Consumer: expiry.DefaultConfig().Consumer, ClockAhead: time.Second, DrainRate: 1, Sweep: c}.Validate())
		s := &shelf{table: table{now: time.Now(), rows: map[uint64]*coupon.Row{}}}
		for id := uint64(1); id <= overdue; id++ {
			end := time.Now().Add(-time.Hour)
			s.rows[id] = &coupon.Row{ID: id, Status: coupon.Unused, Version: 1, ExpiresAt: end, DueAt: end}
		}
		core := expiry.NewCore(s, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
		sweeper := expiry.NewSweeper(c, s, core, nil, rate.NewLimiter(rate.Inf, 0), zap.NewNop())
		began := time.Now()
		done, err := sweeper.Once(t.Context())
		require.NoError(t, err)
		require.True(t, done.More)
		require.InDelta(t, 1000, done.Expired, 200, "ten seconds of 100 rows")
		require.LessOrEqual(t, time.Since(began), 2*c.Budget)
		<-time.After(time.Minute + time.Second - time.Since(began))
		s.now = time.Now()
		rest, err := sweeper.Once(t.Context())
		require.NoError(t, err)
		require.False(t, rest.More)
		require.Equal(t, overdue, done.Expired+rest.Expired, "and each once")
	})
}

// The rate is the fleet's: each of four takes a quarter. While the broker cannot be heard the sweep is the main force, at all hours.
func TestSweepOutsideOfItsQuietHoursIsTheFleets(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		away bool
		want int
	}{"four expirers": {false, 250}, "no broker": {true, 5000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := expiry.DefaultConfig().Sweep
				c.Grace, c.OutageGrace, c.Batch, c.Budget, c.RateOutside = 0, 0, 100, 10*time.Second, 100
				c.QuietWindows = []string{"never"}
				s := &shelf{table: table{now: time.Now(), rows: map[uint64]*coupon.Row{}}, pods: 4, away: of.away}
				for id := uint64(1); id <= 5000; id++ {
					end := time.Now().Add(-time.Hour)
					s.rows[id] = &coupon.Row{ID: id, Status: coupon.Unused, Version: 1, ExpiresAt: end, DueAt: end}
				}
				core := expiry.NewCore(s, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
				done, err := expiry.NewSweeper(c, s, core, s.heard, rate.NewLimiter(rate.Inf, 0), zap.NewNop()).Once(t.Context())
				require.NoError(t, err)
				require.Equal(t, !of.away, done.More)
				require.InDelta(t, of.want, done.Expired, 50)
			})
		})
	}
}

// slowShelf takes its time for every batch.
type slowShelf struct {
	*shelf
	takes time.Duration
}

func (s slowShelf) SweepBatch(
	ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error,
) (coupon.Swept, error) {
	<-time.After(s.takes)
	return s.shelf.SweepBatch(ctx, locks, cutoff, from, limit, allow)
}

// Outside of the quiet hours it takes a fifth of the time at most, however slow the database is and whatever the rate allows.
func TestSweepGivesWayToASlowDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := expiry.DefaultConfig().Sweep
		c.Grace, c.OutageGrace, c.Budget, c.RateOutside, c.QuietWindows = 0, 0, 19*time.Second, 1000, []string{"never"}
		s := slowShelf{&shelf{table: table{now: time.Now(), rows: map[uint64]*coupon.Row{}}}, time.Second}
		for id := uint64(1); id <= 5000; id++ {
			end := time.Now().Add(-time.Hour)
			s.rows[id] = &coupon.Row{ID: id, Status: coupon.Unused, Version: 1, ExpiresAt: end, DueAt: end}
		}
		core := expiry.NewCore(s, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
		done, err := expiry.NewSweeper(c, s, core, nil, rate.NewLimiter(rate.Inf, 0), zap.NewNop()).Once(t.Context())
		require.NoError(t, err)
		require.True(t, done.More)
		require.InDelta(t, 5*250, done.Expired, 2*250, "batches of a second, and a rest of two to six after each, in 19 seconds")
	})
}

// What is known to be refused stands at the head of every round, and is gone past in one step: not batch by batch, each of them a
// transaction that is rolled back.
func TestSweepGoesPastWhatItKnowsInOneStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := expiry.DefaultConfig().Sweep
		c.Grace, c.OutageGrace, c.RateOutside, c.QuietWindows = 0, 0, 100, []string{"never"}
		end := time.Now().Add(-time.Hour)
		s := &shelf{table: table{now: time.Now(), rows: map[uint64]*coupon.Row{}, bad: map[uint64]bool{}}}
		for id := uint64(1); id <= 520; id++ {
			s.rows[id] = &coupon.Row{ID: id, Status: coupon.Unused, Version: 1, ExpiresAt: end, DueAt: end}
			s.bad[id] = id <= 500
		}
		core := expiry.NewCore(s, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
		sweeper := expiry.NewSweeper(c, s, core, nil, rate.NewLimiter(rate.Inf, 0), zap.NewNop())
		first, err := sweeper.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 20, first.Expired)
		require.Equal(t, 500, first.Failed)
		s.rows[521] = &coupon.Row{ID: 521, Status: coupon.Unused, Version: 1, ExpiresAt: end, DueAt: end}
		s.now, s.calls = time.Now(), 0
		second, err := sweeper.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, second.Expired)
		require.Equal(t, 500, second.Failed)
		require.LessOrEqual(t, s.calls, 3, "one that is refused, one behind it")
	})
}

// fading is a shelf whose database goes away after some batches.
type fading struct {
	*shelf
	left int
}

func (f *fading) ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error) {
	if f.left--; f.left < 0 {
		return time.Time{}, nil, coupon.ErrUnavailable
	}
	return f.shelf.ExpireBatch(ctx, ts, allow)
}

func TestSweepCountsWhatItSettledBeforeTheDatabaseWentAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := expiry.DefaultConfig().Sweep
		c.Grace, c.OutageGrace, c.RateOutside, c.QuietWindows = 0, 0, 100, []string{"never"}
		f := &fading{&shelf{table: table{now: time.Now(), bad: map[uint64]bool{1: true}}}, 4}
		fill(f.shelf, 20, time.Now().Add(-time.Hour))
		core := expiry.NewCore(f, clock.NewGuard(2*time.Second, time.Now), prometheus.NewRegistry())
		done, err := expiry.NewSweeper(c, f, core, nil, rate.NewLimiter(rate.Inf, 0), zap.NewNop()).Once(t.Context())
		require.ErrorIs(t, err, coupon.ErrUnavailable)
		require.Equal(t, f.expired(), done.Expired)
		require.Positive(t, done.Expired)
	})
}

func TestQuietWindowsAreChecked(t *testing.T) {
	t.Parallel()
	c := expiry.DefaultConfig()
	require.NoError(t, c.Validate())
	require.True(t, c.Sweep.Quiet(time.Now()))
	c.Sweep.QuietWindows, c.Sweep.RateOutside = []string{"25:00-26:00 UTC", "never"}, 0
	err := c.Validate()
	require.ErrorContains(t, err, "sweep.quiet_windows: must be HH:MM-HH:MM ZONE")
	require.ErrorContains(t, err, "sweep.rate_outside: must be between 1 and 1000000, got 0")
	c.Sweep.QuietWindows = []string{"never"}
	require.False(t, c.Sweep.Quiet(time.Now()))
	require.True(t, c.Sweep.Alone().Quiet(time.Now()), "nothing else expires")
}
