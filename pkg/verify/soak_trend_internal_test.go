package verify

import (
	"encoding/csv"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func every10(n int) []time.Duration {
	at := make([]time.Duration, n)
	for i := range at {
		at[i] = time.Duration(i) * soakEvery
	}
	return at
}

// A line has its slope, whatever its height; one sample in five that is far off does not move it much.
func TestTheSlopeOfALineIsItsOwn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(10, 60).Draw(t, "n")
		rise, height := rapid.Float64Range(-5, 5).Draw(t, "rise"), rapid.Float64Range(-1e6, 1e6).Draw(t, "height")
		at, values := every10(n), make([]float64, n)
		for i := range values {
			values[i] = height + rise*at[i].Seconds()
		}
		require.InDelta(t, rise, slope(at, values), 1e-6)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		for i := 0; i < n; i += 5 {
			values[i] += rng.Float64() * 1e5
		}
		require.Less(t, slope(at, values), rise+1e5/at[n-1].Seconds())
	})
}

func TestTheMedianIsInTheMiddle(t *testing.T) {
	t.Parallel()
	require.Zero(t, medianOf(nil))
	require.InDelta(t, 2, medianOf([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, medianOf([]float64{4, 1, 2, 3}), 0)
}

// What leaks is missed, what wavers or falls is not.
func TestOnlyWhatGrowsIsMissed(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	c := &course{values: make(map[string][]float64)}
	for i, at := range every10(180) {
		c.add(at, map[string]float64{
			"leaky.goroutines": 100 + float64(i), "wavering.goroutines": 100 + rng.Float64()*20, "falling.resident_mib": 200 - float64(i)/2,
			// One percent of it in ten minutes, sixty samples, is below the noise of it.
			"creeping.resident_mib": 100 + float64(i)/60,
		})
	}
	view := &heardView{}
	c.wants(&tally{section: "soak", view: view}, true)
	var missed []string
	for _, check := range view.checks {
		if !check.OK {
			missed = append(missed, check.Name)
		}
	}
	require.Equal(t, []string{"soak.leaky.goroutines_grows_in_10_min"}, missed)
	short := &heardView{}
	c.wants(&tally{section: "soak", view: short}, false)
	for _, check := range short.checks {
		require.True(t, check.OK, "what is no evidence is told: %s", check)
	}
}

func TestSamplesAreWrittenAsTheyCome(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	c := &course{values: make(map[string][]float64)}
	out := csv.NewWriter(&text)
	for i, at := range every10(2) {
		c.add(at, map[string]float64{"b": float64(i), "a": 1.5})
		require.NoError(t, c.write(out))
	}
	require.Equal(t, "seconds,a,b\n0.0,1.5,0\n10.0,1.5,1\n", text.String())
}

type heardView struct {
	silent
	checks []Check
}

func (v *heardView) Check(c Check) { v.checks = append(v.checks, c) }
