package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/store"
)

const (
	prepareLimit = 2 * time.Minute
	readyLimit   = time.Minute
	clearLimit   = 2 * time.Minute
	showEvery    = 250 * time.Millisecond
)

// Result of a run that came to its end.
type Result struct {
	Report   audit.Report
	Failures []string      // what is amiss; none: it passed
	Granting time.Duration // from the first grant sent to the last one heard of as issued
	Last     time.Time     // the last end asked for
	Logs     string        // where the workers' logs were put, if it failed
	Kept     *Kept         // nil unless kept
}

// Kept says where what was kept is.
type Kept struct {
	Management, User, Password string
}

// run is one demo on its way.
type run struct {
	cfg      Config
	place    *place
	ladder   *ladder.Ladder
	codec    *event.Codec
	store    *store.Store
	template uint64
	audit    *audit.Audit
	fleet    *rig.Fleet
	plan     *schedule
	db       *sql.DB // for plain statements
	extra    int     // coupons to end that were asked for beyond the plan

	mu   sync.Mutex
	told int // from the last count
}

// Run does all of it. An error says that the run did not come to its end; what the audit found is in the result.
// However it ends, it has cleared up when it returns, unless the run is to be kept and came to its end.
func Run(ctx context.Context, cfg Config) (result Result, err error) {
	if err := cfg.Validate(); err != nil {
		return Result{}, err
	}
	if err := cfg.Stack.Check(ctx); err != nil {
		return Result{}, err
	}
	cfg.View = &oneAtATime{view: cfg.View}
	p, err := newPlace(cfg.Stack, cfg.Keep)
	if err != nil {
		return Result{}, err
	}
	p.reshape, p.mechanism = cfg.Ladder, cfg.Mechanism
	r := &run{cfg: cfg, place: p, fleet: p.fleet()}
	unlock, err := r.clearEarlier(ctx)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	defer func() { err = errors.Join(err, r.end(ctx, &result, err)) }()
	if err := r.prepare(ctx); err != nil {
		return Result{}, err
	}
	return r.watched(ctx)
}

// clearEarlier removes what an earlier run kept, unless a run that is to be kept is on its way now.
func (r *run) clearEarlier(ctx context.Context) (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(r.cfg.Stack.Dir, "run", "demo.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking out other demos: %w", err)
	}
	unlock = func() { _ = lock.Close() } // and with it the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if r.cfg.Keep {
			unlock()
			return nil, errors.New("another demo is running: wait for its end")
		}
		return unlock, nil
	}
	ctx, cancel := context.WithTimeout(ctx, clearLimit)
	defer cancel()
	if err := clearKept(ctx, r.cfg.Stack); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (r *run) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	r.cfg.View.Step("database " + r.place.database + ", queues of prefix " + r.place.prefix)
	err := errors.Join(os.MkdirAll(r.place.dir, 0o700), os.MkdirAll(filepath.Join(r.cfg.Stack.Dir, "run"), 0o700))
	if err != nil {
		return fmt.Errorf("making the run's directory: %w", err)
	}
	if r.ladder, err = r.place.ladder(); err != nil {
		return err
	}
	declared := make(chan error, 1)
	go func() { declared <- r.place.declare(ctx, r.ladder) }()
	err = r.prepareDatabase(ctx)
	if err := errors.Join(err, <-declared); err != nil {
		return err
	}
	r.audit, err = audit.Open(ctx, audit.Config{
		DSN: r.place.dsn(), AMQPURL: r.cfg.Stack.AMQPURL.Reveal(), Addresses: r.cfg.Stack.Addresses,
		Exchange: r.ladder.Events(), Queue: r.place.prefix + ".audit", Locks: r.cfg.Locks,
	})
	if err != nil {
		return err
	}
	r.cfg.View.Step("publisher, expirer, notifier")
	for _, name := range []string{Publisher, Expirer} {
		r.fleet.Add(r.place.program(r.cfg.Bin, name, r.more(name)))
	}
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := r.fleet.Start(ready); err != nil {
		return err
	}
	r.plan = newSchedule(r.cfg, r.audit.Now())
	r.fleet.Add(r.notifier())
	return nil
}

// notifier is told the last end, so that whatever expires is in one notice.
func (r *run) notifier() rig.Program {
	vars := map[string]string{
		"LAPSE__NOTICE__NOT_BEFORE": r.plan.closes().Format(time.RFC3339),
		"LAPSE__NOTICE__QUIET":      quiet.String(),
		"LAPSE__NOTICE__MAX_AGE":    "48h",
		"LAPSE__NOTICE__MAX_ITEMS":  fmt.Sprint(maxItems),
	}
	maps.Copy(vars, r.more(Notifier))
	return r.place.program(r.cfg.Bin, Notifier, vars)
}

func (r *run) more(worker string) map[string]string {
	if r.cfg.Env == nil {
		return nil
	}
	return r.cfg.Env(worker)
}

