package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
)

// Config says what to measure, and how much of it.
type Config struct {
	Stack     rig.Stack
	Bin       string        // directory of the workers
	Scenarios []string      // none: all
	Subjects  []string      // none: all of a scenario
	Size      int           // coupons of a spike; everything else is in proportion
	Rows      int           // of the large table
	Runs      int           // of each subject, alternating
	Redis     string        // the rivals' server, as redis://…
	Lead      time.Duration // from planting to the first end, beside what planting takes
	Steady    time.Duration // of the steady load, and of the calm checkout
	CronEvery time.Duration // the cron rival's interval
	Commit    string

	token string // of the API, made for this run
}

// The full sizes, which docs/benchmarks.md is made of.
const (
	fullSize   = 100_000
	fullRows   = 30_000_000
	fullSteady = time.Minute
)

// metrics of one run, by name; the unit is the end of the name.
type metrics map[string]float64

// subject is what is measured in a scenario, beside others.
type subject struct {
	name, what string
	run        func(ctx context.Context) (metrics, error)
}

// scenario is one measurement of several subjects, which run alternately.
type scenario struct {
	name, what string
	subjects   func() []subject
	sites      []string // that nobody needs any more afterwards
}

// bench is a run.
type bench struct {
	cfg   Config
	view  *view
	sites map[string]*site
}

// view tells a person what is going on.
type view struct {
	out   io.Writer
	start time.Time
}

func (v *view) step(format string, args ...any) {
	fmt.Fprintf(v.out, "%7.1f s  %s\n", time.Since(v.start).Seconds(), fmt.Sprintf(format, args...)) //nolint:errcheck // it is for a person
}

func (b *bench) scenarios() []scenario {
	return []scenario{
		{name: "spike", what: "every coupon ends in the same instant; from that instant to the last event", subjects: b.spikes, sites: []string{"rivals"}},
		{name: "steady", what: "2 000 coupons end in every second", subjects: b.steadies},
		{name: "exact5k", what: "5 000 exact coupons end in one second", subjects: b.exacts},
		{name: "max_rate", what: "a spike, drained at the rate that expiry.max_rate allows", subjects: b.maxRates, sites: []string{"braked"}},
		{name: "issue", what: "grants over RabbitMQ, from the first to the last issued event and the last confirmed trigger", subjects: b.issues},
		{name: "api", what: "lock and redeem, 300 pairs a second, alone and while a spike of ten times as many drains", subjects: b.apis, sites: []string{"api"}},
		{name: "sweep", what: "overdue coupons whose triggers were never sent", subjects: b.sweeps},
		{name: "promote", what: "coupons that come within the horizon, from the first to the last confirmed trigger", subjects: b.promotes, sites: []string{"horizon"}},
		{name: "notify", what: "a backlog of expired events, gathered by one notifier", subjects: b.notifies, sites: []string{"notify"}},
		{name: "idle", what: "the fleet with nothing to do", subjects: b.idles},
		{name: "pending", what: "a spike while few and while many other triggers wait in the ladder", subjects: b.pendings, sites: []string{"lapse"}},
		{name: "rows", what: "a spike in a small and in a large table", subjects: b.tables, sites: []string{"rows_few", "rows_many"}},
	}
}

func scenarioNames() []string {
	var names []string
	for _, s := range (&bench{}).scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Validate reports every fault, each beginning with the flag's name.
func (c Config) Validate() error {
	var errs []error
	number := func(flag string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %d and %d, got %d", flag, low, high, v))
		}
	}
	number("size", c.Size, 100, 1_000_000)
	number("rows", c.Rows, c.Size, 100_000_000)
	number("runs", c.Runs, 1, 99)
	known := scenarioNames()
	for _, name := range c.Scenarios {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("scenarios: must be of %s, got %q", strings.Join(known, ","), name))
		}
	}
	for _, name := range c.Subjects {
		if !slices.ContainsFunc((&bench{cfg: c}).scenarios(), func(sc scenario) bool {
			return slices.ContainsFunc(sc.subjects(), func(s subject) bool { return s.name == name })
		}) {
			errs = append(errs, fmt.Errorf("subjects: no scenario has %q", name))
		}
	}
	return errors.Join(errs...)
}

// full says that the sizes, and the subjects, are those of the published figures.
func (c Config) full() bool {
	return len(c.Subjects) == 0 && c.Size == fullSize && c.Rows == fullRows && c.Steady == fullSteady
}

// run measures whatever is wanted; done is told of each scenario when it has ended.
func (b *bench) run(ctx context.Context, done func(Scenario) error) (err error) {
	if err := b.cfg.Stack.Check(ctx); err != nil {
		return err
	}
	b.sites = make(map[string]*site)
	defer func() {
		err = errors.Join(err, b.leave(context.WithoutCancel(ctx), slices.Collect(maps.Keys(b.sites))...))
	}()
	for _, sc := range b.scenarios() {
		if len(b.cfg.Scenarios) > 0 && !slices.Contains(b.cfg.Scenarios, sc.name) {
			continue
		}
		b.view.step("== %s: %s", sc.name, sc.what)
		result := b.alternate(ctx, sc)
		if err := errors.Join(done(result), b.leave(ctx, sc.sites...)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// alternate runs the subjects in turns. A subject that fails is not run again.
func (b *bench) alternate(ctx context.Context, sc scenario) Scenario {
	result := Scenario{Name: sc.name, What: sc.what, At: time.Now().UTC().Truncate(time.Second), Commit: b.cfg.Commit, Size: b.cfg.Size}
	subjects := slices.DeleteFunc(sc.subjects(), func(s subject) bool {
		return len(b.cfg.Subjects) > 0 && !slices.Contains(b.cfg.Subjects, s.name)
	})
	for _, s := range subjects {
		result.Subjects = append(result.Subjects, Subject{Name: s.name, What: s.what})
	}
	for run := range b.cfg.Runs {
		for i, s := range subjects {
			into := &result.Subjects[i]
			if into.Error != "" || ctx.Err() != nil {
				continue
			}
			m, err := s.run(ctx)
			if err != nil {
				into.Error = err.Error()
				b.view.step("%s %s, run %d: %s", sc.name, s.name, run+1, err)
				continue
			}
			into.Runs = append(into.Runs, m)
			b.view.step("%s %s, run %d: %s", sc.name, s.name, run+1, m)
		}
	}
	for i := range result.Subjects {
		result.Subjects[i].Median = medians(result.Subjects[i].Runs)
	}
	return result
}

// site opens one that is kept until leave.
func (b *bench) site(ctx context.Context, name string) (*site, error) {
	if s, ok := b.sites[name]; ok {
		return s, nil
	}
	b.view.step("a database, queues and workers: %s", name)
	s, err := openSite(ctx, b.cfg, b.siteOf(name))
	b.sites[name] = s
	if err != nil {
		return nil, errors.Join(err, b.leave(context.WithoutCancel(ctx), name))
	}
	return s, nil
}

// leave removes sites, if they are there.
func (b *bench) leave(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		if s, ok := b.sites[name]; ok {
			delete(b.sites, name)
			_, err := s.close(ctx, "")
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
