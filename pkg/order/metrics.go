package order

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/event"
)

type metrics struct {
	orders *prometheus.CounterVec
}

// Results of an order event, as labels.
const (
	resultDone     = "done"     // a coupon moved, and none was refused
	resultRepeated = "repeated" // all had been done before
	resultRefused  = "refused"  // at least one coupon could not be moved
	resultPartial  = "partial"  // a partial refund, which moves nothing
	resultAside    = "aside"    // a coupon is held by somebody; the event comes back
	resultParked   = "parked"   // set aside for a person

	typeUnknown = "unknown" // of what cannot be read
)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{orders: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_orders_total", Help: "Order events by what became of them.",
	}, []string{"type", "result"})}
	for _, t := range event.OrderTypes() {
		for _, r := range []string{resultDone, resultRepeated, resultRefused, resultAside, resultParked} {
			m.orders.WithLabelValues(label(t), r)
		}
	}
	m.orders.WithLabelValues(label(event.TypeOrderRefunded), resultPartial)
	m.orders.WithLabelValues(typeUnknown, resultParked)
	reg.MustRegister(m.orders)
	return m
}

// label is a type's name in metrics: paid, closed, payment_failed, refunded.
func label(typ string) string {
	return strings.TrimSuffix(strings.TrimPrefix(typ, "order."), ".v1")
}

func (m *metrics) count(typ, result string) { m.orders.WithLabelValues(label(typ), result).Inc() }
