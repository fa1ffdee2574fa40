package status

import (
	"strconv"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Forecast is what comes due when.
type Forecast struct {
	Now      string           `json:"now"`
	From     string           `json:"from"`
	To       string           `json:"to"`
	Template *string          `json:"template_id"`
	Drain    Drain            `json:"drain"`
	Unused   int64            `json:"unused"`
	Locked   int64            `json:"locked"`
	Value    map[string]int64 `json:"value"` // minor units by currency
	Complete bool             `json:"complete"`
	Peaks    int              `json:"peaks"`
	Buckets  []Bucket         `json:"buckets"`
}

// Drain is how fast the fleet expires coupons.
type Drain struct {
	PerSecond float64 `json:"per_second"`
	Pods      int     `json:"pods"`
	Source    string  `json:"source"` // measured, configured, given
}

// Bucket is what comes due within [Start, End).
type Bucket struct {
	Start          string           `json:"start"`
	End            string           `json:"end"`
	Unused         int64            `json:"unused"`
	Locked         int64            `json:"locked"`
	Value          map[string]int64 `json:"value"`
	Counted        string           `json:"counted"` // all, at_least, not
	DrainSeconds   float64          `json:"drain_seconds"`
	Backlog        int64            `json:"backlog"`
	PeakAt         *string          `json:"peak_at"`
	PeakCoupons    int64            `json:"peak_coupons"`
	PeakLateness   float64          `json:"peak_lateness_seconds"`
	BeyondCapacity bool             `json:"peak"` // the fullest second holds more than the fleet drains in one
}

// ForecastOf shows the answer to a query. source says where the rate comes from; empty: from the fleet.
func ForecastOf(q coupon.ForecastQuery, f coupon.Forecast, source string) Forecast {
	if source == "" {
		source = "configured"
		if f.Drain.Measured {
			source = "measured"
		}
	}
	x := Forecast{
		Now: Instant(f.Now), From: Instant(q.From), To: Instant(q.To), Value: map[string]int64{}, Complete: true,
		Drain:   Drain{PerSecond: f.Drain.PerSecond(), Pods: max(1, f.Drain.Pods), Source: source},
		Buckets: make([]Bucket, len(f.Buckets)),
	}
	if f.Drain.PerSecond() == 0 {
		x.Drain.Source = "unknown"
	}
	if q.Template != 0 {
		id := strconv.FormatUint(q.Template, 10)
		x.Template = &id
	}
	for i, b := range f.Buckets {
		out := Bucket{
			Start: Instant(b.Start), End: Instant(b.End), Unused: b.Unused, Locked: b.Locked, Value: b.Value, Counted: "all",
			DrainSeconds: b.Drain.Seconds(), Backlog: b.Backlog, PeakCoupons: b.Peak.Coupons, BeyondCapacity: f.Drain.Over(b.Peak.Coupons),
		}
		switch {
		case b.Skipped:
			out.Counted = "not"
		case b.Capped:
			out.Counted = "at_least"
		}
		if out.Value == nil {
			out.Value = map[string]int64{}
		}
		if b.Peak.Coupons > 0 {
			out.PeakAt, out.PeakLateness = orNil(b.Peak.At), f.Drain.Lateness(b.Peak.Coupons).Seconds()
		}
		if out.BeyondCapacity {
			x.Peaks++
		}
		x.Complete = x.Complete && out.Counted == "all"
		x.Unused, x.Locked = x.Unused+b.Unused, x.Locked+b.Locked
		for currency, v := range b.Value {
			x.Value[currency] += v
		}
		x.Buckets[i] = out
	}
	return x
}
