package verify

import (
	"math"
	"slices"
	"strings"
	"time"
)

// slope is by how much values grow in a second: the median of the slopes between any two of them (Theil–Sen), which one in four bad
// samples cannot move far.
func slope(at []time.Duration, values []float64) float64 {
	var all []float64
	for i := range values {
		for k := i + 1; k < len(values); k++ {
			if d := (at[k] - at[i]).Seconds(); d > 0 {
				all = append(all, (values[k]-values[i])/d)
			}
		}
	}
	return medianOf(all)
}

// medianOf is the middle one, of an even number the mean of both; 0 of none.
func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Clone(values)
	slices.Sort(v)
	m := len(v) / 2
	if len(v)%2 == 1 {
		return v[m]
	}
	return (v[m-1] + v[m]) / 2
}

func rounded(v float64) float64 { return math.Round(v*100) / 100 }

// noise is by how much a figure may grow in ten minutes and mean nothing, whatever it is: docs/verify.md says why.
func noise(name string) float64 {
	for _, n := range []struct {
		suffix string
		most   float64
	}{
		{"goroutines", 5},
		{"fds", 5},
		{"connections", 3},
		{"channels", 3},
		{"broker.resident_mib", 512},
		{"resident_mib", 8},
		{"disk_mib", 512},
		{"outbox.rows", 500},
		{"outbox.oldest_ms", 250},
		{"purge_lag", 10_000},
	} {
		if strings.HasSuffix(name, n.suffix) {
			return n.most
		}
	}
	return 0
}
