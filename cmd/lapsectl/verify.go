package main

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/verify"
)

type verifyCommand struct {
	Walk      verifyWalk      `cmd:"" help:"Grants to notices, with locks, kills, time zones, lifetimes and bad input: about 12 minutes."`
	Checkout  verifyCheckout  `cmd:"" help:"The coupon's whole life over HTTP and by order events, with races, kills and speed: about 12 minutes."`
	Backstops verifyBackstops `cmd:"" help:"Rebuild, sweep, planner, reconcile, archive, clock and status, on large tables: about 15 minutes, at full scale about an hour."`
	Deploy    verifyDeploy    `cmd:"" help:"What watches the fleet and what is done to it: metrics, alerts, rolling restarts, upgrades, no broker, secrets: about 25 minutes."`
	Notices   verifyNotices   `cmd:"" help:"Reminders and the notifier, with a mail server and providers that fail: about 10 minutes."`
	Cluster   verifyCluster   `cmd:"" help:"The fleet on a broker of three nodes that are killed, parted, frozen and upgraded, on a stack of its own: about 15 minutes."`
	Overload  verifyOverload  `cmd:"" help:"Ten times as much as the machine can do is asked for, on a stack of its own: about 8 minutes, at full scale half an hour."`
	Soak      verifySoak      `cmd:"" help:"Half of what the machine can do, for long, on a stack of its own: nothing grows."`
	Adoption  verifyAdoption  `cmd:"" help:"The way in: imports, observing and cutting over, on large tables: about 10 minutes, at full scale an hour."`
}

type verifyDeploy struct {
	Scale    string `default:"small" enum:"small,full" help:"small: 200 coupons a second, the broker away for 20 s; full: 2 000 a second and 5 minutes, as promised."`
	Alert    string `placeholder:"NAME" help:"Provoke this alert, and do nothing else."`
	Previous string `placeholder:"REF" help:"The release that the section upgrade begins with: a tag or commit; by default the newest tag before this commit or, without tags, the last commit before the newest migration."`
	verifyFlags
}

type verifyNotices struct {
	Scale string `default:"full" enum:"small,full" help:"small: 10 000 coupons of 2 000 users; full: 100 000 of 20 000, as promised."`
	verifyFlags
}

type verifyAdoption struct {
	Scale string `default:"small" enum:"small,full" help:"small: 20 000 rows of each shape; full: 1 000 000, as promised."`
	verifyFlags
}

type verifyBackstops struct {
	Scale string `default:"small" enum:"small,full" help:"small: tens of thousands of rows; full: millions, as promised."`
	verifyFlags
}

type verifyWalk struct {
	Coupons int `default:"10000" help:"Coupons of the first section; the others take a tenth, at least 200."`
	verifyFlags
}

type verifyCheckout struct{ verifyFlags }

// verifyFlags are those of every verification.
type verifyFlags struct {
	Only []string `placeholder:"SECTION,..." help:"Only these sections."`
	Seed uint64   `default:"1" help:"Of whatever is drawn by chance."`
	JSON string   `name:"json" placeholder:"FILE" help:"Write the checks to this file, - for standard output."`
}

const verifyExits = `
Exit code 0: every check is ok, 1: one is not, 2: something could not run.`

// Help tells of the sections and the exit codes.
func (c *verifyWalk) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up). Sections: ` + strings.Join(verify.WalkSections(), ", ") + `.
kill-broker kills the stack's RabbitMQ for 10 s, and zones moves the time zone of its database server meanwhile.` + verifyExits
}

// Help tells of the sections and the exit codes.
func (c *verifyCheckout) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up), and on a machine that does nothing else: speed and
lateness are measured. Sections: ` + strings.Join(verify.CheckoutSections(), ", ") + `.` + verifyExits
}

// Help tells of the sections and the exit codes.
func (c *verifyBackstops) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up), and on a machine and servers that do nothing else:
what is read and how long it takes are measured. Sections: ` + strings.Join(verify.BackstopsSections(), ", ") + `.
clock makes new sessions of its own database read another clock (init_connect) meanwhile.` + verifyExits
}

// Help tells of the sections and the exit codes.
func (c *verifyNotices) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up), and on a machine that does nothing else: rates are measured.
Mail server and providers are its own, on loopback. Sections: ` + strings.Join(verify.NoticesSections(), ", ") + `.` + verifyExits
}

// Help tells of the sections and the exit codes.
func (c *verifyDeploy) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up), and needs Prometheus (scripts/stack tools). Sections: ` +
		strings.Join(verify.DeploySections(), ", ") + `.
upgrade needs the history of git: it builds the release before, in .stack/releases.
Alerts that can be provoked: ` + strings.Join(verify.ProvokedAlerts(), ", ") + `.` + verifyExits
}

// Help tells of the sections and the exit codes.
func (c *verifyAdoption) Help() string {
	return `It runs against the development servers of this checkout only (scripts/stack up), and on a machine and servers that do nothing else:
lateness is measured. The other shops' tables are made in a database of their own on the same server. Sections: ` +
		strings.Join(verify.AdoptionSections(), ", ") + `.` + verifyExits
}

