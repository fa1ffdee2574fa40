package clock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/clock"
)

var start = time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC)

func TestGuardStopsOnAJumpAndGoesOnWhenBothAgree(t *testing.T) {
	t.Parallel()
	mono := start
	g := clock.NewGuard(2*time.Second, func() time.Time { return mono })
	db := func(after time.Duration) time.Time { return start.Add(time.Hour + after) } // another clock altogether
	require.NoError(t, g.Allow(db(0)), "the first reading is believed")
	mono = start.Add(10 * time.Second)
	require.NoError(t, g.Allow(db(10*time.Second)))
	require.NoError(t, g.Allow(db(12*time.Second)), "exactly the tolerance")
	require.ErrorIs(t, g.Allow(db(13*time.Second)), clock.ErrAhead)
	require.True(t, g.State().Tripped)
	require.InDelta(t, 3, g.State().Jump.Seconds(), 0.1)
	mono = start.Add(10 * time.Hour)
	require.ErrorIs(t, g.Allow(db(10*time.Hour+3*time.Second)), clock.ErrAhead, "time alone does not make it right")
	require.NoError(t, g.Allow(db(10*time.Hour)), "both agree again")
	require.NoError(t, g.Allow(db(9*time.Hour)), "a clock behind makes late, not early")
	require.ErrorIs(t, g.Allow(db(10*time.Hour+5*time.Second)), clock.ErrAhead, "going back does not move the anchor")
}

// However the clock creeps, an instant that is allowed lies at most tolerance plus the slew ahead of true time.
func TestGuardNeverAllowsMoreThanToleranceAndSlew(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		mono := start
		g := clock.NewGuard(2*time.Second, func() time.Time { return mono })
		require.NoError(t, g.Allow(start))
		for range rapid.IntRange(1, 50).Draw(t, "readings") {
			mono = mono.Add(time.Duration(rapid.IntRange(0, 600_000).Draw(t, "ms")) * time.Millisecond)
			db := mono.Add(time.Duration(rapid.IntRange(-10_000, 10_000).Draw(t, "ahead")) * time.Millisecond)
			most := 2*time.Second + time.Duration(float64(mono.Sub(start))*0.001) + time.Microsecond
			if g.Allow(db) == nil {
				require.LessOrEqual(t, db.Sub(mono), most)
			}
		}
	})
}

// A crystal that is 100 ppm off must not stop the fleet however long it runs.
func TestGuardFollowsDrift(t *testing.T) {
	t.Parallel()
	mono := start
	g := clock.NewGuard(2*time.Second, func() time.Time { return mono })
	for i := range 24 * 60 * 30 {
		mono = start.Add(time.Duration(i) * time.Minute)
		require.NoError(t, g.Allow(mono.Add(time.Duration(float64(mono.Sub(start))*100e-6))))
	}
}

// A reading that took long on its way tells little of the present. Believed as an anchor, every prompt one after it
// would look like a jump ahead, and the pod would expire nothing until it was started again.
func TestGuardIsNotAnchoredByASlowReading(t *testing.T) {
	t.Parallel()
	mono := start
	g := clock.NewGuard(2*time.Second, func() time.Time { return mono })
	allow := g.Begin()
	mono = mono.Add(8 * time.Second) // the database read the clock at once, and then the rows, slowly
	require.NoError(t, allow(start))
	mono = mono.Add(time.Second)
	require.NoError(t, g.Begin()(start.Add(9*time.Second)), "the present")
	mono = mono.Add(time.Second)
	require.ErrorIs(t, g.Begin()(start.Add(13*time.Second)), clock.ErrAhead, "a prompt reading is an anchor")
}
