package api

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// noRoute is the route of what has none, as a label and in the access log.
const noRoute = "none"

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	waiting  *prometheus.GaugeVec
	gathered prometheus.Histogram
	grants   *prometheus.CounterVec
	receipts *prometheus.CounterVec
	optouts  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_http_requests_total", Help: "Requests by route, method and class of status.",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_http_seconds", Help: "Time from a request's headers to its answer.",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_http_inflight", Help: "Requests of a scope at work or waiting for their turn.",
		}, []string{"scope"}),
		gathered: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lapse_http_gathered_grants", Help: "Single grants that were put into one transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}),
	}
	m.grants = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_http_grants_total", Help: "Grants that were asked for over HTTP, by their result.",
	}, []string{"result"})
	for _, r := range []string{resultGranted, resultRepeated, resultRefused} {
		m.grants.WithLabelValues(r)
	}
	m.receipts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_notice_receipts_total", Help: "Receipts of providers for notices, by channel, what they say, and whether the notice is known.",
	}, []string{"channel", "status", "result"})
	m.optouts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lapse_optouts_total", Help: "Opt-outs that providers told, by whether the notice that they name is known.",
	}, []string{"result"})
	for _, result := range []string{resultRecorded, resultUnknown} {
		m.optouts.WithLabelValues(result)
		for _, c := range coupon.Channels() {
			m.receipts.WithLabelValues(string(c), "delivered", result)
			m.receipts.WithLabelValues(string(c), "failed", result)
		}
	}
	reg.MustRegister(m.requests, m.seconds, m.waiting, m.gathered, m.grants, m.receipts, m.optouts)
	m.route(noRoute, noRoute)
	for _, s := range lanes() {
		m.waiting.WithLabelValues(string(s))
	}
	return m
}

func (m *metrics) granted(g coupon.Granted) {
	switch {
	case g.Refused != "":
		m.grants.WithLabelValues(resultRefused).Inc()
	case g.Repeated:
		m.grants.WithLabelValues(resultRepeated).Inc()
	default:
		m.grants.WithLabelValues(resultGranted).Inc()
	}
}

// route makes the labels of a route.
func (m *metrics) route(path, method string) {
	for _, class := range []string{"2xx", "4xx", "5xx"} {
		m.requests.WithLabelValues(path, method, class)
	}
	m.seconds.WithLabelValues(path)
}

func (m *metrics) count(path, method string, status int, took time.Duration) {
	m.requests.WithLabelValues(path, method, strconv.Itoa(status/100)+"xx").Inc()
	m.seconds.WithLabelValues(path).Observe(took.Seconds())
}
