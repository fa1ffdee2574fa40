package heartbeat

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	gaugeEvery   = 10 * time.Second // the database is asked no more often
	gaugeTimeout = 2 * time.Second
)

// Ages tells how long ago the latest heartbeat of each class ended that came through.
type Ages interface {
	BeatAges(ctx context.Context) (map[coupon.Precision]time.Duration, error)
}

// Gauges shows how old the latest heartbeats are, read from the database when scraped, at most every ten seconds. One kind of process
// registers it; queries use max(). Where there are no heartbeats, and when the database does not answer, the gauge is absent.
type Gauges struct {
	store Ages
	now   func() time.Time
	age   *prometheus.Desc

	mu   sync.Mutex
	at   time.Time // of the last attempt
	last map[coupon.Precision]time.Duration
}

// NewGauges makes the collector; now may be nil for time.Now.
func NewGauges(store Ages, now func() time.Time) *Gauges {
	if now == nil {
		now = time.Now
	}
	return &Gauges{store: store, now: now, age: prometheus.NewDesc("lapse_heartbeat_age_seconds",
		"How long ago the latest heartbeat coupon ended that has come all the way to the notifier.", []string{"precision"}, nil)}
}

// Describe implements prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) { ch <- g.age }

// Collect implements prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.at.IsZero() || now.Sub(g.at) >= gaugeEvery {
		g.at = now
		ctx, cancel := context.WithTimeout(context.Background(), gaugeTimeout)
		defer cancel()
		ages, err := g.store.BeatAges(ctx)
		if err != nil {
			ages = nil // shows as the gauge's absence
		}
		g.last = ages
	}
	for p, age := range g.last {
		ch <- prometheus.MustNewConstMetric(g.age, prometheus.GaugeValue, age.Seconds(), string(p))
	}
}
