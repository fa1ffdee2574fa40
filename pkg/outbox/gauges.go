package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	gaugeLimit   = 100_000          // rows counted at most
	gaugeEvery   = 10 * time.Second // the database is asked no more often
	gaugeTimeout = 2 * time.Second
)

// StatsStore counts what waits in the outbox.
type StatsStore interface {
	OutboxStats(ctx context.Context, lane, limit int) (coupon.OutboxLane, error)
}

// Gauges shows how much waits in the outbox, read from the database when scraped, at most every ten seconds. One kind
// of process registers it; queries use max(). When the database does not answer the gauges are absent.
type Gauges struct {
	store        StatsStore
	now          func() time.Time
	rows, oldest *prometheus.Desc

	mu   sync.Mutex
	at   time.Time // of the last attempt
	last map[int]coupon.OutboxLane
}

// NewGauges makes the collector; now may be nil for time.Now.
func NewGauges(store StatsStore, now func() time.Time) *Gauges {
	if now == nil {
		now = time.Now
	}
	return &Gauges{
		store: store, now: now,
		rows:   prometheus.NewDesc("lapse_outbox_rows", "Rows in the outbox, counted up to 100 000.", []string{"lane"}, nil),
		oldest: prometheus.NewDesc("lapse_outbox_oldest_seconds", "Age of the oldest row in the outbox.", []string{"lane"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.rows
	ch <- g.oldest
}

// Collect implements prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	for lane, l := range g.read() {
		ch <- prometheus.MustNewConstMetric(g.rows, prometheus.GaugeValue, float64(l.Rows), laneName(lane))
		ch <- prometheus.MustNewConstMetric(g.oldest, prometheus.GaugeValue, l.Oldest.Seconds(), laneName(lane))
	}
}

func (g *Gauges) read() map[int]coupon.OutboxLane {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.at.IsZero() || now.Sub(g.at) >= gaugeEvery {
		g.at, g.last = now, make(map[int]coupon.OutboxLane, len(lanes))
		ctx, cancel := context.WithTimeout(context.Background(), gaugeTimeout)
		defer cancel()
		for _, lane := range lanes {
			// An error shows as the gauge's absence; the statement's own errors are logged by those who need it.
			if l, err := g.store.OutboxStats(ctx, lane, gaugeLimit); err == nil {
				g.last[lane] = l
			}
		}
	}
	return g.last
}
