package report

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAxesEndAtRoundNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 1, 0.3: 0.3, 1: 1, 1.01: 1.5, 17: 20, 999: 1000, 20_000: 20_000, 21_000: 30_000, 0.07: 0.08, 8.5: 10} {
		require.InDelta(t, want, ceiling(v), want*1e-9, "%v", v)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Float64Range(1e-3, 1e7).Draw(t, "v")
		most := ceiling(v)
		require.GreaterOrEqual(t, most*(1+1e-9), v)
		require.LessOrEqual(t, most, v*1.6)
		marks := ticks(most)
		require.GreaterOrEqual(t, len(marks), 4)
		require.LessOrEqual(t, len(marks), 6)
		require.Zero(t, marks[0])
		require.InDelta(t, most, marks[len(marks)-1], most*1e-9)
		for _, m := range marks {
			require.LessOrEqual(t, len(number(m)), 9, "no label is a long fraction: %v", m)
		}
	})
}

// The dot is where the line is at the kill, and what is beyond an axis is cut off just behind it.
func TestALineIsDrawnWithinItsField(t *testing.T) {
	t.Parallel()
	p := drawn(plot{}, []series{{name: "ladder", x: []float64{0, 5, 50}, y: []float64{0, 50, 100}, mark: 1}}, 10, 100, number, number)
	require.Equal(t, "52,220 229,116 413.1,12", p.Lines[0].Points)
	require.Equal(t, [...]string{"229", "116"}, [...]string{p.Lines[0].MarkX, p.Lines[0].MarkY})
}
