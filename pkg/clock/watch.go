package clock

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	lookEvery  = time.Second
	lookWithin = 3 * time.Second
	// reportEvery is how often what has not changed is reported again; a report of fifteen seconds ago counts no more.
	reportEvery = 5 * time.Second
)

// Source is the database, as far as clocks go.
type Source interface {
	// ReadClock gives the database's clock and the instant of the last acceptance, zero if there was none.
	ReadClock(ctx context.Context) (now, accepted time.Time, err error)
	// ReportClock keeps what a process sees.
	ReportClock(ctx context.Context, r coupon.ClockReport) error
	// ClockReports gives the recent reports of all processes.
	ClockReports(ctx context.Context) ([]coupon.ClockReport, error)
}

// Watch looks at the clocks for one process.
type Watch struct {
	guard  *Guard
	source Source
	pod    string
	role   string
	now    func() time.Time // the process's own clock
	log    *zap.Logger
	fails  *telemetry.Repeats

	offset   prometheus.Gauge
	tripped  bool
	reported coupon.ClockReport
	last     time.Time // when, by now
}

// Options of a Watch.
type Options struct {
	Pod, Role  string
	Now        func() time.Time // the process's own clock, monotonic reading included
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// NewWatch makes the watch of a process around its guard.
func NewWatch(g *Guard, source Source, o Options) *Watch {
	w := &Watch{
		guard: g, source: source, pod: o.Pod, role: o.Role, now: o.Now, log: o.Log, fails: telemetry.NewRepeats(o.Log, time.Minute, o.Now),
		offset: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lapse_clock_offset_seconds", Help: "How far the database's clock is ahead of this process's own.",
		}),
	}
	o.Registerer.MustRegister(w.offset,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lapse_clock_jump_seconds", Help: "How far the database's clock is ahead of where monotonic time expects it.",
		}, func() float64 { return g.State().Jump.Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "lapse_clock_tripped", Help: "1 while this process expires nothing, since the database's clock jumped ahead.",
		}, func() float64 {
			if g.State().Tripped {
				return 1
			}
			return 0
		}))
	return w
}

// Start looks for the first time, before anything may expire: a process that comes while all others have stopped is held.
// A database that cannot be asked holds nobody: nothing can expire without it either.
func (w *Watch) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	// Before the first look, which would believe.
	going, stopped, err := w.others(ctx)
	if err == nil && going == 0 && stopped > 0 {
		w.hold()
	}
	if err := w.look(ctx); err != nil {
		w.fails.Failed("the clocks could not be compared", err)
	}
	return nil
}

// Run looks every second until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := w.bounded(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			w.fails.Recovered("the clocks are compared again")
		default:
			w.fails.Failed("the clocks could not be compared", err)
		}
	}
}

func (w *Watch) bounded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	return w.look(ctx)
}

// look reads both clocks once, and tells.
func (w *Watch) look(ctx context.Context) error {
	began, allow := w.guard.now(), w.guard.Begin()
	before := w.now()
	db, accepted, err := w.source.ReadClock(ctx)
	if err != nil {
		return err //nolint:wrapcheck // named by the store
	}
	after := w.now()
	offset := db.Sub(before.Add(after.Sub(before) / 2).Round(0))
	w.offset.Set(offset.Seconds())
	believed := allow(db)
	if believed != nil && !errors.Is(believed, ErrAhead) {
		return believed
	}
	state := w.guard.State()
	if state.Held || state.Young {
		going, stopped, err := w.others(ctx)
		switch {
		case err != nil:
			return err
		case state.Held && going > 0:
			w.guard.Free()
			w.log.Info("the fleet expires; this process does, too")
		case !state.Held && going == 0 && stopped > 0:
			w.hold()
		}
	}
	if !accepted.IsZero() && w.guard.Accept(began, db, accepted) {
		w.log.Warn("an operator accepted the database's clock", zap.Time("accepted", accepted), zap.Duration("jump", state.Jump))
	}
	w.tell()
	return w.report(ctx, offset)
}

func (w *Watch) hold() {
	if w.guard.Hold() {
		w.log.Error("the fleet has stopped expiring for the database's clock; this process does, too")
	}
}

// others counts the other processes that believe the database's clock, and those that do not. One that has just come knows
// no better than this one, and is not counted, unless a person told it.
func (w *Watch) others(ctx context.Context) (going, stopped int, err error) {
	reports, err := w.source.ClockReports(ctx)
	if err != nil {
		return 0, 0, err //nolint:wrapcheck // named by the store
	}
	for _, r := range reports {
		switch {
		case r.Pod == w.pod:
		case r.Tripped:
			stopped++
		case r.Anchored.IsZero():
		case !r.Accepted.IsZero(), r.At.Sub(r.Anchored) > youth:
			going++
		}
	}
	return going, stopped, nil
}

// tell logs a change.
func (w *Watch) tell() {
	state := w.guard.State()
	if state.Tripped == w.tripped {
		return
	}
	w.tripped = state.Tripped
	if state.Tripped {
		w.log.Error("the database's clock is not believed: nothing expires until both clocks agree or an operator accepts it (lapsectl clock)",
			zap.Duration("jump", state.Jump), zap.Duration("tolerance", w.guard.tolerance))
		return
	}
	w.log.Info("the database's clock is believed again: expiring goes on", zap.Duration("jump", state.Jump))
}

func (w *Watch) report(ctx context.Context, offset time.Duration) error {
	state := w.guard.State()
	r := coupon.ClockReport{
		Pod: w.pod, Role: w.role, Offset: offset.Round(time.Millisecond), Jump: state.Jump.Round(time.Millisecond),
		Anchored: state.Anchored, Tripped: state.Tripped, Since: state.Since, Accepted: state.Accepted,
	}
	now := w.now()
	same := r.Tripped == w.reported.Tripped && r.Accepted.Equal(w.reported.Accepted) && r.Since.Equal(w.reported.Since)
	if same && !w.last.IsZero() && now.Sub(w.last) < reportEvery {
		return nil
	}
	if err := w.source.ReportClock(ctx, r); err != nil {
		return err //nolint:wrapcheck // named by the store
	}
	w.reported, w.last = r, now
	return nil
}