// renotify starts the notifier again, since the last end has moved.
func (r *run) renotify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := r.fleet.WaitReady(ctx, Notifier); err != nil {
		return err
	}
	if err := r.fleet.StopOne(ctx, Notifier); err != nil {
		return err
	}
	r.fleet.Add(r.notifier())
	return r.fleet.StartOne(ctx, Notifier)
}

func (r *run) prepareDatabase(ctx context.Context) error {
	if err := r.place.createDatabase(ctx); err != nil {
		return err
	}
	var err error
	if r.db, err = r.place.open(); err != nil {
		return err
	}
	if r.store, r.codec, err = r.place.openStore(ctx); err != nil {
		return err
	}
	if err := r.place.makeAccounts(ctx, r.ladder); err != nil {
		return err
	}
	r.template, err = newTemplate(ctx, r.store, "demo")
	return err
}

// watched lets the coupons come and go, shows it, and stops at once if a worker dies by itself.
func (r *run) watched(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var shows sync.WaitGroup
	defer shows.Wait()
	showing, stop := context.WithCancel(ctx)
	defer stop()
	shows.Go(func() {
		tick := time.NewTicker(showEvery)
		defer tick.Stop()
		for {
			select {
			case <-showing.Done():
				return
			case err := <-r.fleet.Died():
				cancel(err)
			case <-tick.C:
				r.cfg.View.Progress(r.progress())
			}
		}
	})
	result, err := r.walk(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	stop()
	shows.Wait()
	if err == nil {
		r.cfg.View.Progress(r.progress())
	}
	return result, err
}

func (r *run) progress() Progress {
	p := Progress{Progress: r.audit.Progress(), Coupons: r.cfg.Coupons}
	if p.Last.IsZero() {
		p.Last = r.audit.Now().Add(r.cfg.Over)
	}
	r.mu.Lock()
	p.Told = r.told
	r.mu.Unlock()
	p.Left = max(0, p.Last.Sub(r.audit.Now()))
	p.Due = max(0, min(p.Ended, p.Granted)-p.Expired)
	p.Waiting = max(0, p.Issued-p.Expired-p.Due)
	return p
}

func (r *run) walk(ctx context.Context) (Result, error) {
	// The notifier had to know the last end; its queue holds what it is not yet there for.
	beside, stop := context.WithCancel(ctx)
	var besides sync.WaitGroup
	defer besides.Wait()
	defer stop()
	notifying, killed := make(chan error, 1), make(chan error, 1)
	besides.Go(func() {
		ready, cancel := context.WithTimeout(beside, readyLimit)
		defer cancel()
		err := r.fleet.StartOne(ready, Notifier)
		notifying <- err
		if err == nil {
			err = r.kill(beside)
		}
		killed <- err
	})

	granting, err := r.grant(ctx)
	if err := errors.Join(err, <-notifying); err != nil {
		return Result{}, err
	}
	if err := r.damage(ctx); err != nil {
		return Result{}, err
	}
	if err := <-killed; err != nil {
		return Result{}, err
	}
	if r.cfg.During != nil {
		if err := r.cfg.During(ctx, &Stage{run: r}); err != nil {
			return Result{}, err
		}
	}
	if err := r.settle(ctx); err != nil {
		return Result{}, err
	}
	if err := r.damageAfterwards(ctx); err != nil {
		return Result{}, err
	}
	report, err := r.audit.Report(ctx)
	if err != nil {
		return Result{}, err
	}
	if r.cfg.Inspect != nil {
		if err := r.cfg.Inspect(ctx, &Stage{run: r}, &report); err != nil {
			return Result{}, err
		}
	}
	return Result{Report: report, Failures: report.Failures(r.cfg.Rules()), Granting: granting, Last: r.plan.last}, nil
}

// end clears up, or notes what stays. It has its own time: ctx may have been cancelled.
func (r *run) end(ctx context.Context, result *Result, failed error) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit)
	defer cancel()
	keep := r.cfg.Keep && failed == nil
	if !keep {
		r.cfg.View.Step("clearing up")
	}
	var errs []error
	if !keep {
		errs = append(errs, r.fleet.Stop(ctx))
	}
	if r.audit != nil {
		errs = append(errs, r.audit.Close(ctx))
	}
	if r.store != nil {
		errs = append(errs, r.store.Close())
	}
	if r.db != nil {
		errs = append(errs, r.db.Close())
	}
	if keep {
		errs = append(errs, r.place.keep())
		k := Kept{}
		k.Management, k.User, k.Password = r.place.management()
		result.Kept = &k
		return errors.Join(errs...)
	}
	if !interrupted && (failed != nil || len(result.Failures) > 0) {
		var err error
		result.Logs, err = r.place.saveLogs(r.cfg.Logs)
		errs = append(errs, err)
	}
	errs = append(errs, r.place.remove(ctx))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clearing up: %w", err)
	}
	return nil
}

// oneAtATime lets a view be called from several goroutines.
type oneAtATime struct {
	mu   sync.Mutex
	view View
}

func (v *oneAtATime) Step(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.view.Step(text)
}

func (v *oneAtATime) Progress(p Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.view.Progress(p)
}
