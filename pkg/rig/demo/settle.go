package demo

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
)

const (
	brokerDown  = 10 * time.Second
	settlePoll  = 500 * time.Millisecond
	linger      = 1500 * time.Millisecond // after all is done, so that what comes twice is heard
	stall       = 20 * time.Second        // without any change after the windows have closed
	stallKilled = 100 * time.Second       // the same if something was killed: longer than the sweep leaves to the ladder
)

// kill kills what is to be killed in mid-run and brings it back: the publisher in the middle of the grants, anything
// else in the middle of the ends.
func (r *run) kill(ctx context.Context) error {
	if r.cfg.Kill == "" {
		return nil
	}
	middle := func(p audit.Progress) bool { return p.Ended >= (r.cfg.Coupons+1)/2 }
	if r.cfg.Kill == Publisher {
		middle = func(p audit.Progress) bool { return p.Issued >= (r.cfg.Coupons+1)/2 || p.Ended > 0 }
	}
	if err := rig.Until(ctx, answerPoll, func() (bool, error) { return middle(r.audit.Progress()), nil }); err != nil {
		return err
	}
	if r.cfg.Kill != Broker {
		if err := r.fleet.Kill(r.cfg.Kill); err != nil {
			return err
		}
		ready, cancel := context.WithTimeout(ctx, readyLimit)
		defer cancel()
		return r.fleet.StartOne(ready, r.cfg.Kill)
	}
	if err := r.cfg.Stack.KillBroker(ctx); err != nil {
		return err
	}
	pause := time.NewTimer(brokerDown)
	defer pause.Stop()
	interrupted := false
	select {
	case <-pause.C:
	case <-ctx.Done():
		interrupted = true
	}
	// Whatever happens to the run, the stack gets its broker back.
	start, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyLimit)
	defer cancel()
	if err := r.cfg.Stack.StartBroker(start); err != nil {
		return err
	}
	if interrupted {
		return context.Cause(ctx)
	}
	return nil
}

// settle waits until every coupon is expired, heard of and told, or nothing has changed for long.
func (r *run) settle(ctx context.Context) error {
	r.cfg.View.Step("waiting for the last end, and for the notices after it")
	patience := stall
	if r.cfg.Kill != "" {
		patience = stallKilled
	}
	type state struct {
		counts audit.Counts
		events int
	}
	var last state
	since := time.Now()
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for {
		counts, err := r.audit.Counts(ctx)
		now := state{counts: counts, events: r.audit.Progress().Expired}
		r.mu.Lock()
		r.told = counts.Told
		r.mu.Unlock()
		n := r.cfg.Coupons + r.extra
		done := err == nil && counts.Expired >= n && counts.Told >= n && counts.Unsent == 0 && now.events >= n
		early := r.audit.Now().Before(r.plan.last)
		switch {
		case done && !early:
			return lifecycle.Sleep(ctx, linger)
		case now != last || r.audit.Now().Before(r.plan.closes()):
			last, since = now, time.Now()
		case time.Since(since) > patience:
			return nil // the audit will say what is amiss
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
