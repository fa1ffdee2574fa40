package outbox

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The values of the label result.
const (
	resultConfirmed = "confirmed"
	resultRefused   = "refused" // the broker's answer to the message itself
	resultFailed    = "failed"  // not sent, or the outcome is unknown
)

type metrics struct {
	sent   *prometheus.CounterVec // lane, result
	parked *prometheus.CounterVec // lane
	parts  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_outbox_sent_total", Help: "Outbox rows sent to the broker, by what became of them.",
		}, []string{"lane", "result"}),
		parked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_outbox_parked_total", Help: "Outbox rows set aside because the broker refused them too often.",
		}, []string{"lane"}),
		parts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_outbox_partitions", Help: "Outbox partitions that this process relays.",
		}),
	}
	for _, lane := range lanes {
		m.parked.WithLabelValues(laneName(lane))
		for _, result := range []string{resultConfirmed, resultRefused, resultFailed} {
			m.sent.WithLabelValues(laneName(lane), result)
		}
	}
	if reg != nil {
		reg.MustRegister(m.sent, m.parked, m.parts)
	}
	return m
}

func (m *metrics) count(lane int, o *outcome) {
	name := laneName(lane)
	m.sent.WithLabelValues(name, resultConfirmed).Add(float64(o.sent))
	m.sent.WithLabelValues(name, resultRefused).Add(float64(o.refusals))
	m.sent.WithLabelValues(name, resultFailed).Add(float64(o.failed))
}

func laneName(lane int) string {
	if lane == coupon.LaneTrigger {
		return "trigger"
	}
	return "event"
}
