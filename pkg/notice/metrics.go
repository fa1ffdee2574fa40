package notice

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Results in metric labels.
const (
	resultAdded    = "added"
	resultRepeated = "repeated"
	resultParked   = "parked"
	resultPassed   = "passed" // at_risk: handed on

	resultSent       = "sent"
	resultRetry      = "retry"      // did not go out, comes again
	resultThrottled  = "throttled"  // the provider asks for a pause, comes again
	resultDeferred   = "deferred"   // its hour is not a permitted one any more, or its provider is down; comes again
	resultFailed     = "failed"     // for good
	resultUnknown    = "unknown"    // may have gone out, and is not sent again
	resultSuppressed = "suppressed" // in the last step
)

func results() []string {
	return []string{resultSent, resultRetry, resultThrottled, resultDeferred, resultFailed, resultUnknown, resultSuppressed}
}

// Labels of events that are no notice.
const (
	kindAtRisk    = "at_risk"
	kindHeartbeat = "heartbeat"
)

const reasonOther = "other"

// reasons are the labels of what is suppressed; anything else counts as other.
func reasons() []string {
	return []string{
		coupon.ReasonEmpty, coupon.ReasonChanged, coupon.ReasonAbsent, coupon.ReasonRepeated, coupon.ReasonSkipped, coupon.ReasonStale,
		coupon.ReasonLate, coupon.ReasonQuiet, coupon.ReasonCap, coupon.ReasonOptOut, coupon.ReasonInactive, coupon.ReasonAddress,
		coupon.ReasonErased, coupon.ReasonTooLate, coupon.ReasonOff, reasonOther,
	}
}

type collectorMetrics struct {
	items *prometheus.CounterVec
}

func newCollectorMetrics(reg prometheus.Registerer) *collectorMetrics {
	m := &collectorMetrics{items: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_notice_items_total", Help: "Events collected for notices, by what became of them.",
	}, []string{"kind", "result"})}
	for _, kind := range coupon.NoticeKinds() {
		for _, result := range []string{resultAdded, resultRepeated, resultParked, coupon.ReasonSkipped, coupon.ReasonStale} {
			m.items.WithLabelValues(string(kind), result)
		}
	}
	for _, kind := range []string{kindAtRisk, kindHeartbeat} {
		m.items.WithLabelValues(kind, resultPassed)
		m.items.WithLabelValues(kind, resultParked)
	}
	m.items.WithLabelValues(reasonOther, resultParked)
	reg.MustRegister(m.items)
	return m
}

// Metrics are those that closer and sender share.
type Metrics struct {
	notices    *prometheus.CounterVec
	suppressed *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	up         *prometheus.GaugeVec
}

// NewMetrics registers them, for the channels that there are.
func NewMetrics(reg prometheus.Registerer, channels []coupon.Channel) *Metrics {
	m := &Metrics{
		notices: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_notices_total", Help: "Tries to send notices, by channel, kind and what became of them.",
		}, []string{"channel", "kind", "result"}),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_notices_suppressed_total", Help: "Notices recorded and not sent, by reason.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_notice_send_seconds", Help: "Time that a channel takes to send, in seconds.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}, []string{"channel"}),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_provider_up", Help: "1 while the channel's provider is taken to work, 0 while its circuit is open.",
		}, []string{"channel"}),
	}
	for _, channel := range channels {
		for _, kind := range coupon.NoticeKinds() {
			for _, result := range results() {
				m.notices.WithLabelValues(string(channel), string(kind), result)
			}
		}
		m.seconds.WithLabelValues(string(channel))
		m.up.WithLabelValues(string(channel)).Set(1)
	}
	for _, reason := range reasons() {
		m.suppressed.WithLabelValues(reason)
	}
	reg.MustRegister(m.notices, m.suppressed, m.seconds, m.up)
	return m
}

func (m *Metrics) count(channel coupon.Channel, kind coupon.NoticeKind, result string, n int) {
	if n > 0 {
		m.notices.WithLabelValues(string(channel), string(kind), result).Add(float64(n))
	}
}

func (m *Metrics) suppress(reason string, n int) {
	if !slices.Contains(reasons(), reason) {
		reason = reasonOther
	}
	m.suppressed.WithLabelValues(reason).Add(float64(n))
}
