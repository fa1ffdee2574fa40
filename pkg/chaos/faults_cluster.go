package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
)

const clusterNodes = 3

// nodes are the broker's, by their numbers.
func nodes() []string {
	var out []string
	for n := range clusterNodes {
		out = append(out, strconv.Itoa(n+1))
	}
	return out
}

// onNode does something to a node, and undoes it.
func onNode(do func(rig.Stack, context.Context, int) error, undo ...func(rig.Stack, context.Context, int) error) func(context.Context, *site, Strike) (func(context.Context) error, string, error) {
	return func(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
		n, err := strconv.Atoi(k.Target)
		if err != nil {
			return nil, "", fmt.Errorf("a node's number: %w", err)
		}
		back := bounded(func(ctx context.Context) error {
			for _, step := range undo {
				if err := step(s.stack, ctx, n); err != nil {
					return err
				}
			}
			return nil
		})
		return back, "", do(s.stack, ctx, n)
	}
}

func nodeKill(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return onNode(rig.Stack.KillNode, rig.Stack.StartNode)(ctx, s, k)
}

func nodePart(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return onNode(rig.Stack.PartNode, rig.Stack.JoinNode, rig.Stack.AwaitNode)(ctx, s, k)
}

func nodeFreeze(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return onNode(rig.Stack.PauseNode, rig.Stack.ResumeNode, rig.Stack.AwaitNode)(ctx, s, k)
}

// leaderChange hands every leader of a node over to the others, as the drain before an upgrade does.
func leaderChange(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	return onNode(rig.Stack.DrainNode, rig.Stack.ReviveNode, rig.Stack.AwaitNode)(ctx, s, k)
}

var errNoNodes = errors.New("the stack's broker is one node: the faults of the group cluster need three (scripts/stack up --nodes 3)")

// clockShift starts a worker anew with a clock that is an hour ahead of the machine's, or behind.
func clockShift(ctx context.Context, s *site, k Strike) (func(context.Context) error, string, error) {
	by := time.Hour
	if k.rng().IntN(2) == 0 {
		by = -by
	}
	undo, _, err := s.startedAs(ctx, k.Target, func(p rig.Program) rig.Program { return p.Shift(s.cfg.Shifted, by) })
	return undo, by.String(), err
}
