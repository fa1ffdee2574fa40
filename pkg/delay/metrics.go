package delay

import "github.com/prometheus/client_golang/prometheus"

// The values of the label result.
const (
	resultConfirmed = "confirmed"
	resultFailed    = "failed" // not confirmed: tried again
	resultLeft      = "left"   // not held here: they come by the row
)

// metrics of a mechanism that holds triggers itself.
type metrics struct {
	taken     *prometheus.CounterVec // result: what Deliver answered
	moved     *prometheus.CounterVec // result
	reclaimed prometheus.Counter
	unread    prometheus.Counter
	waiting   prometheus.Gauge
	flight    prometheus.Gauge
	up        prometheus.Gauge
	lag       prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, mechanism string) *metrics {
	of := prometheus.Labels{"mechanism": mechanism}
	m := &metrics{
		taken: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_delay_taken_total", Help: "Triggers handed to the delay mechanism, by what it answered.", ConstLabels: of,
		}, []string{"result"}),
		moved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_delay_moved_total", Help: "Due triggers published to the due queues, by what became of them.", ConstLabels: of,
		}, []string{"result"}),
		reclaimed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_delay_reclaimed_total", Help: "Triggers claimed again because the lease of a mover ran out.", ConstLabels: of,
		}),
		unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_delay_unreadable_total", Help: "Entries of the delay mechanism that could not be read; their coupons are left to the sweep.", ConstLabels: of,
		}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_delay_waiting", Help: "Triggers that wait in the delay mechanism, as this process last saw it.", ConstLabels: of,
		}),
		flight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_delay_in_flight", Help: "Due triggers that are being published, as this process last saw it.", ConstLabels: of,
		}),
		up: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_delay_up", Help: "1 while the delay mechanism can be heard by this process.", ConstLabels: of,
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lapse_delay_lag_seconds", Help: "From a trigger's instant to the broker's confirm.", ConstLabels: of,
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
	}
	for _, r := range []string{resultConfirmed, resultFailed, resultLeft} {
		m.taken.WithLabelValues(r)
	}
	for _, r := range []string{resultConfirmed, resultFailed} {
		m.moved.WithLabelValues(r)
	}
	if reg != nil {
		reg.MustRegister(m.taken, m.moved, m.reclaimed, m.unread, m.waiting, m.flight, m.up, m.lag)
	}
	return m
}

// answered counts what Deliver answered.
func (m *metrics) answered(errs []error) {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	m.taken.WithLabelValues(resultFailed).Add(float64(failed))
	m.taken.WithLabelValues(resultConfirmed).Add(float64(len(errs) - failed))
}
