package issuance

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

type metrics struct {
	issued *prometheus.CounterVec
}

// Results of a grant beside the codes of its refusal, as labels.
const (
	resultGranted  = "granted"
	resultRepeated = "repeated" // the key was known
	resultHeld     = "held"     // issuance is paused: it is granted when that is over
	resultParked   = "parked"   // a member that cannot be stored, or a member or whole event that cannot be read
)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{issued: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_issued_total", Help: "Grants by their answer.",
	}, []string{"result"})}
	for _, r := range []string{resultGranted, resultRepeated, resultHeld, resultParked} {
		m.issued.WithLabelValues(r)
	}
	for _, c := range []coupon.Code{
		coupon.CodeTemplateNotFound, coupon.CodeTemplateStopped, coupon.CodeQuotaExhausted, coupon.CodeUserLimit,
		coupon.CodeKeyConflict, coupon.CodeInvalid, coupon.CodeAlreadyEnded,
	} {
		m.issued.WithLabelValues(string(c))
	}
	reg.MustRegister(m.issued)
	return m
}

func (m *metrics) count(answers []coupon.Granted) {
	n := make(map[string]int, 2)
	for i := range answers {
		switch a := &answers[i]; {
		case a.Refused != "":
			n[string(a.Refused)]++
		case a.Held:
			n[resultHeld]++
		case a.Repeated:
			n[resultRepeated]++
		default:
			n[resultGranted]++
		}
	}
	for result, k := range n {
		m.issued.WithLabelValues(result).Add(float64(k))
	}
}
