// Package lifecycle starts a process's parts in order and stops them in reverse, each within a bound.
//
// States, each entered once:
//
//	new ──Start──▶ starting ──▶ running ──Stop, a signal, or a loop that ends──▶ stopping ──▶ stopped
//	 └──Stop────────────────────────────────────────────────────────────────────────────────────▲
//
// Invariants:
//   - a step is stopped if and only if its start succeeded, after every step added later has stopped
//   - readiness (Ready) turns false before anything is stopped, and Options.Propagate earlier than that
//   - Start and Stop may be called at any time, by anyone, any number of times; all callers of Stop get the same answer
//   - the context of a loop ends only when its turn to stop has come, with the cause ErrStop, so that work cut off by a
//     shutdown can be told from work that failed
//   - every start and stop is bounded: one that does not return in time is named, left behind, and the others go on
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// ErrStop is the cause of a context that ended because the process is stopping in good order.
var ErrStop = errors.New("stopping")

// ErrStopped is returned by Start once Stop has been called.
var ErrStopped = errors.New("already stopped")

var errLoopEnded = errors.New("a loop ended")

// Stopping reports whether ctx ended because of an orderly stop, as opposed to a timeout or a caller that gave up.
func Stopping(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrStop) }

// Func is one start or stop. It must return soon after its context ends.
type Func func(ctx context.Context) error

// Options of an App; the zero value of a field means its default.
type Options struct {
	Logger      *zap.Logger   // default: none
	StartWithin time.Duration // bound of a step's start, default 30 s
	StopWithin  time.Duration // bound of a step's stop, default 10 s
	// Propagate is how long Ready is false before the first step is stopped, so that whoever routes to us has seen it.
	// Default 0.
	Propagate time.Duration
}

// StepOption changes one step's bounds.
type StepOption func(*step)

// StartWithin bounds this step's start.
func StartWithin(d time.Duration) StepOption { return func(s *step) { s.startWithin = d } }

// StopWithin bounds this step's stop.
func StopWithin(d time.Duration) StepOption { return func(s *step) { s.stopWithin = d } }

type step struct {
	name                    string
	start, stop             Func
	startWithin, stopWithin time.Duration
}

type state int

const (
	stateNew state = iota
	stateStarting
	stateRunning
	stateStopping
	stateStopped
)

func (s state) String() string {
	switch s {
	case stateNew:
		return "not started"
	case stateStarting:
		return "starting"
	case stateRunning:
		return "running"
	case stateStopping:
		return "stopping"
	case stateStopped:
		return "stopped"
	}

	return "unknown"
}

// App is one process's parts. Make it with New, register with Add and Go, then Run.
type App struct {
	opts   Options
	logger *zap.Logger

	mu       sync.Mutex
	state    state
	steps    []step
	failures []error // of loops that ended unasked
	startErr error
	stopErr  error

	cancelStart context.CancelCauseFunc // set by Start
	started     int                     // steps whose start succeeded; owned by Start until startDone is closed
	startDone   chan struct{}
	stopDone    chan struct{}
	failed      chan struct{} // closed with the first failure
}

// New returns an App without steps.
func New(opts Options) *App {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	if opts.StartWithin <= 0 {
		opts.StartWithin = 30 * time.Second
	}
	if opts.StopWithin <= 0 {
		opts.StopWithin = 10 * time.Second
	}

	return &App{
		opts: opts, logger: opts.Logger,
		startDone: make(chan struct{}), stopDone: make(chan struct{}), failed: make(chan struct{}),
	}
}

// Add registers a step after those already there. Either function may be nil. Steps are registered before Start.
func (a *App) Add(name string, start, stop Func, opts ...StepOption) {
	s := step{name: name, start: start, stop: stop, startWithin: a.opts.StartWithin, stopWithin: a.opts.StopWithin}
	for _, o := range opts {
		o(&s)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps = append(a.steps, s)
}

// Go registers a loop as a step: started in its turn, and ended in its turn by its context (cause ErrStop). A loop that
// returns earlier, with an error or without, stops the whole App. What it returns because of the stop is no failure.
func (a *App) Go(name string, run Func, opts ...StepOption) {
	var cancel context.CancelCauseFunc
	done := make(chan error, 1)
	start := func(ctx context.Context) error {
		// The start's own deadline is not the loop's.
		ctx, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		go func() {
			err := run(ctx)
			if ctx.Err() == nil {
				a.fail(name, err)
				err = nil // reported as the failure
			}
			done <- err
		}()

		return nil
	}
	stop := func(ctx context.Context) error {
		cancel(ErrStop)
		select {
		case err := <-done:
			if errors.Is(err, ErrStop) || errors.Is(err, context.Canceled) {
				return nil
			}

			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.Add(name, start, stop, opts...)
}

func (a *App) fail(name string, err error) {
	if err == nil {
		err = errors.New("returned before it was asked to")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures = append(a.failures, fmt.Errorf("%s: %w", name, err))
	if len(a.failures) == 1 {
		close(a.failed)
		a.cancelStart(errLoopEnded) // nothing further need be started
	}
}

// Ready returns nil while running, else an error that names the state.
func (a *App) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state != stateRunning {
		return errors.New(a.state.String())
	}

	return nil
}

// Run starts everything, waits until ctx ends or a loop fails, and stops everything. It returns what failed, joined; nil
// when ctx ended and everything stopped in time. It logs what ended it (for a context of Signals: the signal).
func (a *App) Run(ctx context.Context) error {
	if err := a.Start(ctx); err != nil {
		asked := errors.Is(err, ErrStop) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx))
		if !asked || a.stopFailed() {
			return err
		}
		a.logger.Info("stopped while starting", zap.NamedError("cause", context.Cause(ctx)))

		return nil
	}
	a.logger.Info("running", zap.Duration("stops_within", a.StopsWithin()))
	select {
	case <-ctx.Done():
		a.logger.Info("stopping", zap.NamedError("cause", context.Cause(ctx)))
	case <-a.failed:
		a.mu.Lock()
		first := a.failures[0]
		a.mu.Unlock()
		a.logger.Error("stopping: a loop ended", zap.Error(first))
	case <-a.stopDone:
	}

	return a.Stop(context.WithoutCancel(ctx))
}

func (a *App) stopFailed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.stopErr != nil
}

