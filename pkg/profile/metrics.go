package profile

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lapsehq/lapse/pkg/event"
)

type metrics struct {
	events   *prometheus.CounterVec
	unknown  *prometheus.CounterVec
	dropped  prometheus.Counter
	pruned   prometheus.Counter
	resealed prometheus.Counter
	locked   prometheus.Gauge
}

// Results of a user event, as labels.
const (
	resultDone   = "done"
	resultParked = "parked"

	typeUnknown = "unknown" // of what cannot be read
)

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_user_events_total", Help: "User events by what became of them.",
		}, []string{"type", "result"}),
		unknown: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_user_unknown_total", Help: "Profiles taken without a fact that is not known here.",
		}, []string{"fact"}),
		dropped:  counter("lapse_user_addresses_dropped_total", "Profiles whose addresses were not kept, since there is no key."),
		pruned:   counter("lapse_user_profiles_pruned_total", "Profiles removed since nothing was heard of the user."),
		resealed: counter("lapse_user_addresses_resealed_total", "Addresses sealed again with the active key."),
		locked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_user_addresses_locked", Help: "Addresses found at the last look whose key is not configured, or which do not open.",
		}),
	}
	for _, t := range event.UserTypes() {
		for _, r := range []string{resultDone, resultParked} {
			m.events.WithLabelValues(label(t), r)
		}
	}
	m.events.WithLabelValues(typeUnknown, resultParked)
	for _, fact := range []string{"locale", "zone"} {
		m.unknown.WithLabelValues(fact)
	}
	reg.MustRegister(m.events, m.unknown, m.dropped, m.pruned, m.resealed, m.locked)
	return m
}

// label is a type's name in metrics: activity, profile, deleted.
func label(typ string) string {
	return strings.TrimSuffix(strings.TrimPrefix(typ, "user."), ".v1")
}
