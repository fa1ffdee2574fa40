package planner

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

type metrics struct {
	promoted prometheus.Counter
	lag      *prometheus.GaugeVec
	told     *prometheus.CounterVec
	skipped  *prometheus.CounterVec

	known []string // plans of reminders that the gauge has
}

func newMetrics(reg prometheus.Registerer, r coupon.Reminders) *metrics {
	m := &metrics{
		promoted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_planner_promoted_total", Help: "Triggers that the planner brought into the horizon.",
		}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_planner_lag_seconds", Help: "How far the plan is behind where it should be.",
		}, []string{"plan"}),
		told: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_reminders_total", Help: "Reminders that were told of as events.",
			ConstLabels: prometheus.Labels{"source": "planner"}, // the store counts those of verbs
		}, []string{"offset"}),
		skipped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_reminders_skipped_total", Help: "Reminders that the planner came to later than a quarter of their offset.",
		}, []string{"offset"}),
	}
	m.lag.WithLabelValues(coupon.PlanPromote)
	m.plans(r)
	reg.MustRegister(m.promoted, m.lag, m.told, m.skipped)
	return m
}

// plans makes the series of the offsets, and takes away the lag of those that are gone.
func (m *metrics) plans(r coupon.Reminders) {
	gone := m.known
	m.known = nil
	for _, o := range r.Offsets {
		m.lag.WithLabelValues(o.Plan())
		m.told.WithLabelValues(o.Name)
		m.skipped.WithLabelValues(o.Name)
		m.known = append(m.known, o.Plan())
		for i := range gone {
			if gone[i] == o.Plan() {
				gone[i] = ""
			}
		}
	}
	for _, plan := range gone {
		if plan != "" {
			m.lag.DeleteLabelValues(plan)
		}
	}
}
