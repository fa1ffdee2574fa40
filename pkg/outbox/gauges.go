package outbox

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const gaugeLimit = 100_000 // rows counted at most

// StatsStore counts what waits in the outbox.
type StatsStore interface {
	OutboxStats(ctx context.Context, lane, limit int) (coupon.OutboxLane, error)
}

// NewGauges shows how much waits in the outbox. now may be nil for time.Now.
func NewGauges(store StatsStore, now func() time.Time) *telemetry.Asked[map[int]coupon.OutboxLane] {
	rows := prometheus.NewDesc("lapse_outbox_rows", "Rows in the outbox, counted up to 100 000.", []string{"lane"}, nil)
	oldest := prometheus.NewDesc("lapse_outbox_oldest_seconds", "Age of the oldest row in the outbox.", []string{"lane"}, nil)
	return telemetry.NewAsked(func(ctx context.Context) (map[int]coupon.OutboxLane, error) {
		waiting := make(map[int]coupon.OutboxLane, len(lanes))
		for _, lane := range lanes {
			l, err := store.OutboxStats(ctx, lane, gaugeLimit)
			if err != nil {
				return nil, err
			}
			waiting[lane] = l
		}
		return waiting, nil
	}, func(waiting map[int]coupon.OutboxLane, ch chan<- prometheus.Metric) {
		for lane, l := range waiting {
			ch <- prometheus.MustNewConstMetric(rows, prometheus.GaugeValue, float64(l.Rows), laneName(lane))
			ch <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, l.Oldest.Seconds(), laneName(lane))
		}
	}, now, rows, oldest)
}
