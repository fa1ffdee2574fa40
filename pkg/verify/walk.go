package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// Config says what to verify, and with what.
type Config struct {
	Stack   rig.Stack
	Bin     string // directory of publisher, expirer, notifier and lapsectl
	Coupons int    // of the first section; the others take a tenth, at least 200
	Seed    uint64
	Only    []string // sections; none: all
	Commit  string   // that the binaries were built from
	View    View
	// Previous is the release that the section upgrade begins with, as git knows it; empty: the one before what is checked out.
	Previous string
}

// View shows how a verification goes. Its methods are called from one goroutine at a time.
type View interface {
	demo.View
	Section(name, what string) // begins
	Check(c Check)
}

// DefaultCoupons is how many coupons the first section of the walk takes.
const DefaultCoupons = 10_000

const (
	fewestCoupons = 100
	mostCoupons   = 100_000
)

// section is one part of a verification.
type section struct {
	name, what string
	run        func(ctx context.Context, t *tally) error
}

// walk is the verification of the main walk.
type walk struct {
	cfg   Config
	small int // coupons of the sections after the first
	index uint64
}

// sections in the order in which they run. The one that takes the broker from everybody comes last.
func (w *walk) sections() []section {
	return []section{
		{"demo", "everything expires on the second, once, and everybody is told once", w.demo},
		{"zones", "the same with the database server and the hosts in other time zones", w.zones},
		{"sweep", "without the ladder the sweep expires everything", w.sweep},
		{"sweep-broker-down", "with the broker out of reach, too, and its events flow afterwards", w.sweepBrokerDown},
		{"zset", "with triggers in Redis everything expires by them", w.mechanism(config.MechanismZSet)},
		{"wheel", "and with a timing wheel in memory", w.mechanism(config.MechanismWheel)},
		{"redis-down", "with Redis out of reach for a minute the sweep expires, and nothing is lost", w.redisDown},
		{"kill-publisher", "publisher killed in the middle of the grants", w.kill(demo.Publisher)},
		{"kill-expirer", "expirer killed in the middle of the ends", w.kill(demo.Expirer)},
		{"kill-notifier", "notifier killed in the middle of the ends", w.kill(demo.Notifier)},
		{"horizon", "a horizon of 20 s: locks, late commits and killed planners leave nothing to the sweep", w.horizon},
		{"lifetimes", "from less than a second to never, and beyond the ladder's top", w.lifetimes},
		{"prefixes", "two installations on one broker do not meet", w.prefixes},
		{"bad-input", "bad input at every entrance is answered by field, value and reason", w.badInput},
		{"kill-broker", "broker killed in the middle of the ends, away for 10 s", w.kill(demo.Broker)},
	}
}

// WalkSections names the sections of the walk, in order.
func WalkSections() []string {
	var names []string
	for _, s := range (&walk{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Validate reports every fault, each beginning with the field's name as the command line has it.
func (c Config) Validate() error {
	var errs []error
	if c.Coupons < fewestCoupons || c.Coupons > mostCoupons {
		errs = append(errs, fmt.Errorf("coupons: must be between %d and %d, got %d", fewestCoupons, mostCoupons, c.Coupons))
	}
	errs = append(errs, c.validateOnly(WalkSections()))
	return errors.Join(errs...)
}

// Walk verifies the main walk. An error says that it could not begin, or was told to stop; what was found until then is in
// the result, and so are sections that could not run.
func Walk(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.Validate(); err != nil {
		return cfg.result("walk"), err
	}
	const share, least = 10, 200
	w := &walk{cfg: cfg, small: min(cfg.Coupons, max(least, cfg.Coupons/share))}
	return cfg.verify(ctx, "walk", w.sections(), func(i int) { w.index = uint64(i) })
}

func (c Config) result(verification string) Result {
	return Result{Verify: verification, Seed: c.Seed, Commit: c.Commit, Checks: []Check{}}
}

// verify runs the sections that are wanted, one after the other; enter is told the number of each.
func (c Config) verify(ctx context.Context, verification string, sections []section, enter func(i int)) (Result, error) {
	result := c.result(verification)
	if err := c.Stack.Check(ctx); err != nil {
		return result, err
	}
	var err error
	if result.Servers, err = c.Stack.Versions(ctx); err != nil {
		return result, err
	}
	for i, s := range sections {
		if len(c.Only) > 0 && !slices.Contains(c.Only, s.name) {
			continue
		}
		c.View.Section(s.name, s.what)
		enter(i)
		t := &tally{section: s.name, view: c.View}
		err := s.run(ctx, t)
		result.Checks = append(result.Checks, t.checks...)
		if err != nil {
			result.Errors = append(result.Errors, s.name+": "+err.Error())
		}
		if ctx.Err() != nil {
			result.judge()
			return result, fmt.Errorf("ended by %w", context.Cause(ctx))
		}
	}
	result.judge()
	return result, nil
}

// base is what the demos of the sections have in common.
func (w *walk) base(t *tally, coupons int, over time.Duration) demo.Config {
	return demo.Config{
		Stack: w.cfg.Stack, Bin: w.cfg.Bin, Coupons: coupons, Users: max(1, coupons*3/10), Over: over, Waiting: fewWaiting,
		Seed: w.cfg.Seed + w.index, View: w.cfg.View, Setup: demo.Setup{Logs: "verify-" + t.section},
	}
}

const fewWaiting = 30

// run runs a demo and says where to look if it failed.
func (w *walk) run(ctx context.Context, cfg demo.Config) (demo.Result, error) {
	r, err := demo.Run(ctx, cfg)
	for _, failure := range r.Failures {
		cfg.View.Step("amiss: " + failure)
	}
	if r.Logs != "" {
		cfg.View.Step("logs of the workers: " + r.Logs)
	}
	return r, err
}
