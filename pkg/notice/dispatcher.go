package notice

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// dispatcher is the loop of one channel. It claims no more than it may send at once: as many as it has free workers, its
// rate has tokens and its circuit allows; so nothing waits in memory, and nothing is claimed that another pod could send.
//
//	free workers → gate → claim → prepare (states, caps) → hour → render → Deliver ─┐
//	      ▲                                                                         │
//	      └────────────────────────────── settled ◀─────────────────────────────────┘
type dispatcher struct {
	SenderDeps
	channel Channel
	name    coupon.Channel
	config  Config
	limit   Limit
	gate    *gate
	bell    chan struct{}
	workers chan struct{}      // one for each that is free
	rests   chan rest          // to be settled
	ring    func()             // the others have something to send
	fault   *telemetry.Repeats // of the loop
	books   *telemetry.Repeats // of recording
	words   *telemetry.Repeats // of single notices that cannot be written or addressed: said now and then, whatever goes well beside them
	health  health             // of the provider
	resting time.Time          // nothing is passed on before; of the loop alone
}

// rest is what a worker leaves: results to record, and itself to be freed after that.
type rest struct {
	results []coupon.NoticeResult
	workers int
}

func newDispatcher(c Config, d SenderDeps, ch Channel, ring func()) *dispatcher {
	name := ch.Name()
	l := c.Limits.Of(name)
	log := d.Log.With(zap.String("channel", string(name)))
	x := &dispatcher{
		SenderDeps: d, channel: ch, name: name, config: c, limit: l,
		gate: newGate(l, d.Now, func(up bool) {
			v := 0.0
			if up {
				v = 1
			}
			d.Metrics.up.WithLabelValues(string(name)).Set(v)
		}),
		ring: ring, bell: make(chan struct{}, 1), workers: make(chan struct{}, l.Concurrency), rests: make(chan rest, l.Concurrency),
		fault:  telemetry.NewRepeats(log, 0, d.Now),
		books:  telemetry.NewRepeats(log, 0, d.Now),
		words:  telemetry.NewRepeats(log, 0, d.Now),
		health: health{said: telemetry.NewRepeats(log, 0, d.Now), now: d.Now},
	}
	x.Log = log
	return x
}

// run sends until ctx ends, then waits for what was begun.
func (d *dispatcher) run(ctx context.Context) {
	work, release := lingering(ctx, d.config.Drain)
	var sends, settler sync.WaitGroup
	settler.Go(func() { d.settling(work) })
	for range d.limit.Concurrency {
		d.workers <- struct{}{}
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = d.config.PollMin, max(backoffMax, d.config.PollMin)
	for ctx.Err() == nil {
		wait, err := d.step(ctx, work, &sends)
		switch {
		case err != nil && ctx.Err() != nil:
			d.Log.Warn("notices: stopped before a batch was sent; another pod takes it up", zap.Error(err))
		case err != nil:
			d.fault.Failed("notices: cannot send, trying again", err)
			_ = lifecycle.Sleep(ctx, pause.NextBackOff())
			continue
		default:
			d.fault.Recovered("notices: sending again")
			pause.Reset()
		}
		d.idle(ctx, wait)
	}
	sends.Wait()
	close(d.rests)
	settler.Wait()
	release()
}

// idle waits, or until the bell rings.
func (d *dispatcher) idle(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-d.bell:
	}
}

// step sends one group, and says how long to wait before the next.
func (d *dispatcher) step(ctx, work context.Context, sends *sync.WaitGroup) (time.Duration, error) {
	free := d.take(ctx)
	defer func() { d.give(free) }()
	if free == 0 {
		return 0, nil // ctx has ended
	}
	if d.Paused != nil && d.Paused(d.name) {
		d.still(ctx, pausedLook)
		return 0, nil
	}
	want := min(free*max(1, d.channel.Batch()), d.config.Batch)
	n, wait := d.gate.room(want)
	if n == 0 {
		if reason := d.gate.shut(); reason != "" {
			if err := d.passOn(work, reason); err != nil {
				return 0, err
			}
		}
		d.still(ctx, wait)
		return 0, nil
	}
	begun := d.Now()
	ns, unknown, more, err := d.Store.ClaimNotices(work, d.name, d.config.Lease, n)
	if err != nil {
		return 0, fmt.Errorf("claim notices: %w", err)
	}
	d.lost(unknown)
	if len(ns) == 0 {
		return d.config.PollMax, nil
	}
	d.gate.spend(len(ns))
	groups, err := d.prepare(work, ns, begun)
	if err != nil {
		d.untouched(ns)
		return 0, err
	}
	for _, group := range groups {
		free--
		sends.Go(func() { d.send(work, group) })
	}
	if len(ns) < n && !more {
		return d.config.PollMax, nil
	}
	return 0, nil
}

// pausedLook is how often a loop that an operator has paused looks whether it still is.
const pausedLook = 200 * time.Millisecond

// untouched leaves what was claimed and not prepared, as far as is known here, to be tried again: the database may have taken it
// for begun before its answer was lost, and nothing was sent.
func (d *dispatcher) untouched(ns []coupon.Notice) {
	put := make([]coupon.NoticeResult, len(ns))
	for i := range ns {
		d.Metrics.count(d.name, ns[i].Kind, resultDeferred, 1)
		put[i] = coupon.NoticeResult{WindowID: ns[i].WindowID, Attempt: ns[i].Attempt, State: coupon.NoticePending, Reason: ReasonStore}
	}
	d.rests <- rest{results: put}
}

// still waits while nothing may go out, whatever rings.
func (d *dispatcher) still(ctx context.Context, wait time.Duration) {
	_ = lifecycle.Sleep(ctx, min(wait, d.config.PollMax))
}

// take waits until a fourth of the workers is free and gives all that are; zero when ctx has ended. Fewer would claim, and
// be recorded, one by one.
func (d *dispatcher) take(ctx context.Context) int {
	n := 0
	for n < (d.limit.Concurrency+3)/4 {
		select {
		case <-d.workers:
			n++
		case <-ctx.Done():
			d.give(n)
			return 0
		}
	}
	for {
		select {
		case <-d.workers:
			n++
		default:
			return n
		}
	}
}

func (d *dispatcher) give(n int) {
	for range n {
		d.workers <- struct{}{} // there is room for all
	}
}
