package notice

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/pulse"
)

// result is what is to be recorded of a try; ok is false if it is recorded already.
func (d *dispatcher) result(now time.Time, n *coupon.Notice, r Result) (coupon.NoticeResult, bool) {
	out := coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, Reason: r.Reason, Ref: r.Ref}
	switch {
	case r.Outcome == Sent:
		d.Metrics.count(d.name, n.Kind, resultSent, 1)
		d.Pulse.Count(pulse.CountNotices, 1)
		out.State = coupon.NoticeSent
		return out, !r.Recorded
	case r.Outcome == Permanent:
		return d.failed(n, r.Reason), true
	case r.Outcome == Unknown && d.channel.AtMostOnce():
		d.Metrics.count(d.name, n.Kind, resultUnknown, 1)
		out.State = coupon.NoticeUnknown
		return out, true
	case r.Outcome == Throttled && r.Reason == reasonCircuit:
		return d.later(now, n, r.Until, r.Reason), true
	case r.Outcome == Throttled:
		return d.throttled(now, n, r), true
	default:
		return d.again(now, n, r), true
	}
}

// throttled holds the whole channel, for as long as its provider asks. Both instants are the database's clock's.
func (d *dispatcher) throttled(now time.Time, n *coupon.Notice, r Result) coupon.NoticeResult {
	wait := r.Until.Sub(now)
	if wait <= 0 {
		wait = d.backoff(n.Attempt)
	}
	d.gate.hold(wait)
	until := now.Add(wait)
	if d.given(now, n, until) {
		return d.failed(n, r.Reason)
	}
	if until.Before(n.NotAfter) {
		d.Metrics.count(d.name, n.Kind, resultThrottled, 1)
		return coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: coupon.NoticePending, Reason: r.Reason, TryAt: until}
	}
	return d.drop(n, coupon.ReasonTooLate)
}

// again puts off a notice that did not go out, or may not have, with the same id: with growing pauses, until it is of no use.
func (d *dispatcher) again(now time.Time, n *coupon.Notice, r Result) coupon.NoticeResult {
	out := coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, Reason: r.Reason}
	at := now.Add(d.backoff(n.Attempt))
	switch {
	case r.Outcome != Unknown && d.given(now, n, at):
		return d.failed(n, r.Reason)
	case at.Before(n.NotAfter):
		d.Metrics.count(d.name, n.Kind, resultRetry, 1)
		out.State, out.TryAt = coupon.NoticePending, at
	case r.Outcome == Unknown:
		d.Metrics.count(d.name, n.Kind, resultUnknown, 1)
		out.State = coupon.NoticeUnknown
	default:
		return d.drop(n, coupon.ReasonTooLate)
	}
	return out
}

// given reports whether a notice that did not go out is to be given to the next channel of its chain rather than wait until the
// instant: it was taken up often enough, or this channel has no instant left for it.
func (d *dispatcher) given(now time.Time, n *coupon.Notice, until time.Time) bool {
	return n.Next != "" && now.Before(n.NotAfter) && (n.Attempt >= d.limit.Tries || !until.Before(n.NotAfter))
}

// later puts off a notice that was not tried.
func (d *dispatcher) later(now time.Time, n *coupon.Notice, at time.Time, reason string) coupon.NoticeResult {
	if !at.Before(n.NotAfter) {
		if d.given(now, n, at) {
			return d.failed(n, reason)
		}
		return d.drop(n, coupon.ReasonTooLate)
	}
	d.Metrics.count(d.name, n.Kind, resultDeferred, 1)
	return coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: coupon.NoticePending, Reason: reason, TryAt: at}
}

// failed: the next channel of the notice's chain is asked, if there is one.
func (d *dispatcher) failed(n *coupon.Notice, reason string) coupon.NoticeResult {
	d.Metrics.count(d.name, n.Kind, resultFailed, 1)
	return coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: coupon.NoticeFailed, Reason: reason}
}

func (d *dispatcher) drop(n *coupon.Notice, reason string) coupon.NoticeResult {
	d.Metrics.suppress(reason, 1)
	d.Metrics.count(d.name, n.Kind, resultSuppressed, 1)
	return coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: coupon.NoticeSuppressed, Reason: reason}
}

// backoff after so many tries: doubled with each, bounded, then anything from half of it to all.
func (d *dispatcher) backoff(attempt int) time.Duration {
	pause := d.limit.Backoff
	for range max(0, attempt-1) {
		if pause *= 2; pause >= d.limit.BackoffMax {
			pause = d.limit.BackoffMax
			break
		}
	}
	return pause/2 + rand.N(pause/2+1)
}

// settling records what workers leave, all that is there in one transaction, and frees them after that.
func (d *dispatcher) settling(work context.Context) {
	for first := range d.rests {
		left := first
	gather:
		for len(left.results) < d.config.Batch {
			select {
			case more, ok := <-d.rests:
				if !ok {
					break gather
				}
				left.results = append(left.results, more.results...)
				left.workers += more.workers
			default:
				break gather
			}
		}
		for part := range slices.Chunk(left.results, max(1, d.config.Batch)) {
			d.settle(work, part)
		}
		d.give(left.workers)
	}
}

// settleWithin is how long the last results may take when the drain is over.
const settleWithin = 3 * time.Second

// settle records results, for as long as it takes until the stop. What cannot be recorded then comes again with the same id
// when its lease has run out; of channels that send at most once it is recorded as unknown.
func (d *dispatcher) settle(work context.Context, rs []coupon.NoticeResult) {
	for {
		ctx, cancel := work, context.CancelFunc(func() {})
		last := work.Err() != nil
		if last {
			ctx, cancel = context.WithTimeout(context.WithoutCancel(work), settleWithin)
		}
		_, fallbacks, err := d.Store.SettleNotices(ctx, d.name, rs)
		cancel()
		switch {
		case err == nil:
			d.books.Recovered("notices: recorded again")
			if fallbacks > 0 {
				d.ring()
			}
			return
		case last:
			d.Log.Error("notices: sent and not recorded at the stop", zap.Int("notices", len(rs)), zap.Error(err))
			return
		}
		d.books.Failed("notices: cannot be recorded, trying again", err)
		_ = lifecycle.Sleep(work, d.config.PollMin)
	}
}
