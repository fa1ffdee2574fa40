package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	statements   *prometheus.HistogramVec
	retries      prometheus.Counter
	quotaFloored prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		statements: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_statement_seconds", Help: "Time of each named SQL statement.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"statement"}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_transaction_retries_total", Help: "Transactions run again after a deadlock or a lock wait.",
		}),
		quotaFloored: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_quota_floored_total", Help: "Coupons whose quota could not come back, since the counter was at zero.",
		}),
	}
	for _, st := range registry {
		m.statements.WithLabelValues(st.Name)
	}
	reg.MustRegister(m.statements, m.retries, m.quotaFloored)
	return m
}

func (m *metrics) observe(st Statement, since time.Time) {
	m.statements.WithLabelValues(st.Name).Observe(time.Since(since).Seconds())
}
