package expiry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

type metrics struct {
	lateness    *prometheus.HistogramVec
	early       prometheus.Counter
	triggers    *prometheus.CounterVec
	reschedules *prometheus.CounterVec
	batch       prometheus.Histogram
	recovered   prometheus.Counter
	failed      prometheus.Counter
	overdue     prometheus.Gauge
	oldest      prometheus.Gauge
}

// Results of a trigger and reasons of a reschedule, as labels.
const (
	resultDone    = "settled"
	resultDropped = "dropped"
	resultAgain   = "rescheduled"
	resultBusy    = "busy"
	resultRetried = "retried"
	resultParked  = "parked"
	resultHeld    = "held"
	resultPaused  = "paused" // an operator has paused it; the sweep settles it after that

	reasonRest  = "rest" // not due yet, longer than a moment
	reasonBusy  = "busy"
	reasonRetry = "retry"
)

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		lateness: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_expiry_lateness_seconds", Help: "From the due instant (the end plus the spread of its precision) to the committed transition, database clock.",
			Buckets: []float64{.025, .05, .1, .2, .3, .4, .5, .75, 1, 1.5, 2, 3, 5, 10, 30, 60, 120, 300, 600, 3600},
		}, []string{"precision"}),
		early: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_expired_early_total", Help: "Coupons expired before their end. Must stay 0.",
		}),
		triggers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_triggers_total", Help: "Triggers that came due, by what became of them.",
		}, []string{"kind", "result"}),
		reschedules: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_reschedules_total", Help: "Triggers sent through the ladder again.",
		}, []string{"reason"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lapse_batch_size", Help: "Triggers of one transaction.", Buckets: prometheus.ExponentialBuckets(1, 2, 11),
		}),
		recovered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_sweep_recovered_total", Help: "Coupons that the sweep settled: what the ladder lost.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_sweep_failed_total", Help: "Rows that the sweep could not change and went past.",
		}),
		overdue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_overdue_coupons", Help: "Unused coupons past their due instant and the grace, up to 10 000.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_overdue_oldest_seconds", Help: "How far back the oldest due instant of an overdue coupon lies.",
		}),
	}
	for _, p := range coupon.Precisions() {
		m.lateness.WithLabelValues(string(p))
	}
	for _, k := range []coupon.Kind{coupon.KindExpire, coupon.KindUnlock} {
		for _, r := range []string{resultDone, resultDropped, resultAgain, resultBusy, resultRetried, resultParked, resultHeld, resultPaused} {
			m.triggers.WithLabelValues(string(k), r)
		}
	}
	for _, r := range []string{reasonRest, reasonBusy, reasonRetry} {
		m.reschedules.WithLabelValues(r)
	}
	reg.MustRegister(m.lateness, m.early, m.triggers, m.reschedules, m.batch, m.recovered, m.failed,
		m.overdue, m.oldest)
	return m
}

// settled counts what a committed decision did; took is the time from before the decision to after the commit.
func (m *metrics) settled(t coupon.Trigger, s coupon.Settlement, now time.Time, took time.Duration) {
	switch s.Decision.Action {
	case coupon.Unlock:
	case coupon.Expire:
		if now.Before(s.Ends) {
			m.early.Inc()
		}
		// A reader's trigger, and one that the ladder let come a moment early, may settle an ended coupon before it is due.
		m.lateness.WithLabelValues(string(s.Terms.Precision)).Observe(max(0, now.Sub(s.DueAt)+took).Seconds())
	case coupon.Drop, coupon.Reschedule:
		return
	}
	if t.Origin == coupon.OriginSweep {
		m.recovered.Inc()
	}
}
