package delay

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever is put in when, each entry is given once, by the advance that reaches its tick and by none before; next never skips one.
func TestTheWheelGivesEachEntryAtItsTick(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.Uint64Max(1<<40).Draw(t, "start")
		w := newWheel[int](start)
		waiting := map[int]uint64{} // by entry: the tick
		span := rapid.SampledFrom([]uint64{3, 64, 5000, 1 << 20, 1 << 45})
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			for k := range rapid.IntRange(0, 5).Draw(t, "adds") {
				past := rapid.Uint64Max(min(w.now, 100)).Draw(t, "past")
				at := w.now - past + rapid.Uint64Max(span.Draw(t, "span")).Draw(t, "ahead")
				w.add(at, n*10+k)
				waiting[n*10+k] = max(at, w.now+1)
			}
			least := uint64(math.MaxUint64)
			for _, at := range waiting {
				least = min(least, at)
			}
			next, ok := w.next()
			require.Equal(t, len(waiting) > 0, ok)
			if ok {
				require.LessOrEqual(t, next, least, "nothing is due before next")
				require.Greater(t, next, w.now)
			}
			to := w.now + rapid.Uint64Max(span.Draw(t, "span")).Draw(t, "on")
			if ok && rapid.Bool().Draw(t, "to the next") {
				to = next
			}
			w.advance(to, func(at uint64, v int) {
				require.Equal(t, waiting[v], at)
				require.LessOrEqual(t, at, to, "never early")
				delete(waiting, v)
			})
			require.Equal(t, to, w.now)
			require.Equal(t, len(waiting), w.held)
			for v, at := range waiting {
				require.Greater(t, at, to, "entry %d is overdue", v)
			}
		}
	})
}

// Across the turn of every level at once an entry is given in time, too.
func TestTheWheelTurnsOverAllItsLevels(t *testing.T) {
	t.Parallel()
	w := newWheel[int](1<<36 - 2)
	for i := range 5 {
		w.add(1<<36-1+uint64(i), i)
	}
	var given []int
	for w.held > 0 {
		next, ok := w.next()
		require.True(t, ok)
		w.advance(next, func(_ uint64, v int) { given = append(given, v) })
	}
	require.Equal(t, []int{0, 1, 2, 3, 4}, given)
	require.True(t, slices.IsSorted(given))
}
