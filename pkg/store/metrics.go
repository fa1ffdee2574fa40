package store

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// move is a kind of transition. From is zero for a grant.
type move struct {
	from, to coupon.Status
	cause    coupon.Cause
}

// knownMoves lists every kind that verbs, triggers and grants take.
func knownMoves() []move {
	const (
		unused, locked, used, expired, voided = coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided
		order, admin                          = coupon.CauseOrder, coupon.CauseAdmin
	)
	return []move{
		{0, unused, coupon.CauseGrant},
		{unused, locked, order},
		{unused, used, order},
		{unused, expired, coupon.CauseLadder},
		{unused, expired, coupon.CauseSweep},
		{unused, expired, coupon.CauseLazy},
		{unused, expired, admin},
		{unused, unused, admin},
		{unused, voided, admin},
		{locked, locked, order},
		{locked, locked, admin},
		{locked, used, order},
		{locked, unused, order},
		{locked, unused, coupon.CauseLock},
		{locked, expired, coupon.CauseLock},
		{locked, voided, admin},
		{used, unused, coupon.CauseRefund},
		{used, expired, coupon.CauseRefund},
		{expired, unused, admin},
	}
}

type metrics struct {
	transitions  *prometheus.CounterVec
	statements   *prometheus.HistogramVec
	retries      prometheus.Counter
	quotaFloored prometheus.Counter
	reminders    *prometheus.CounterVec
	slow         *slow
}

func newMetrics(reg prometheus.Registerer, slow *slow) *metrics {
	m := &metrics{
		slow: slow,
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_transitions_total", Help: "Transitions of coupons that this process committed; from none: grants.",
		}, []string{"from", "to", "cause", "result"}),
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
	m.reminders = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_reminders_total", Help: "Reminders that were told of as events.",
		ConstLabels: prometheus.Labels{"source": "verb"}, // the planner counts its own
	}, []string{"offset"})
	for _, k := range knownMoves() {
		m.transition(k)
	}
	for _, st := range registry {
		m.statements.WithLabelValues(st.Name)
	}
	reg.MustRegister(m.transitions, m.statements, m.retries, m.quotaFloored, m.reminders, slow.total)
	return m
}

func (m *metrics) transition(k move) prometheus.Counter {
	from := "none"
	if k.from != 0 {
		from = k.from.String()
	}
	return m.transitions.WithLabelValues(from, k.to.String(), string(k.cause), "ok")
}

// moved counts transitions that were committed.
func (m *metrics) moved(moves map[move]int) {
	for k, n := range moves {
		m.transition(k).Add(float64(n))
	}
}

// reminded counts reminders whose transaction was committed. The offsets are the configuration's: a handful.
func (m *metrics) reminded(told map[string]int) {
	for offset, n := range told {
		m.reminders.WithLabelValues(offset).Add(float64(n))
	}
}

// observe notes one run of a statement: rows changed or read, and whether it failed.
func (m *metrics) observe(st Statement, began time.Time, rows int64, err error) {
	took := time.Since(began)
	m.statements.WithLabelValues(st.Name).Observe(took.Seconds())
	m.slow.note(st.Name, took, rows, err)
}
