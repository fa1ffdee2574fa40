package telemetry

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	askEvery   = 10 * time.Second
	askTimeout = 5 * time.Second // less than a scrape waits
)

// Asked is a collector of figures that are asked for when they are scraped, at most every ten seconds and for at most five: what the
// database knows of the whole fleet. One kind of process registers it; queries use max(). After an error its metrics are absent until
// it is asked again. Safe for concurrent scrapes.
type Asked[T any] struct {
	ask   func(context.Context) (T, error)
	show  func(T, chan<- prometheus.Metric)
	descs []*prometheus.Desc
	now   func() time.Time

	mu    sync.Mutex
	at    time.Time // of the last attempt
	last  T
	known bool
}

// NewAsked makes a collector of the metrics described: ask reads the figures, show gives them out. now may be nil for time.Now.
func NewAsked[T any](
	ask func(context.Context) (T, error), show func(T, chan<- prometheus.Metric), now func() time.Time, descs ...*prometheus.Desc,
) *Asked[T] {
	if now == nil {
		now = time.Now
	}
	return &Asked[T]{ask: ask, show: show, descs: descs, now: now}
}

// Describe implements prometheus.Collector.
func (a *Asked[T]) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range a.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Asked[T]) Collect(ch chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.now(); a.at.IsZero() || now.Sub(a.at) >= askEvery {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		var err error
		a.last, err = a.ask(ctx)
		a.at, a.known = now, err == nil
	}
	if a.known {
		a.show(a.last, ch)
	}
}
