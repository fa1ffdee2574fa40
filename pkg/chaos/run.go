package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	prepareLimit = 3 * time.Minute
	loadTail     = 50 * time.Second // what the load may still take after its time
	closeLimit   = 3 * time.Minute
	readLimit    = 5 * time.Minute
	// settleBound is how long after the last end and the last fault everything must be settled: what the sweep leaves to the ladder, the
	// longest lease and retry, the age of a notice's window, and a slow machine.
	settleBound = 90 * time.Second
	failedLogs  = "chaos-failed"
)

// run is one seed on its way.
type run struct {
	cfg    Config
	site   *site
	began  time.Time // the load
	due    int       // strikes of the schedule
	result *Result

	mu     sync.Mutex
	struck []Struck
	ends   []time.Time // of struck
}

// Run runs one seed. An error says that it did not come to its end; what the judge found is in the result.
func Run(ctx context.Context, cfg Config) (result Result, err error) {
	result = Result{Seed: cfg.Seed, Coupons: cfg.Coupons, For: cfg.For.Seconds(), Asked: asked(cfg.Faults), Commit: cfg.Commit}
	if err := cfg.Validate(); err != nil {
		return result, err
	}
	if cfg.NeedsCluster() && cfg.Stack.Nodes() < clusterNodes {
		return result, errNoNodes
	}
	r := &run{cfg: cfg, result: &result}
	cfg.View.Step(fmt.Sprintf("seed %d: %d coupons, %s", cfg.Seed, cfg.Coupons, cfg.For))
	prepare, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	r.site, err = open(prepare, cfg)
	defer func() {
		logs := ""
		if (err != nil || !result.Passed) && ctx.Err() == nil {
			logs = fmt.Sprintf("%s-%d", failedLogs, cfg.Seed)
		}
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		kept, cerr := r.site.close(limit, logs)
		if kept != "" {
			cfg.View.Step("logs of the workers: " + kept)
		}
		err = errors.Join(err, cerr)
	}()
	if err != nil {
		return result, err
	}
	if result.Servers, err = cfg.Stack.Versions(prepare); err != nil {
		return result, err
	}
	l, err := r.site.prepare(prepare, cfg.Coupons)
	if err != nil {
		return result, fmt.Errorf("preparing the load: %w", err)
	}
	err = r.strike(ctx, l)
	return result, err
}

func asked(faults []string) string {
	if len(faults) == 0 {
		return "all"
	}
	return strings.Join(faults, ",")
}

// strike lets load and faults run, waits until everything has settled, and judges.
func (r *run) strike(ctx context.Context, l *load) error {
	schedule := Schedule(r.cfg.Seed, r.cfg.For, r.cfg.Faults)
	r.due = len(schedule)
	for _, k := range schedule {
		r.cfg.View.Step(k.String())
	}
	beside, stop := context.WithCancel(ctx)
	var owned sync.WaitGroup
	defer owned.Wait()
	defer stop()
	p := &probes{}
	owned.Go(func() { p.run(beside, r.site) })
	owned.Go(func() { r.mind(beside) })

	r.began = time.Now()
	driving, cancel := context.WithTimeout(ctx, r.cfg.For+loadTail)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() { l.drive(driving, plan(r.cfg.Seed, r.cfg.Coupons, r.cfg.For)) })
	for name, lane := range byLane(schedule) {
		both.Go(func() { r.lane(ctx, name, lane) })
	}
	both.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ended := time.Now()
	r.cfg.View.Step(fmt.Sprintf("%d calls made; quiet until everything has settled", l.calls.Load()))
	if err := r.site.settle(ctx, l, r.cfg.For); err != nil {
		return err
	}
	r.result.Quiet = time.Since(ended).Seconds()
	stop()
	owned.Wait()
	r.recoveries(p)
	reading, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return r.judge(reading, l)
}

func byLane(schedule []Strike) map[lane][]Strike {
	of := make(map[string]lane)
	for _, f := range Faults() {
		of[f.Name] = f.lane
	}
	out := make(map[lane][]Strike)
	for _, k := range schedule {
		out[of[k.Fault]] = append(out[of[k.Fault]], k)
	}
	return out
}

