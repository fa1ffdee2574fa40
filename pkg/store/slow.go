package store

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// slowEvery is how often one statement's slowness is logged at most; every slow run is counted.
const slowEvery = time.Minute

// slow notices statements that take long (requirement R26): the time that the caller waited, waiting for a connection of
// the pool and for row locks included. It logs a statement's name, rows and time, and never what was asked for: neither
// its arguments nor the server's complaint, which may repeat them.
type slow struct {
	limit time.Duration // 0: off
	log   *zap.Logger
	now   func() time.Time
	total *prometheus.CounterVec

	mu   sync.Mutex
	runs map[string]*slowRuns // by statement: as many as are defined
}

// slowRuns is what is known of one statement since it was last logged.
type slowRuns struct {
	logged   time.Time
	withheld int
	longest  time.Duration
}

func newSlow(limit time.Duration, log *zap.Logger, now func() time.Time) *slow {
	w := &slow{
		limit: limit, log: log, now: now, runs: make(map[string]*slowRuns),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lapse_slow_statements_total", Help: "SQL statements that took longer than database.slow.",
		}, []string{"statement"}),
	}
	for _, st := range registry {
		w.total.WithLabelValues(st.Name)
	}
	return w
}

func (w *slow) note(name string, took time.Duration, rows int64, err error) {
	if w.limit == 0 || took <= w.limit {
		return
	}
	w.total.WithLabelValues(name).Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.runs[name]
	if r == nil {
		r = &slowRuns{}
		w.runs[name] = r
	}
	now := w.now()
	if !r.logged.IsZero() && now.Sub(r.logged) < slowEvery {
		r.withheld++
		r.longest = max(r.longest, took)
		return
	}
	fields := []zap.Field{zap.String("statement", name), zap.Duration("took", took)}
	if err == nil {
		fields = append(fields, zap.Int64("rows", rows))
	} else {
		fields = append(fields, zap.Bool("failed", true))
	}
	if r.withheld > 0 {
		fields = append(fields, zap.Int("withheld", r.withheld), zap.Duration("longest_withheld", r.longest))
	}
	*r = slowRuns{logged: now}
	w.log.Warn("slow statement", fields...)
}