// Start runs the steps' starts in order. If one fails, those before it are stopped and the error names it. Later calls wait
// for the first and return what it returned.
func (a *App) Start(ctx context.Context) error {
	a.mu.Lock()
	switch a.state {
	case stateStopping, stateStopped:
		a.mu.Unlock()

		return ErrStopped
	case stateStarting, stateRunning:
		a.mu.Unlock()
		select {
		case <-a.startDone:
			return a.startErr
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case stateNew:
	}
	a.state = stateStarting
	ctx, a.cancelStart = context.WithCancelCause(ctx)
	defer a.cancelStart(nil)
	steps := slices.Clone(a.steps)
	a.mu.Unlock()

	err := a.startSteps(ctx, steps)

	a.mu.Lock()
	switch {
	case err != nil:
	case a.state == stateStarting:
		a.state = stateRunning
	default: // Stop came while the last step started
		err = ErrStop
	}
	a.startErr = err
	close(a.startDone)
	a.mu.Unlock()
	if err == nil {
		return nil
	}

	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

func (a *App) startSteps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if ctx.Err() != nil {
			return fmt.Errorf("starting %s: %w", s.name, context.Cause(ctx))
		}
		began := time.Now()
		if err := bounded(ctx, s.startWithin, s.start); err != nil {
			return fmt.Errorf("starting %s: %w", s.name, err)
		}
		a.started++
		a.logger.Debug("started", zap.String("step", s.name), zap.Duration("took", time.Since(began)))
	}

	return nil
}

// StopsWithin is the longest that Stop may take, were every step to use up its bound. Whoever kills what does not stop must wait longer.
func (a *App) StopsWithin() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	within := a.opts.Propagate
	for _, s := range a.steps {
		if s.stop != nil {
			within += s.stopWithin + grace
		}
	}

	return within
}

// Stop stops what was started, in reverse, and returns what failed, joined and named, the failures of loops included. ctx
// bounds the whole from above; the caller's usually must not have ended yet (context.WithoutCancel). Later calls wait for the
// first and return what it returned.
func (a *App) Stop(ctx context.Context) error {
	a.mu.Lock()
	was := a.state
	switch was {
	case stateNew:
		a.state = stateStopped
		close(a.stopDone)
		a.mu.Unlock()

		return nil
	case stateStopping, stateStopped:
		a.mu.Unlock()
		select {
		case <-a.stopDone:
			return a.stopErr
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case stateStarting:
		a.cancelStart(ErrStop)
	case stateRunning:
	}
	a.state = stateStopping // readiness is false from here on
	steps := slices.Clone(a.steps)
	a.mu.Unlock()

	<-a.startDone // bounded, for each start is
	if was == stateRunning && a.opts.Propagate > 0 {
		select {
		case <-time.After(a.opts.Propagate):
		case <-a.failed:
		case <-ctx.Done():
		}
	}
	errs := a.stopSteps(ctx, steps[:a.started])

	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopErr = errors.Join(append(slices.Clone(a.failures), errs...)...)
	a.state = stateStopped
	close(a.stopDone)

	return a.stopErr
}

func (a *App) stopSteps(ctx context.Context, steps []step) []error {
	var errs []error
	for _, s := range slices.Backward(steps) {
		began := time.Now()
		if err := bounded(ctx, s.stopWithin, s.stop); err != nil {
			errs = append(errs, fmt.Errorf("stopping %s: %w", s.name, err))

			continue
		}
		a.logger.Debug("stopped", zap.String("step", s.name), zap.Duration("took", time.Since(began)))
	}

	return errs
}

// grace is how long a function may take to return once its context has ended.
const grace = 500 * time.Millisecond

// bounded runs fn with a context that ends after d, and leaves it behind when it does not return then.
func bounded(ctx context.Context, d time.Duration, fn Func) error {
	if fn == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not done within %s", d))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case err := <-done:
		if err != nil {
			// Most functions return their context's bare error; the cause says more.
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}

		return nil
	case <-late.C:
		return fmt.Errorf("%w, and did not return: left behind", context.Cause(ctx))
	}
}
