package pulse

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// Every is how often a process tells of itself.
	Every = 5 * time.Second
	// Window is what timings and counts are of.
	Window     = windows * Every
	windows    = 3
	lateSlots  = 12 // a minute
	learnFrom  = 5  // runs that five seconds must have for their mean to be calm
	hangingFor = time.Second
)

// What is counted. Counts are of the last Window.
const (
	CountIssued    = "issued"
	CountExpired   = "expired"   // by whatever rang, a freed lock included
	CountPublished = "published" // confirmed messages
	CountNotices   = "notices"
	CountRecovered = "recovered" // settled by the sweep
	CountSkipped   = "skipped"   // rows that the sweep could not change
)

type slot struct {
	count, failed int64
	sum, max      time.Duration
}

// Recorder gathers what one process does. Safe for concurrent use; nil records nothing.
type Recorder struct {
	now     func() time.Time
	seconds map[Stage]prometheus.Observer

	mu      sync.Mutex
	current int // of windows
	turn    int // of the slots of lateness
	slots   [windows]map[Stage]slot
	counts  [windows]map[string]int64
	late    [lateSlots]Lateness
	learned map[Stage]time.Duration
	flying  map[*flight]struct{}
	mode    string
}

type flight struct {
	stage Stage
	began time.Time
}

// NewRecorder makes one, with lapse_stage_seconds; now may be nil for time.Now.
func NewRecorder(now func() time.Time, reg prometheus.Registerer) *Recorder {
	if now == nil {
		now = time.Now
	}
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "lapse_stage_seconds", Help: "Time of each stage of the walk.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"stage"})
	reg.MustRegister(seconds)
	r := &Recorder{now: now, seconds: map[Stage]prometheus.Observer{}, learned: map[Stage]time.Duration{}, flying: map[*flight]struct{}{}}
	for _, s := range Stages() {
		r.seconds[s] = seconds.WithLabelValues(string(s))
	}
	for i := range windows {
		r.slots[i], r.counts[i] = map[Stage]slot{}, map[string]int64{}
	}
	return r
}

// Observe notes one run of a stage.
func (r *Recorder) Observe(s Stage, took time.Duration, failed bool) {
	if r == nil {
		return
	}
	r.seconds[s].Observe(took.Seconds())
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note(s, took, failed)
}

func (r *Recorder) note(s Stage, took time.Duration, failed bool) {
	at := r.slots[r.current][s]
	at.count++
	if failed {
		at.failed++
	}
	at.sum, at.max = at.sum+took, max(at.max, took)
	r.slots[r.current][s] = at
}

// Begin notes that a stage begins; the function that it gives ends it. One that hangs shows before its end.
func (r *Recorder) Begin(s Stage) (end func(less time.Duration, failed bool)) {
	if r == nil {
		return func(time.Duration, bool) {}
	}
	f := &flight{s, r.now()}
	r.mu.Lock()
	r.flying[f] = struct{}{}
	r.mu.Unlock()
	return func(less time.Duration, failed bool) {
		took := max(0, r.now().Sub(f.began)-less)
		r.seconds[s].Observe(took.Seconds())
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.flying, f)
		r.note(s, took, failed)
	}
}

// Count adds to what was done.
func (r *Recorder) Count(what string, n int) {
	if r == nil || n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[r.current][what] += int64(n)
}

// Late notes how late a coupon expired.
func (r *Recorder) Late(by time.Duration) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.late[r.turn][lateBucket(by)]++
}

// Mode says how the sweep works now: a word.
func (r *Recorder) Mode(mode string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode = mode
}

// take gives what the last windows hold and begins a new one.
func (r *Recorder) take() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for s, at := range r.slots[r.current] {
		if mean := at.sum / time.Duration(max(1, at.count)); at.count >= learnFrom && 2*at.failed <= at.count && (r.learned[s] == 0 || mean < r.learned[s]) {
			r.learned[s] = mean
		}
	}
	out := Report{Mode: r.mode, Stages: map[Stage]Timing{}, Counts: map[string]int64{}}
	sums := map[Stage]slot{}
	for i := range windows {
		for s, at := range r.slots[i] {
			sum := sums[s]
			sums[s] = slot{sum.count + at.count, sum.failed + at.failed, sum.sum + at.sum, max(sum.max, at.max)}
		}
		for what, n := range r.counts[i] {
			out.Counts[what] += n
		}
	}
	for f := range r.flying {
		if age := now.Sub(f.began); age > hangingFor {
			sum := sums[f.stage]
			sums[f.stage] = slot{sum.count + 1, sum.failed, sum.sum + age, max(sum.max, age)}
		}
	}
	for s, sum := range sums {
		out.Stages[s] = Timing{Count: sum.count, Failed: sum.failed, Mean: sum.sum / time.Duration(sum.count), Max: sum.max, Calm: s.calm(r.learned[s])}
	}
	for i := range r.late {
		out.Late.Add(r.late[i])
	}
	r.current = (r.current + 1) % windows
	clear(r.slots[r.current])
	clear(r.counts[r.current])
	r.turn = (r.turn + 1) % lateSlots
	r.late[r.turn] = Lateness{}
	return out
}

type spentKey struct{}

// spent is the time that the database took within a context.
type spent struct {
	mu  sync.Mutex
	sum time.Duration
}

// Measured gives a context in which the database's time is summed up, and what tells the sum.
func Measured(ctx context.Context) (context.Context, func() time.Duration) {
	s := &spent{}
	return context.WithValue(ctx, spentKey{}, s), func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.sum
	}
}

// Spent adds to the sum of the context, if it has one.
func Spent(ctx context.Context, took time.Duration) {
	if s, ok := ctx.Value(spentKey{}).(*spent); ok {
		s.mu.Lock()
		s.sum += took
		s.mu.Unlock()
	}
}
