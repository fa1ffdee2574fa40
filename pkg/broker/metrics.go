package broker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one Client. Label values are queue names and fixed words only.
type metrics struct {
	unroutable prometheus.Counter
	unbound    prometheus.Counter
	published  *prometheus.CounterVec // result
	delivered  *prometheus.CounterVec // queue
	settled    *prometheus.CounterVec // queue, outcome
	pauses     *prometheus.CounterVec // queue
	subscribed *prometheus.GaugeVec   // queue
	connected  *prometheus.GaugeVec   // use
	blocked    prometheus.Gauge
	parked     *prometheus.GaugeVec // queue
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		unroutable: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_unroutable_total",
			Help: "Messages that no binding took: returned publishings, and dead letters found in the catch-all queue.",
		}),
		unbound: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lapse_events_unbound_total", Help: "Events that nobody has bound a queue for: dropped by design.",
		}),
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_broker_published_total", Help: "Published messages by what became of them.",
		}, []string{"result"}),
		delivered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_broker_delivered_total", Help: "Deliveries received.",
		}, []string{"queue"}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_broker_settled_total", Help: "Deliveries by how they were settled; stale = the ack came after the session's end and was refused.",
		}, []string{"queue", "outcome"}),
		pauses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_broker_pauses_total", Help: "Times a consumer stopped because its batches could not be handled.",
		}, []string{"queue"}),
		subscribed: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_broker_subscribed", Help: "1 while the queue is being consumed by this process.",
		}, []string{"queue"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_broker_connections", Help: "Open connections to RabbitMQ.",
		}, []string{"use"}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_broker_blocked", Help: "1 while RabbitMQ blocks the publishing connection (resource alarm).",
		}),
		parked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lapse_parked_messages", Help: "Messages that wait for a person.",
		}, []string{"queue"}),
	}
	for _, r := range []string{"confirmed", "returned", "nacked", "unknown", "blocked", "not_sent", "invalid"} {
		m.published.WithLabelValues(r)
	}
	for _, u := range []string{"publish", "consume"} {
		m.connected.WithLabelValues(u)
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.unroutable, m.unbound, m.published, m.delivered, m.settled, m.pauses, m.subscribed, m.connected, m.blocked, m.parked} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// queue pre-creates what is counted for one consumed queue.
func (m *metrics) queue(name string) {
	m.delivered.WithLabelValues(name)
	m.pauses.WithLabelValues(name)
	m.subscribed.WithLabelValues(name)
	for _, o := range []string{"ack", "forward", "park", "requeue", "stale"} {
		m.settled.WithLabelValues(name, o)
	}
}

// count adds up the results of one Publish.
func (m *metrics) count(results []error) {
	words := make(map[string]int, 1)
	for _, err := range results {
		words[word(err)]++
	}
	for w, n := range words {
		m.published.WithLabelValues(w).Add(float64(n))
	}
	m.unroutable.Add(float64(words["returned"]))
}

func word(err error) string {
	switch {
	case err == nil:
		return "confirmed"
	case errors.Is(err, ErrReturned):
		return "returned"
	case errors.Is(err, ErrNacked):
		return "nacked"
	case errors.Is(err, ErrBlocked):
		return "blocked"
	case errors.Is(err, ErrUnknown):
		return "unknown"
	case errors.Is(err, ErrInvalid):
		return "invalid"
	}
	return "not_sent"
}
