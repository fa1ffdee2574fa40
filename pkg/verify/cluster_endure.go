package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	spikeLead   = 25 * time.Second // from the first grant of a spike to its end, and beyond it
	spikeGrants = 1000             // that are granted a second at least
	strikeAhead = time.Second      // a node is struck so long before the spike's end
	mendLimit   = 5 * time.Minute
	wholeWithin = 2 * time.Minute // until every member of every queue is back, and the management API says so
	mostLeaders = 50              // of a hundred queues that one of three nodes may lead
)

// endure lets something be done to the node that leads the due queue while a spike comes due there and coupons come and go beside it.
func (w *cluster) endure(strike func(ctx context.Context, node int) error) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
			template, err := s.template(ctx, nil)
			if err != nil {
				return err
			}
			feed, err := s.feeding(ctx, template, w.size.feed, true)
			if err != nil {
				return err
			}
			defer func() { _ = feed.stop() }() // after the first time it has nothing to say
			n := w.size.spike
			ends := s.soon(spikeLead + time.Duration(n/spikeGrants)*time.Second)
			w.cfg.View.Step(fmt.Sprintf("%d coupons that end in one instant, and %d a second beside them", n, w.size.feed))
			if _, err := s.grant(ctx, template, n, grantUntil(ends)); err != nil {
				return err
			}
			want(t, "granted_before_the_end_ms", ends.Sub(s.Now()).Milliseconds(), AtLeast, 0)
			node, err := w.leads(ctx, s, s.Ladder().DueExact())
			if err != nil {
				return err
			}
			if err := lifecycle.Sleep(ctx, ends.Add(-strikeAhead).Sub(s.Now())); err != nil {
				return err
			}
			began := s.Now()
			err = strike(ctx, node)
			if err := errors.Join(err, w.mend(ctx)); err != nil {
				return err
			}
			told(t, "struck_for_ms", int(s.Now().Sub(began).Milliseconds()))
			if err := feed.stop(); err != nil {
				return err
			}
			if err := w.judge(ctx, s, feed, ends); err != nil {
				return err
			}
			return w.whole(ctx, s)
		})
	}
}

func (w *cluster) kill(ctx context.Context, node int) error {
	w.cfg.View.Step(fmt.Sprintf("node %d is killed, for %s", node, w.size.away))
	if err := w.cfg.Stack.KillNode(ctx, node); err != nil {
		return err
	}
	return lifecycle.Sleep(ctx, w.size.away)
}

func (w *cluster) part(ctx context.Context, node int) error {
	w.cfg.View.Step(fmt.Sprintf("node %d is cut off from the others, for %s", node, w.size.away))
	if err := w.cfg.Stack.PartNode(ctx, node); err != nil {
		return err
	}
	err := lifecycle.Sleep(ctx, w.size.away)
	return errors.Join(err, w.cfg.Stack.JoinNode(context.WithoutCancel(ctx), node))
}

func (w *cluster) freeze(ctx context.Context, node int) error {
	w.cfg.View.Step(fmt.Sprintf("node %d stands still, for %s", node, w.size.frozen))
	if err := w.cfg.Stack.PauseNode(ctx, node); err != nil {
		return err
	}
	err := lifecycle.Sleep(ctx, w.size.frozen)
	return errors.Join(err, w.cfg.Stack.ResumeNode(context.WithoutCancel(ctx), node))
}

// roll restarts every node as an upgrade does: the next one only when all that it is to leave alone have their members.
func (w *cluster) roll(ctx context.Context, _ int) error {
	for node := range clusterNodes {
		w.cfg.View.Step(fmt.Sprintf("node %d is drained, stopped, started and revived", node+1))
		for _, step := range []func(context.Context, int) error{
			w.cfg.Stack.DrainNode, w.cfg.Stack.StopNode, w.cfg.Stack.StartNode, w.cfg.Stack.ReviveNode,
		} {
			if err := step(ctx, node+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// mend waits until every node is there again, whatever became of ctx, and starts those that do not run.
func (w *cluster) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mendLimit)
	defer cancel()
	for node := range clusterNodes {
		if err := w.cfg.Stack.StartNode(ctx, node+1); err != nil {
			return err
		}
	}
	return nil
}

// judge holds what was asked for and confirmed against what became of it.
func (w *cluster) judge(ctx context.Context, s *shop, f *feed, ends time.Time) error {
	asked := w.size.spike + f.asked
	last := ends
	if f.last.After(last) {
		last = f.last
	}
	w.cfg.View.Step(fmt.Sprintf("%d coupons were asked for; waiting for their ends", asked))
	if err := s.settled(ctx, asked, last, draining(asked)); err != nil {
		return err
	}
	rest, cancel := context.WithTimeout(ctx, awayDrain)
	defer cancel()
	if err := drainedWithin(rest, s); err != nil {
		return err
	}
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	ended := tallyOf(fates, nil)
	t := s.t
	told(t, "coupons", asked)
	want(t, "lost", asked-len(fates), Equal, 0)
	want(t, "wrong_state", len(fates)-ended.expired, Equal, 0)
	ended.wants(t)
	told(t, "lateness_p99_ms", int(late(ended.lateness, 99)))
	return s.agreed(ctx, "", true)
}

// members looks at a cluster to which nothing was done.
func (w *cluster) members(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, w.whole)
}

// whole spreads the leaders, as an operator does after a node was away, and looks whether everything is as it should be.
func (w *cluster) whole(ctx context.Context, s *shop) error {
	if err := w.cfg.Stack.Rebalance(ctx); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	exit := -1
	began := time.Now()
	err := rig.Until(limit, time.Second, func() (bool, error) {
		said, err := w.lapsectl(limit, s, nil, "topology", "verify", "--json", "--stuck-after=20s")
		if err == nil {
			exit = said.code
		}
		return exit == 0, err
	})
	if err != nil && limit.Err() == nil {
		return err
	}
	queues, err := w.queues(ctx, s)
	if err != nil {
		return err
	}
	leads, most := make(map[string]int), 0
	for _, q := range queues {
		leads[q.Leader]++
		most = max(most, leads[q.Leader])
	}
	t := s.t
	want(t, "topology_exit", exit, Equal, 0)
	told(t, "whole_after_ms", int(time.Since(began).Milliseconds()))
	want(t, "queues", len(queues), AtLeast, len(s.Ladder().Plan().Queues))
	want(t, "leaders_of_one_node_percent", 100*most/max(1, len(queues)), AtMost, mostLeaders)
	return ctx.Err()
}

// queues are the installation's, as the management API shows them.
func (w *cluster) queues(ctx context.Context, s *shop) ([]broker.QueueState, error) {
	c := broker.DefaultConfig()
	c.URL, c.ManagementURL, c.Name = w.cfg.Stack.AMQPURL, w.cfg.Stack.ManagementURL, "verify"
	client, err := broker.New(c, broker.Options{Role: "verify"})
	if err != nil {
		return nil, err
	}
	return client.QueueStates(ctx, s.Ladder().Prefix())
}

// leads is the number of the node that leads a queue.
func (w *cluster) leads(ctx context.Context, s *shop, queue string) (int, error) {
	queues, err := w.queues(ctx, s)
	if err != nil {
		return 0, err
	}
	for _, q := range queues {
		if q.Name == queue {
			return rig.NodeNumber(q.Leader)
		}
	}
	return 0, fmt.Errorf("the broker does not show the queue %s", queue)
}
