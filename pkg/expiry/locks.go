package expiry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const locksLimit = 100_000 // counted at most

// Locks counts locks.
type Locks interface {
	Locks(ctx context.Context, grace time.Duration, limit int) (coupon.LockCount, error)
}

// LockGauges shows how many coupons are locked, and how many of those locks ran out more than a grace ago, read from the database
// when scraped, at most every ten seconds. One kind of process registers it; queries use max(). When the database does not answer the
// gauges are absent.
type LockGauges struct {
	locks         Locks
	grace         time.Duration
	now           func() time.Time
	held, overdue *prometheus.Desc

	mu    sync.Mutex
	at    time.Time // of the last attempt
	last  coupon.LockCount
	known bool
}

// NewLockGauges makes the collector; now may be nil for time.Now.
func NewLockGauges(locks Locks, grace time.Duration, now func() time.Time) *LockGauges {
	if now == nil {
		now = time.Now
	}
	return &LockGauges{
		locks: locks, grace: grace, now: now,
		held:    prometheus.NewDesc("lapse_locks", "Coupons that an order has locked, counted up to 100 000.", nil, nil),
		overdue: prometheus.NewDesc("lapse_locks_overdue", "Of them: whose lock ran out more than the sweep's grace ago and was not settled.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *LockGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.held
	ch <- g.overdue
}

// Collect implements prometheus.Collector.
func (g *LockGauges) Collect(ch chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); g.at.IsZero() || now.Sub(g.at) >= gaugeEvery {
		g.at = now
		ctx, cancel := context.WithTimeout(context.Background(), forecastTimeout)
		defer cancel()
		var err error
		g.last, err = g.locks.Locks(ctx, g.grace, locksLimit)
		g.known = err == nil
	}
	if g.known {
		ch <- prometheus.MustNewConstMetric(g.held, prometheus.GaugeValue, float64(g.last.Locked))
		ch <- prometheus.MustNewConstMetric(g.overdue, prometheus.GaugeValue, float64(g.last.RunOut))
	}
}
