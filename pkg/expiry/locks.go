package expiry

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const locksLimit = 100_000 // counted at most

// Locks counts locks.
type Locks interface {
	Locks(ctx context.Context, grace time.Duration, limit int) (coupon.LockCount, error)
}

// NewLockGauges shows how many coupons are locked, and how many of those locks ran out more than a grace ago. now may be nil for
// time.Now.
func NewLockGauges(locks Locks, grace time.Duration, now func() time.Time) *telemetry.Asked[coupon.LockCount] {
	held := prometheus.NewDesc("lapse_locks", "Coupons that an order has locked, counted up to 100 000.", nil, nil)
	overdue := prometheus.NewDesc("lapse_locks_overdue", "Of them: whose lock ran out more than the sweep's grace ago and was not settled.", nil, nil)
	return telemetry.NewAsked(func(ctx context.Context) (coupon.LockCount, error) {
		return locks.Locks(ctx, grace, locksLimit)
	}, func(n coupon.LockCount, ch chan<- prometheus.Metric) {
		ch <- prometheus.MustNewConstMetric(held, prometheus.GaugeValue, float64(n.Locked))
		ch <- prometheus.MustNewConstMetric(overdue, prometheus.GaugeValue, float64(n.RunOut))
	}, now, held, overdue)
}
