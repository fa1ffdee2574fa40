package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/lapsehq/lapse/pkg/compare"
	"github.com/lapsehq/lapse/pkg/compare/report"
	"github.com/lapsehq/lapse/pkg/rig"
)

type compareCommand struct {
	Coupons    int      `default:"20000" help:"How many end in the one instant of a spike."`
	Rounds     int      `default:"2" help:"How often each mechanism has its turn; the figures are medians."`
	Mechanisms []string `default:"ladder,zset,wheel,sweep" placeholder:"NAME,..." help:"Which ones: ladder, zset, wheel, sweep."`
	Seed       uint64   `default:"1" help:"Of the order in a round, and of who gets which coupon."`
	PortBase   int      `default:"22000" help:"First port of the stack that is made for it."`
	KeepStack  bool     `help:"Stop that stack in the end, and leave its data and logs, as a failure does."`
	JSON       string   `name:"json" placeholder:"FILE" help:"Write everything that was measured to this file, - for standard output."`
	HTML       string   `name:"html" placeholder:"FILE" help:"Write a page with plots to this file."`
}

// Help says what it does to the machine, and the exit codes.
func (c *compareCommand) Help() string {
	return `It makes a stack of its own beside this checkout's (.stack/compare, ports from --port-base on), and removes it. Nothing else should run on the
machine meanwhile; with the defaults it takes about ten minutes. What is measured: docs/compare.md.
Exit code 0: nothing was early, lost or doubled, 1: something was, 2: it could not run, or not all of it.`
}

// Run compares the mechanisms and prints what came of it.
func (c *compareCommand) Run(ctx context.Context, s *system) error {
	cfg := compare.Config{Bin: s.bin(), Commit: commit(), Coupons: c.Coupons, Rounds: c.Rounds, Mechanisms: c.Mechanisms, Seed: c.Seed}
	if err := cfg.Validate(); err != nil {
		return err
	}
	view := &stepView{out: s.stderr, start: time.Now()}
	cfg.View = view
	own := ownStack{name: "compare", portBase: c.PortBase, keep: c.KeepStack}
	if cfg.NeedsRedis() {
		own.options = []string{"--redis"}
	}
	return s.onOwnStack(ctx, own, view, func(stack rig.Stack) error {
		cfg.Stack = stack
		r, err := compare.Run(ctx, cfg)
		if err != nil {
			return err
		}
		return c.tell(s, &r)
	})
}

// tell what was found, wherever it was asked for.
func (c *compareCommand) tell(s *system, r *report.Result) error {
	if err := s.writeJSON(c.JSON, r); err != nil {
		return err
	}
	if c.HTML != "" {
		if err := writePage(c.HTML, r); err != nil {
			return err
		}
	}
	if c.JSON != "-" {
		if err := s.print(report.Table(r)); err != nil {
			return err
		}
	}
	switch {
	case len(r.Errors) > 0:
		return fmt.Errorf("not all of it could run: %d of %d", len(r.Errors), len(r.Errors)+len(r.Runs))
	case !r.Passed:
		return errMiss
	default:
		return nil
	}
}

func writePage(file string, r *report.Result) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("html: %w", err)
	}
	err = report.HTML(f, r)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("html: %w", err)
	}
	return nil
}
