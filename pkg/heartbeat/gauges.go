package heartbeat

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Ages tells how long ago the latest heartbeat of each class ended that came through.
type Ages interface {
	BeatAges(ctx context.Context) (map[coupon.Precision]time.Duration, error)
}

// NewGauges shows how old the latest heartbeats are; where there are no heartbeats, the gauge is absent. now may be nil for time.Now.
func NewGauges(store Ages, now func() time.Time) *telemetry.Asked[map[coupon.Precision]time.Duration] {
	desc := prometheus.NewDesc("lapse_heartbeat_age_seconds",
		"How long ago the latest heartbeat coupon ended that has come all the way to the notifier.", []string{"precision"}, nil)
	return telemetry.NewAsked(store.BeatAges, func(ages map[coupon.Precision]time.Duration, ch chan<- prometheus.Metric) {
		for p, age := range ages {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, age.Seconds(), string(p))
		}
	}, now, desc)
}
