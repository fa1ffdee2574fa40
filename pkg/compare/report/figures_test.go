package report_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/compare/report"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   []float64
		want float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{9, 1}, 5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		was := slices.Clone(c.of)
		require.InDelta(t, c.want, report.Median(c.of), 1e-9, "%v", c.of)
		require.Equal(t, was, c.of, "the caller's order stays")
	}
}

func TestQuantilesAreNearestRanks(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100-i) * time.Millisecond // latest first
	}
	require.Equal(t, report.Lateness{P50: 50, P99: 99, P999: 100, Max: 100}, report.LatenessOf(hundred))
	require.Equal(t, report.Lateness{P50: 1.5, P99: 1.5, P999: 1.5, Max: 1.5}, report.LatenessOf([]time.Duration{1500 * time.Microsecond}))
	require.Equal(t, report.Lateness{}, report.LatenessOf(nil))
	require.Empty(t, report.Curve(nil))
}

// So many are not later than a quantile says, and it is one of those that were measured.
func TestQuantilesHoldWhatTheySay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.SliceOfN(rapid.IntRange(0, 1000), 1, 300).Draw(t, "ms")
		late := make([]time.Duration, len(ms))
		for i, v := range ms {
			late[i] = time.Duration(v) * time.Millisecond
		}
		slices.Sort(late)
		permille := rapid.IntRange(0, 1000).Draw(t, "permille")
		q := report.Quantile(late, permille)
		within, below := 0, 0
		for _, v := range ms {
			if float64(v) <= q {
				within++
			}
			if float64(v) < q {
				below++
			}
		}
		require.GreaterOrEqual(t, within*1000, permille*len(ms))
		require.True(t, below == 0 || below*1000 < permille*len(ms), "a lesser one would do")
		curve := report.Curve(late)
		require.Len(t, curve, 101)
		require.True(t, slices.IsSorted(curve))
		require.InDelta(t, float64(slices.Min(ms)), curve[0], 1e-9)
		require.InDelta(t, float64(slices.Max(ms)), curve[100], 1e-9)
	})
}

func TestAmountsForAHundredThousand(t *testing.T) {
	t.Parallel()
	require.InDelta(t, 12.5, report.Per100k(2.5, 20_000), 1e-9)
	require.InDelta(t, 0.5, report.Per100k(0.5, 100_000), 1e-9)
	require.Zero(t, report.Per100k(1, 0))
}
