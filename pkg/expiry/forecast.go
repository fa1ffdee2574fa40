package expiry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const forecastLimit = 100_000 // coupons counted in a window at most

// forecastWindows are the values of the label window.
//
//nolint:gochecknoglobals // a constant list
var forecastWindows = [...]struct {
	label string
	span  time.Duration
}{{"1m", time.Minute}, {"10m", 10 * time.Minute}, {"1h", time.Hour}, {"24h", 24 * time.Hour}}

// Due counts what comes due.
type Due interface {
	DueWithin(ctx context.Context, within time.Duration, limit int) (int64, error)
	DrainRate(ctx context.Context) (coupon.DrainRate, error)
}

// forecast is what the gauges show: coupons by window, and what the fleet drains a second.
type forecast struct {
	count map[string]int64
	drain float64
}

// NewForecastGauges shows how many coupons come due within windows from now on, read from the index. now may be nil for time.Now.
func NewForecastGauges(due Due, now func() time.Time) *telemetry.Asked[forecast] {
	count := prometheus.NewDesc("lapse_forecast_coupons", "Unused coupons that come due within the window, counted up to 100 000.", []string{"window"}, nil)
	rate := prometheus.NewDesc("lapse_drain_rate", "Coupons a second that the fleet drains, as measured last or configured.", nil, nil)
	return telemetry.NewAsked(func(ctx context.Context) (forecast, error) {
		return readForecast(ctx, due)
	}, func(f forecast, ch chan<- prometheus.Metric) {
		for window, n := range f.count {
			ch <- prometheus.MustNewConstMetric(count, prometheus.GaugeValue, float64(n), window)
		}
		if f.drain > 0 {
			ch <- prometheus.MustNewConstMetric(rate, prometheus.GaugeValue, f.drain)
		}
	}, now, count, rate)
}

func readForecast(ctx context.Context, due Due) (forecast, error) {
	f := forecast{count: make(map[string]int64, len(forecastWindows))}
	full := false
	for _, w := range forecastWindows {
		if full { // a longer window holds what the shorter one does
			f.count[w.label] = forecastLimit
			continue
		}
		n, err := due.DueWithin(ctx, w.span, forecastLimit)
		if err != nil {
			return forecast{}, err
		}
		f.count[w.label], full = n, n == forecastLimit
	}
	rate, err := due.DrainRate(ctx)
	f.drain = rate.PerSecond()
	return f, err
}