// lane strikes one after the other. A strike whose time has passed, since the one before took longer, comes at once.
func (r *run) lane(ctx context.Context, _ lane, strikes []Strike) {
	faults := make(map[string]Fault)
	for _, f := range Faults() {
		faults[f.Name] = f
	}
	for _, k := range strikes {
		if lifecycle.Sleep(ctx, max(0, time.Until(r.began.Add(k.At)))) != nil {
			return
		}
		if time.Since(r.began) > r.cfg.For {
			return // too late for another one: what is after the load is quiet
		}
		r.one(ctx, faults[k.Fault], k)
	}
}

// one injects a fault, holds it, and undoes it, whatever becomes of ctx.
func (r *run) one(ctx context.Context, f Fault, k Strike) {
	struck := Struck{Fault: k.Fault, Target: k.Target, At: k.At.Seconds(), Began: time.Since(r.began).Seconds()}
	until := time.Now().Add(k.For)
	undo, note, err := f.inject(ctx, r.site, k)
	struck.Note = note
	if err == nil && undo != nil {
		_ = lifecycle.Sleep(ctx, time.Until(until)) // undone all the same
	}
	if undo != nil {
		err = errors.Join(err, undo(context.WithoutCancel(ctx)))
	}
	if err != nil && ctx.Err() == nil {
		struck.Error = err.Error()
	}
	struck.Ended = time.Since(r.began).Seconds()
	text := fmt.Sprintf("%6.1f s  %s %s", struck.Began, k.Fault, k.Target)
	for _, more := range []string{note, struck.Error} {
		if more != "" {
			text += ": " + more
		}
	}
	r.cfg.View.Step(text)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.struck, r.ends = append(r.struck, struck), append(r.ends, time.Now())
}

// mind keeps the API's proxies aimed, and notes and starts again what ended by itself, so that one death does not hide the rest.
func (r *run) mind(ctx context.Context) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-r.site.fleet().Died():
			r.site.noteDeath(err.Error())
			r.cfg.View.Step("amiss: " + err.Error())
			r.site.revive(ctx)
		case <-tick.C:
			r.site.aim()
		}
	}
}

func (s *site) noteDeath(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.died = append(s.died, text)
}

// revive starts whatever is down and not meant to be.
func (s *site) revive(ctx context.Context) {
	for _, w := range workers() {
		s.mu.Lock()
		meant := s.out[w]
		s.mu.Unlock()
		if !meant && !s.fleet().Running(w) {
			_ = s.fleet().Launch(ctx, w) // its death has been noted
		}
	}
}

// recoveries says of each fault how long it took afterwards until nothing was late.
func (r *run) recoveries(p *probes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.struck {
		s := &r.struck[i]
		took, ok := p.after(r.ends[i])
		s.Recovery = took.Seconds()
		if !ok {
			s.Recovery = -1
		}
		if s.Recovery > r.result.Recovery {
			r.result.Recovery, r.result.RecoverOf = s.Recovery, strings.TrimSpace(s.Fault+" "+s.Target)
		}
	}
	r.result.Faults = r.struck
}

// judge reads the facts and holds the model against them.
func (r *run) judge(ctx context.Context, l *load) error {
	if r.cfg.Sabotage != "" {
		if err := r.site.damage(ctx, r.cfg.Sabotage); err != nil {
			return err
		}
	}
	r.cfg.View.Step("the judge reads rows, history, events and notices")
	facts, err := r.site.facts(ctx, r.result)
	if err != nil {
		return err
	}
	r.site.mu.Lock()
	r.result.Died = append(r.result.Died, r.site.died...)
	r.site.mu.Unlock()
	r.result.judge(l.promises, facts)
	for _, f := range r.result.Findings {
		r.cfg.View.Step("amiss: " + f)
	}
	if !r.result.Passed {
		return nil
	}
	err = hollow(r.due, len(r.result.Faults), r.cfg.Coupons, len(facts.Rows))
	r.result.Passed = err == nil
	return err
}

// hollow is the error of a run that found nothing wrong because hardly anything happened: the machine stood still, or was far too slow.
func hollow(due, struck, asked, granted int) error {
	const least = 2 // one in so many must have come about
	if least*struck >= due && least*granted >= asked {
		return nil
	}
	return fmt.Errorf("it says nothing: %d of %d faults struck, and %d of %d coupons were granted", struck, due, granted, asked)
}
