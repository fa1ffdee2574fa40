package wakeup

import "github.com/prometheus/client_golang/prometheus"

// Results of an at_risk event, as labels.
const (
	resultGranted  = "granted"
	resultRepeated = "repeated" // had been granted before
	resultRefused  = "refused"  // by the template: its stock, its cap per user, its end
	resultHeld     = "held"     // issuance is paused: it is granted when that is over
	resultTold     = "told"     // no grant is offered here
	resultLate     = "late"     // the coupons have ended meanwhile
	resultParked   = "parked"   // set aside for a person
)

type metrics struct {
	wakeups *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{wakeups: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_wakeups_total", Help: "Events of users at risk, by what became of them.",
	}, []string{"result"})}
	for _, r := range []string{resultGranted, resultRepeated, resultRefused, resultHeld, resultTold, resultLate, resultParked} {
		m.wakeups.WithLabelValues(r)
	}
	reg.MustRegister(m.wakeups)
	return m
}

func (m *metrics) count(result string) { m.wakeups.WithLabelValues(result).Inc() }
