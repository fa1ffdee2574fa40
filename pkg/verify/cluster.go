package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// cluster is the verification of a broker of three nodes. It kills, pauses and parts them, so it is for a stack of its own.
type cluster struct {
	checkout
	size clusterSize
}

// clusterSize is how much is going on while something is done to a node.
type clusterSize struct {
	spike  int           // coupons that end in one instant
	feed   int           // granted, and ending, a second beside it
	away   time.Duration // for how long a node is away, or apart
	frozen time.Duration // or stands still
}

const clusterNodes = 3

func clusterSizeOf(scale string) (clusterSize, error) {
	switch scale {
	case ScaleSmall:
		return clusterSize{spike: 3000, feed: 50, away: 10 * time.Second, frozen: 20 * time.Second}, nil
	case ScaleFull:
		// 90 s are longer than the nodes' patience with one that is silent (net_ticktime, 60 s).
		return clusterSize{spike: 100_000, feed: 300, away: 30 * time.Second, frozen: 90 * time.Second}, nil
	default:
		return clusterSize{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

// sections in the order in which they run.
func (w *cluster) sections() []section {
	return []section{
		{"members", "every queue has a member on each node, and no node leads more than its share", w.members},
		{"node-kill", "the node that leads the due queue is killed in a spike, and comes back", w.endure(w.kill)},
		{"partition", "it is cut off from the others, and pauses as a minority", w.endure(w.part)},
		{"frozen", "it stands still, and goes on", w.endure(w.freeze)},
		{"rolling", "the nodes are drained and restarted one after the other, as for an upgrade", w.endure(w.roll)},
	}
}

// ClusterSections names the sections, in order.
func ClusterSections() []string {
	var names []string
	for _, s := range (&cluster{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Cluster verifies the fleet on a broker of three nodes, at a scale of small or full. Its error and its result are as those of Walk.
func Cluster(ctx context.Context, cfg Config, scale string) (Result, error) {
	size, err := clusterSizeOf(scale)
	if err := errors.Join(err, cfg.validateOnly(ClusterSections())); err != nil {
		return cfg.result("cluster"), err
	}
	if n := cfg.Stack.Nodes(); n < clusterNodes {
		return cfg.result("cluster"), fmt.Errorf("the stack's broker has %d of %d nodes: scripts/stack up --nodes %d", n, clusterNodes, clusterNodes)
	}
	w := &cluster{checkout: checkout{cfg: cfg}, size: size}
	return cfg.verify(ctx, "cluster", w.sections(), func(i int) { w.index = uint64(i) })
}
