package notice

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Results in metric labels.
const (
	resultSent     = "sent"
	resultRepeated = "repeated" // another pod had recorded it already
	resultFailed   = "failed"   // stays pending until its lease runs out
	resultAdded    = "added"
	resultParked   = "parked"
)

const reasonEmpty = "empty" // no member stands any more

type collectorMetrics struct {
	items *prometheus.CounterVec
}

func newCollectorMetrics(reg prometheus.Registerer) *collectorMetrics {
	m := &collectorMetrics{items: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_notice_items_total", Help: "Events collected for notices, by what became of them.",
	}, []string{"kind", "result"})}
	for _, result := range []string{resultAdded, resultRepeated, resultParked} {
		m.items.WithLabelValues(string(coupon.NoticeExpired), result)
	}
	reg.MustRegister(m.items)
	return m
}

type closerMetrics struct {
	notices    *prometheus.CounterVec
	suppressed *prometheus.CounterVec
}

func newCloserMetrics(reg prometheus.Registerer, channels []coupon.Channel) *closerMetrics {
	m := &closerMetrics{
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_notices_total", Help: "Notices by channel, kind and result of their delivery.",
		}, []string{"channel", "kind", "result"}),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_notices_suppressed_total", Help: "Notices recorded and not sent, by reason.",
		}, []string{"reason"}),
	}
	for _, channel := range channels {
		for _, result := range []string{resultSent, resultRepeated, resultFailed} {
			m.notices.WithLabelValues(string(channel), string(coupon.NoticeExpired), result)
		}
	}
	m.suppressed.WithLabelValues(reasonEmpty)
	reg.MustRegister(m.notices, m.suppressed)
	return m
}

func (m *closerMetrics) count(channel coupon.Channel, kind coupon.NoticeKind, result string, n int) {
	if n > 0 {
		m.notices.WithLabelValues(string(channel), string(kind), result).Add(float64(n))
	}
}
