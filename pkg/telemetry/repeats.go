package telemetry

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// Repeats logs the errors of one loop: an error once, then again only every so often with the count of those in between, and
// one line when the loop is well again. Two errors are the same if their texts differ in digits at most (ports, ids, times).
// Safe for concurrent use.
type Repeats struct {
	logger *zap.Logger
	every  time.Duration
	now    func() time.Time

	mu       sync.Mutex
	key      string
	since    time.Time // the first of this run of failures
	logged   time.Time // the last one that was logged
	withheld int       // since then
	total    int       // of this run of failures
}

// NewRepeats returns a Repeats that reports an error that lasts every so often (0: one minute). now may be nil for time.Now.
func NewRepeats(logger *zap.Logger, every time.Duration, now func() time.Time) *Repeats {
	if every <= 0 {
		every = time.Minute
	}
	if now == nil {
		now = time.Now
	}

	return &Repeats{logger: logger, every: every, now: now}
}

// Failed notes one failure. msg and fields say what failed; they are logged as a warning when this one is.
func (r *Repeats) Failed(msg string, err error, fields ...zap.Field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, key := r.now(), withoutDigits(msg+": "+err.Error())
	if r.total == 0 {
		r.since = now
	}
	r.total++
	if key == r.key && now.Sub(r.logged) < r.every {
		r.withheld++

		return
	}
	fields = append(fields[:len(fields):len(fields)], zap.Error(err))
	if r.withheld > 0 {
		fields = append(fields, zap.Int("withheld", r.withheld))
	}
	r.key, r.logged, r.withheld = key, now, 0
	r.logger.Warn(msg, fields...)
}

// Recovered notes a success. After failures it logs msg with their number and how long they lasted; else nothing.
func (r *Repeats) Recovered(msg string, fields ...zap.Field) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total == 0 {
		return
	}
	fields = append(fields[:len(fields):len(fields)], zap.Int("failures", r.total), zap.Duration("after", r.now().Sub(r.since)))
	r.key, r.withheld, r.total = "", 0, 0
	r.logger.Info(msg, fields...)
}

// Tell gives what takes in each outcome of a loop: failed is said of an error, recovered of the first success after one.
func (r *Repeats) Tell(failed, recovered string) func(error) {
	return func(err error) {
		if err != nil {
			r.Failed(failed, err)
		} else {
			r.Recovered(recovered)
		}
	}
}

// withoutDigits replaces each run of digits by one mark.
func withoutDigits(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		digit := s[i] >= '0' && s[i] <= '9'
		switch {
		case !digit:
			out = append(out, s[i])
		case len(out) == 0 || out[len(out)-1] != '#':
			out = append(out, '#')
		}
	}

	return string(out)
}
