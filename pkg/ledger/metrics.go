package ledger

import "github.com/prometheus/client_golang/prometheus"

// Results of an event, as labels.
const (
	resultCounted  = "counted"
	resultRepeated = "repeated" // counted before
	resultIgnored  = "ignored"  // it tells of no step of a coupon
	resultParked   = "parked"
)

type metrics struct {
	events   *prometheus.CounterVec
	returned prometheus.Counter
	seeded   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_ledger_events_total", Help: "Events that came to the statistics, by what became of them.",
		}, []string{"result"}),
		returned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_quota_returned_total", Help: "Coupons whose quota was given back to their template.",
		}),
		seeded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_ledger_seeded_total", Help: "Steps that were counted from history, once, after an upgrade.",
		}),
	}
	for _, r := range []string{resultCounted, resultRepeated, resultIgnored, resultParked} {
		m.events.WithLabelValues(r)
	}
	reg.MustRegister(m.events, m.returned, m.seeded)
	return m
}

func (m *metrics) add(result string, n int) { m.events.WithLabelValues(result).Add(float64(n)) }
