package rig

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
)

var nodeName = regexp.MustCompile(`^lapse-\d+(?:-(\d))?@localhost$`)

// NodeNumber is the number of the node that RabbitMQ knows by this name.
func NodeNumber(name string) (int, error) {
	parts := nodeName.FindStringSubmatch(name)
	switch {
	case parts == nil:
		return 0, fmt.Errorf("%q is no node of a stack", name)
	case parts[1] == "":
		return 1, nil
	default:
		return strconv.Atoi(parts[1])
	}
}

// Nodes is how many nodes the broker has. They are counted from 1.
func (s Stack) Nodes() int { return max(1, len(s.Addresses)) }

// ManagementAddresses are where the nodes of a cluster have their management API (host:port), in their order; none: the broker is one node.
func (s Stack) ManagementAddresses() []string {
	var all []string
	for i := range s.Addresses {
		all = append(all, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.PortBase+managementOffset+i*nodeOffset)))
	}
	return all
}

// KillNode ends a node of the broker by SIGKILL.
func (s Stack) KillNode(ctx context.Context, node int) error { return s.node(ctx, node, "kill") }

// StopNode stops a node in good order.
func (s Stack) StopNode(ctx context.Context, node int) error { return s.node(ctx, node, "stop") }

// StartNode starts a node, unless it runs, and waits until it answers.
func (s Stack) StartNode(ctx context.Context, node int) error { return s.node(ctx, node, "start") }

// PauseNode sends SIGSTOP: the node stands still until ResumeNode. The others notice after their net_ticktime.
func (s Stack) PauseNode(ctx context.Context, node int) error { return s.node(ctx, node, "pause") }

// ResumeNode sends SIGCONT.
func (s Stack) ResumeNode(ctx context.Context, node int) error { return s.node(ctx, node, "resume") }

// PartNode cuts a node off from the others; it is a minority of one, which pauses itself.
func (s Stack) PartNode(ctx context.Context, node int) error {
	return s.node(ctx, node, "partition", "on")
}

// JoinNode lets a node that was cut off reach the others again.
func (s Stack) JoinNode(ctx context.Context, node int) error {
	return s.node(ctx, node, "partition", "off")
}

// DrainNode puts a node into maintenance: it hands its leaders over, closes its clients' connections and takes no more.
func (s Stack) DrainNode(ctx context.Context, node int) error { return s.node(ctx, node, "drain") }

// ReviveNode takes a node out of maintenance.
func (s Stack) ReviveNode(ctx context.Context, node int) error { return s.node(ctx, node, "revive") }

// AwaitNode waits until a node that was not stopped answers again.
func (s Stack) AwaitNode(ctx context.Context, node int) error { return s.node(ctx, node, "await") }

// Rebalance spreads the leaders of quorum queues over the nodes.
func (s Stack) Rebalance(ctx context.Context) error {
	return script(ctx, filepath.Dir(s.Dir), onPorts(s.PortBase), "rebalance")
}

func (s Stack) node(ctx context.Context, node int, verb ...string) error {
	return script(ctx, filepath.Dir(s.Dir), onPorts(s.PortBase), append([]string{"node", strconv.Itoa(node)}, verb...)...)
}
