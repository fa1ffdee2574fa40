package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/verify"
)

type verifyCluster struct {
	Scale string `default:"small" enum:"small,full" help:"small: a spike of 3 000 coupons for each fault; full: of 100 000, as promised."`
	verifyFlags
	ownFlags `embed:""`
}

type verifyOverload struct {
	Scale string `default:"small" enum:"small,full" help:"small: for 15 seconds; full: for a minute, as promised."`
	verifyFlags
	ownFlags `embed:""`
}

type verifySoak struct {
	For time.Duration `default:"30m" help:"How long it lasts. Less than half an hour shows that the measuring works, and is no evidence."`
	CSV string        `name:"csv" placeholder:"FILE" help:"Write every sample to this file."`
	verifyFlags
	ownFlags `embed:""`
}

// ownFlags are those of what is verified on a stack that is made for it.
type ownFlags struct {
	PortBase  int  `default:"23000" help:"First port of the stack that is made for it."`
	KeepStack bool `help:"Stop that stack in the end, and leave its data and logs, as a failure does."`
}

const ownStackHelp = `It makes a stack of its own beside this checkout's (.stack/verify-…, ports from --port-base on), and removes it. `

// Help tells of the sections and the exit codes.
func (c *verifyCluster) Help() string {
	return ownStackHelp + `The broker is a cluster of three nodes. Sections: ` + strings.Join(verify.ClusterSections(), ", ") + `.` + verifyExits
}

// Run verifies the fleet on a cluster and prints what was found.
func (c *verifyCluster) Run(ctx context.Context, s *system) error {
	return c.own(ctx, s, &c.verifyFlags, "cluster", func(cfg verify.Config) (verify.Result, error) { return verify.Cluster(ctx, cfg, c.Scale) }, "--nodes", "3")
}

// Help tells of the sections and the exit codes.
func (c *verifyOverload) Help() string {
	return ownStackHelp + `Nothing else should run on the machine. Sections: ` + strings.Join(verify.OverloadSections(), ", ") + `.` + verifyExits
}

// Run verifies a fleet that is asked for too much and prints what was found.
func (c *verifyOverload) Run(ctx context.Context, s *system) error {
	return c.own(ctx, s, &c.verifyFlags, "overload", func(cfg verify.Config) (verify.Result, error) { return verify.Overload(ctx, cfg, c.Scale) })
}

// Help tells of the sections and the exit codes.
func (c *verifySoak) Help() string {
	return ownStackHelp + `Nothing else should run on the machine. Sections: ` + strings.Join(verify.SoakSections(), ", ") + `.` + verifyExits
}

// Run verifies that nothing grows and prints what was found.
func (c *verifySoak) Run(ctx context.Context, s *system) (err error) {
	var samples io.Writer
	if c.CSV != "" {
		f, ferr := os.Create(c.CSV)
		if ferr != nil {
			return fmt.Errorf("--csv: %w", ferr)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		samples = f
	}
	return c.own(ctx, s, &c.verifyFlags, "soak", func(cfg verify.Config) (verify.Result, error) { return verify.Soak(ctx, cfg, c.For, samples) })
}

// own runs a verification on a stack of its own, made with these options of scripts/stack up.
func (o ownFlags) own(ctx context.Context, s *system, c *verifyFlags, name string, verification func(verify.Config) (verify.Result, error), options ...string) error {
	view := c.view(s)
	own := ownStack{name: "verify-" + name, portBase: o.PortBase, keep: o.KeepStack, options: options}
	return s.onOwnStack(ctx, own, view, func(stack rig.Stack) error { return c.on(s, stack, view, verification) })
}
