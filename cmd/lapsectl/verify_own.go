package main

import (
	"context"
	"strings"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/verify"
)

type verifyCluster struct {
	Scale string `default:"small" enum:"small,full" help:"small: a spike of 3 000 coupons for each fault; full: of 100 000, as promised."`
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

// own runs a verification on a stack of its own, made with these options of scripts/stack up.
func (o ownFlags) own(ctx context.Context, s *system, c *verifyFlags, name string, verification func(verify.Config) (verify.Result, error), options ...string) error {
	view := c.view(s)
	own := ownStack{name: "verify-" + name, portBase: o.PortBase, keep: o.KeepStack, options: options}
	return s.onOwnStack(ctx, own, view, func(stack rig.Stack) error { return c.on(s, stack, view, verification) })
}
