package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	statements   *prometheus.HistogramVec
	retries      prometheus.Counter
	quotaFloored prometheus.Counter
	slow         *slow
}

func newMetrics(reg prometheus.Registerer, slow *slow) *metrics {
	m := &metrics{
		slow: slow,
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
	reg.MustRegister(m.statements, m.retries, m.quotaFloored, slow.total)
	return m
}

// observe notes one run of a statement: rows changed or read, and whether it failed.
func (m *metrics) observe(st Statement, began time.Time, rows int64, err error) {
	took := time.Since(began)
	m.statements.WithLabelValues(st.Name).Observe(took.Seconds())
	m.slow.note(st.Name, took, rows, err)
}
