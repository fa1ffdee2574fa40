package report

import (
	"math"
	"slices"
	"time"
)

// Median of values: the middle one, or the mean of the middle two. 0 of none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Quantile of sorted durations by the nearest-rank rule, in milliseconds: the least that so many thousandths do not exceed. 0 of none.
func Quantile(sorted []time.Duration, permille int) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := (len(sorted)*permille + 999) / 1000
	return milliseconds(sorted[max(0, rank-1)])
}

// LatenessOf durations, which it sorts.
func LatenessOf(late []time.Duration) Lateness {
	slices.Sort(late)
	return Lateness{P50: Quantile(late, 500), P99: Quantile(late, 990), P999: Quantile(late, 999), Max: Quantile(late, 1000)}
}

const curvePoints = 101

// Curve of durations, which it sorts: their quantiles 0, 0.01 … 1 in milliseconds. Empty of none.
func Curve(late []time.Duration) []float64 {
	if len(late) == 0 {
		return []float64{}
	}
	slices.Sort(late)
	curve := make([]float64, curvePoints)
	for i := range curve {
		curve[i] = Quantile(late, i*10)
	}
	return curve
}

// Per100k is an amount of n coupons as it would be of 100 000.
func Per100k(amount float64, n int) float64 {
	const hundredThousand = 100_000
	if n == 0 {
		return 0
	}
	return Round(amount*hundredThousand/float64(n), 3)
}

// Round to so many decimals.
func Round(v float64, decimals int) float64 {
	p := math.Pow10(decimals)
	return math.Round(v*p) / p
}

func milliseconds(d time.Duration) float64 { return Round(float64(d.Microseconds())/1000, 3) }