// Run verifies the way in and prints what was found.
func (c *verifyAdoption) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) { return verify.Adoption(ctx, cfg, c.Scale) })
}

// Run verifies what watches the fleet and prints what was found.
func (c *verifyDeploy) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) {
		cfg.Previous = c.Previous
		return verify.Deploy(ctx, cfg, c.Scale, c.Alert)
	})
}

// Run verifies reminders and the notifier and prints what was found.
func (c *verifyNotices) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) { return verify.Notices(ctx, cfg, c.Scale) })
}

// Run verifies the backstops and prints what was found.
func (c *verifyBackstops) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) { return verify.Backstops(ctx, cfg, c.Scale) })
}

// Run verifies the walk and prints what was found.
func (c *verifyWalk) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) {
		cfg.Coupons = c.Coupons
		return verify.Walk(ctx, cfg)
	})
}

// Run verifies the checkout and prints what was found.
func (c *verifyCheckout) Run(ctx context.Context, s *system) error {
	return c.run(ctx, s, func(cfg verify.Config) (verify.Result, error) { return verify.Checkout(ctx, cfg) })
}

func (c *verifyFlags) run(ctx context.Context, s *system, verification func(verify.Config) (verify.Result, error)) error {
	stack, err := s.stack(ctx)
	if err != nil {
		return err
	}
	return c.on(s, stack, c.view(s), verification)
}

func (c *verifyFlags) view(s *system) *verifyView {
	view := &verifyView{out: s.stdout, terminal: s.terminal(), start: time.Now(), now: time.Now}
	if c.JSON == "-" {
		view.out, view.terminal = s.stderr, false
	}
	return view
}

// on runs a verification on a stack, and prints what was found.
func (c *verifyFlags) on(s *system, stack rig.Stack, view *verifyView, verification func(verify.Config) (verify.Result, error)) error {
	result, err := verification(verify.Config{Stack: stack, Bin: s.bin(), Seed: c.Seed, Only: c.Only, Commit: commit(), View: view})
	if err != nil && len(result.Checks) == 0 && len(result.Errors) == 0 {
		return err
	}
	if err := s.writeJSON(c.JSON, result); err != nil {
		return err
	}
	view.table(result)
	switch {
	case err != nil:
		return err
	case len(result.Errors) > 0:
		return fmt.Errorf("could not run:\n  %s", strings.Join(result.Errors, "\n  "))
	case !result.Passed:
		return errMiss
	}
	return nil
}

// commit is what the binary was built from, with a plus sign if there were changes; where the build has not noted it, the version.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	var revision, changed string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			changed = "+"
		}
	}
	if revision == "" {
		return version
	}
	return revision + changed
}

// verifyView shows a verification: a line for each step and check, and the progress of the run in hand.
type verifyView struct {
	out      io.Writer
	terminal bool
	start    time.Time
	now      func() time.Time
	printed  time.Time // the last progress
	open     bool      // a line of progress stands, to be overwritten
}

const plainProgress = 5 * time.Second // between lines of progress where they cannot be overwritten

// Section begins.
func (v *verifyView) Section(name, what string) { v.line("── " + name + ": " + what) }

// Step is being done.
func (v *verifyView) Step(text string) { v.line("   " + text) }

// Check was made.
func (v *verifyView) Check(c verify.Check) {
	mark := "✓"
	if !c.OK {
		mark = "✗"
	}
	v.line(" " + mark + " " + c.String())
}

// Progress of the run in hand.
func (v *verifyView) Progress(p demo.Progress) {
	now := v.now()
	if !v.terminal && now.Sub(v.printed) < plainProgress {
		return
	}
	v.printed = now
	text := fmt.Sprintf("   granted %s / %s   expired %s   told %s   %s", grouped(p.Granted), grouped(p.Coupons), grouped(p.Expired), grouped(p.Told), live(p))
	if !v.terminal {
		v.line(text)
		return
	}
	_, _ = fmt.Fprintf(v.out, "\r\x1b[K%s", v.stamped(text))
	v.open = true
}

func (v *verifyView) stamped(text string) string {
	return fmt.Sprintf("%7.1f s  %s", v.now().Sub(v.start).Seconds(), text)
}

func (v *verifyView) line(text string) {
	if v.open {
		_, _ = io.WriteString(v.out, "\r\x1b[K")
		v.open = false
	}
	_, _ = io.WriteString(v.out, v.stamped(text)+"\n")
}

// table prints every check and the verdict.
func (v *verifyView) table(r verify.Result) {
	number := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
	rows := table{}
	missed := 0
	for _, c := range r.Checks {
		verdict := "ok"
		if !c.OK {
			verdict = "MISS"
			missed++
		}
		rows = append(rows, []string{verdict, c.Name, number(c.Value), string(c.Op), number(c.Bound)})
	}
	verdict := "PASS"
	if !r.Passed {
		verdict = "FAIL"
	}
	_, _ = fmt.Fprintf(v.out, "\n%s\n%s: %d checks, %d missed, %d sections could not run; %s, %s; seed %d; commit %s\n",
		rows, verdict, len(r.Checks), missed, len(r.Errors), r.Servers.Broker, r.Servers.Database, r.Seed, r.Commit)
}
