package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/status"
)

type demoCommand struct {
	Coupons   int           `default:"10000" help:"How many coupons end in the run."`
	Users     int           `help:"How many users share them (3 for every 10 coupons, at most 3000)."`
	Over      time.Duration `default:"30s" help:"Within how long they end."`
	Kill      string        `enum:",publisher,expirer,notifier,broker" default:"" help:"Kill publisher, expirer, notifier or broker in mid-run (SIGKILL) and start it again."`
	Mechanism string        `enum:"ladder,zset,wheel,sweep" default:"ladder" help:"Delay mechanism: ladder, zset (scripts/stack up --redis), wheel or sweep."`
	Sabotage  string        `enum:",early,lose,double" default:"" help:"Damage one coupon: early, lose or double. The audit must then fail."`
	Keep      bool          `help:"Leave processes, database and queues, to look at."`
	JSON      string        `name:"json" placeholder:"FILE" help:"Write what the audit found to this file, - for standard output."`
	Seed      uint64        `default:"1" help:"Of the spread of the ends."`
}

const (
	mostUsers = 3000
	usersOf10 = 3
)

func (c *demoCommand) Help() string {
	return "It runs against the development servers of this checkout only (scripts/stack up). Exit code 0: the audit passed, 1: it failed, 2: the demo could not run."
}

// Run runs the demo and prints what came of it.
func (c *demoCommand) Run(ctx context.Context, s *system) error {
	stack, err := s.stack(ctx)
	if err != nil {
		return err
	}
	cfg := demo.Config{
		Stack: stack, Bin: s.bin(), Coupons: c.Coupons, Users: c.Users, Over: c.Over, Waiting: demo.DefaultWaiting,
		Kill: c.Kill, Sabotage: c.Sabotage, Keep: c.Keep, Seed: c.Seed, Mechanism: c.Mechanism,
	}
	if cfg.Users == 0 {
		cfg.Users = min(mostUsers, max(1, c.Coupons*usersOf10/10))
	}
	view := newDemoView(s)
	cfg.View = view
	result, err := demo.Run(ctx, cfg)
	view.close()
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("ended by %w", err)
		}
		if result.Logs != "" {
			err = fmt.Errorf("%w\nlogs of the workers: %s", err, result.Logs)
		}
		return err
	}
	if err := c.write(s, result); err != nil {
		return err
	}
	if c.JSON != "-" {
		if _, err := s.stdout.Write([]byte(s.demoTable(cfg, result))); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	if len(result.Failures) > 0 {
		return errMiss
	}
	return nil
}

// demoJSON is what --json writes; docs/demo.md documents it.
type demoJSON struct {
	audit.Report
	Passed   bool     `json:"passed"`
	Failures []string `json:"failures"`
}

func (c *demoCommand) write(s *system, r demo.Result) error {
	out := demoJSON{Report: r.Report, Passed: len(r.Failures) == 0, Failures: append([]string{}, r.Failures...)}
	return s.writeJSON(c.JSON, out)
}

func (s *system) demoTable(cfg demo.Config, r demo.Result) string {
	var b strings.Builder
	p := r.Report
	verdict := "PASS"
	if len(r.Failures) > 0 {
		verdict = "FAIL"
	}
	line := func(name, left, right string) {
		gap := max(1, columns-width(left))
		if right == "" {
			gap = 0
		}
		fmt.Fprintf(&b, "  %-9s %s%s%s\n", name, left, strings.Repeat(" ", gap), right)
	}
	line("granted", fmt.Sprintf("%6s coupons of %s users, through RabbitMQ", grouped(p.Coupons), grouped(p.Users)), fmt.Sprintf("%.1f s", r.Granting.Seconds()))
	line("expired", fmt.Sprintf("%6s / %s   early %s   twice %s   lost %s", grouped(p.Expired), grouped(p.Coupons), grouped(p.Early),
		grouped(p.DuplicateTransitions), grouped(p.NotExpired)), "audit by SQL and an independent consumer: "+verdict)
	late := p.TransitionLateness
	line("lateness", fmt.Sprintf("p50 %s   p99 %s   max %s", seconds(late.P50), seconds(late.P99), seconds(late.Max)), "(database clock)")
	line("notices", fmt.Sprintf("%6s to %s users%s", grouped(p.Notices), grouped(p.UsersWithNotice), example(p.Example)), "")
	if cfg.Kill != "" {
		line("killed", fmt.Sprintf("%s; events heard twice %s, recovered by the sweep %s", cfg.Kill, grouped(p.DuplicateEventIDs), grouped(p.SweepRecovered)), "")
	}
	if k := r.Kept; k != nil {
		line("waiting", fmt.Sprintf("%6s coupons, next in %s   →  %s, user %s, password %s", grouped(p.Waiting), clockTime(p.NextWaiting),
			k.Management, k.User, k.Password), "")
		me := s.name()
		line("try", fmt.Sprintf("%s explain %d · %s events tail · %s demo --kill broker · scripts/stack down", me, p.ExampleID, me, me), "")
	}
	for i, failure := range r.Failures {
		name := ""
		if i == 0 {
			name = "amiss"
		}
		line(name, failure, "")
	}
	if r.Logs != "" {
		line("logs", r.Logs, "")
	}
	return b.String()
}

// name is how to call lapsectl from here.
func (s *system) name() string {
	if rel, err := filepath.Rel(s.dir, s.executable); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return "lapsectl"
}

const columns = 53 // of a table line's left part

func width(s string) int { return len([]rune(s)) }

func example(text string) string {
	if text == "" {
		return ""
	}
	return fmt.Sprintf(", e.g. %q", text)
}

// grouped writes 10000 as 10 000.
func grouped(n int) string { return status.Grouped(n) }

func seconds(ms int64) string { return fmt.Sprintf("%.2f s", float64(ms)/1000) }

func clockTime(d time.Duration) string {
	d = d.Round(time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", int(d.Hours()), int(d.Minutes())%60, int(d.Seconds())%60)
}
