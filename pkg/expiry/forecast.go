package expiry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	forecastLimit   = 100_000 // coupons counted in a window at most
	forecastTimeout = 5 * time.Second
)

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

// ForecastGauges shows how many coupons come due within windows from now on, read from the index when scraped, at most
// every ten seconds. One kind of process registers it; queries use max(). When the database does not answer the gauges are
// absent.
type ForecastGauges struct {
	due         Due
	now         func() time.Time
	count, rate *prometheus.Desc

	mu    sync.Mutex
	at    time.Time // of the last attempt
	last  map[string]int64
	drain float64 // 0: not known
}

// NewForecastGauges makes the collector; now may be nil for time.Now.
func NewForecastGauges(due Due, now func() time.Time) *ForecastGauges {
	if now == nil {
		now = time.Now
	}
	return &ForecastGauges{
		due: due, now: now,
		count: prometheus.NewDesc("lapse_forecast_coupons", "Unused coupons that come due within the window, counted up to 100 000.", []string{"window"}, nil),
		rate:  prometheus.NewDesc("lapse_drain_rate", "Coupons a second that the fleet drains, as measured last or configured.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *ForecastGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.count
	ch <- g.rate
}

// Collect implements prometheus.Collector.
func (g *ForecastGauges) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.at.IsZero() || now.Sub(g.at) >= gaugeEvery {
		g.at = now
		g.read()
	}
	for window, n := range g.last {
		ch <- prometheus.MustNewConstMetric(g.count, prometheus.GaugeValue, float64(n), window)
	}
	if g.drain > 0 {
		ch <- prometheus.MustNewConstMetric(g.rate, prometheus.GaugeValue, g.drain)
	}
}

func (g *ForecastGauges) read() {
	ctx, cancel := context.WithTimeout(context.Background(), forecastTimeout)
	defer cancel()
	g.last, g.drain = make(map[string]int64, len(forecastWindows)), 0
	full := false
	for _, w := range forecastWindows {
		if full { // a longer window holds what the shorter one does
			g.last[w.label] = forecastLimit
			continue
		}
		// An error shows as the gauge's absence.
		n, err := g.due.DueWithin(ctx, w.span, forecastLimit)
		if err != nil {
			return
		}
		g.last[w.label], full = n, n == forecastLimit
	}
	if rate, err := g.due.DrainRate(ctx); err == nil {
		g.drain = rate.PerSecond()
	}
}
