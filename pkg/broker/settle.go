package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/crash"
)

// What a handler forwards is published up to forwardTries times; the delivery
// is held meanwhile, the worker is not.
const forwardTries = 5

// forwardWait is the wait after the given number of failed tries: 250 ms, 1 s,
// 4 s, 10 s.
func forwardWait(failed int) time.Duration {
	return min(250*time.Millisecond<<(2*(failed-1)), 10*time.Second)
}

// handle works through one batch.
func (u *subscription) handle(ctx context.Context, batch []item) {
	if batch[0].forward != nil {
		u.forward(ctx, batch)
		return
	}
	deliveries := make([]Delivery, len(batch))
	for i := range batch {
		deliveries[i] = batch[i].d
	}
	outcomes, err := u.k.o.Handler(ctx, deliveries)
	if err == nil && len(outcomes) != len(batch) {
		err = fmt.Errorf("the handler answered %d outcomes for %d deliveries", len(outcomes), len(batch))
	}
	if err != nil {
		u.giveUp(err)
		return
	}
	u.handled.Store(true)
	var (
		acks     []uint64
		forwards []item
		held     []heldItem
	)
	for i, o := range outcomes {
		it := batch[i]
		switch o.kind {
		case kindAck:
			acks = append(acks, it.tag)
		case kindForward:
			it.forward, it.outcome = o.messages, "forward"
			forwards = append(forwards, it)
		case kindPark:
			it.forward, it.outcome = []Message{it.d.Parked(u.k.o.ParkExchange, o.reason)}, "park"
			forwards = append(forwards, it)
		case kindHold:
			held = append(held, heldItem{it, time.Now().Add(o.hold)})
		default:
			u.giveUp(fmt.Errorf("the handler gave no outcome for delivery %d of %d", i+1, len(batch)))
		}
	}
	u.ack("ack", acks)
	u.hold(held)
	if len(forwards) > 0 {
		u.forward(ctx, forwards)
	}
}

// forward publishes and, for what is confirmed, acks. The rest is tried again
// later; after the last attempt it goes back to the queue.
func (u *subscription) forward(ctx context.Context, items []item) {
	if u.k.o.Publisher == nil {
		u.giveUp(errors.New("the handler forwards, but the consumer has no publisher"))
		return
	}
	var messages []Message
	for i := range items {
		messages = append(messages, items[i].forward...)
	}
	var (
		done  = make(map[string][]uint64, 2)
		again []heldItem
		back  []uint64
		last  error
	)
	crash.Before(crash.Forward, u.k.o.Queue)
	results := u.k.o.Publisher.Publish(ctx, messages)
	crash.After(crash.Forward, u.k.o.Queue)
	for _, it := range items {
		err := worst(results[:len(it.forward)])
		results = results[len(it.forward):]
		switch {
		case err == nil:
			done[it.outcome] = append(done[it.outcome], it.tag)
			continue
		case errors.Is(err, ErrBlocked), errors.Is(err, ErrStopped), ctx.Err() != nil:
			u.giveUp(fmt.Errorf("forwarding: %w", err))
			continue
		case it.tries+1 < forwardTries:
			it.tries++
			again = append(again, heldItem{it, time.Now().Add(forwardWait(it.tries))})
		case errors.Is(err, ErrNotSent), errors.Is(err, ErrUnknown):
			u.giveUp(fmt.Errorf("forwarding: %w", err))
		default: // the fault is the message's or its target's: others may go on
			back = append(back, it.tag)
		}
		last = err
	}
	for outcome, tags := range done {
		u.ack(outcome, tags)
	}
	if last != nil {
		u.k.log.Warn("cannot forward", zap.Int("count", len(again)+len(back)), zap.Int("put_back", len(back)), zap.Error(last))
	}
	u.hold(again)
	u.requeue(back)
}

// worst is the error that decides over messages that go together: one that is no answer to a message comes first.
func worst(errs []error) (worst error) {
	for _, err := range errs {
		if err != nil && (worst == nil || Rejected(worst) && !Rejected(err)) {
			worst = err
		}
	}
	return worst
}

// Rejected says that the broker, or a rule of its, answered no to the very message; waiting for the broker would not help it.
func Rejected(err error) bool {
	return errors.Is(err, ErrReturned) || errors.Is(err, ErrNacked) || errors.Is(err, ErrInvalid)
}

// giveUp ends the subscription: what is unsettled goes back to the queue once.
func (u *subscription) giveUp(why error) {
	select {
	case u.pause <- why:
	default: // there is a reason already
	}
}

func (u *subscription) hold(items []heldItem) {
	if len(items) == 0 {
		return
	}
	select {
	case u.held <- items:
	case <-u.quit: // the channel's end puts them back
	}
}

// ackDelay is how long what is settled waits for what came before it, so that one frame tells of both.
const ackDelay = 50 * time.Millisecond

// ack settles on the channel that delivered, and on no other. Once that has
// ended its tags mean nothing: the ack is refused and the delivery forgotten.
func (u *subscription) ack(outcome string, tags []uint64) {
	if len(tags) == 0 {
		return
	}
	u.acking.Lock()
	defer u.acking.Unlock()
	u.acks.settle(outcome, tags, false)
	if f, ok := u.acks.front(); ok {
		u.send(f)
	}
	// A prefetch that is taken up by what only waits to be told of would stop the deliveries.
	if u.acks.waiting > u.k.o.Config.Prefetch/2 {
		u.send(u.acks.rest()...)
	}
	if u.acks.waiting > 0 {
		select {
		case u.late <- struct{}{}:
		default: // the moment is running
		}
	}
}

// ackRest tells of what has waited long enough.
func (u *subscription) ackRest() {
	u.acking.Lock()
	defer u.acking.Unlock()
	u.send(u.acks.rest()...)
}

// ackLast tells of everything once no batch is in work any more.
func (u *subscription) ackLast() {
	u.acking.Lock()
	defer u.acking.Unlock()
	u.send(u.acks.last()...)
}

// send must be called under acking: a frame for what a later one has settled too would end the channel.
func (u *subscription) send(frames ...ackFrame) {
	count := u.k.c.metrics.settled
	for _, f := range frames {
		if f.back {
			if u.ch.IsClosed() || u.ch.Nack(f.tag, f.multiple, true) != nil {
				return // it all goes back with the channel
			}
			continue
		}
		crash.Before(crash.Ack, u.k.o.Queue)
		refused := u.ch.IsClosed() || u.ch.Ack(f.tag, f.multiple) != nil
		crash.After(crash.Ack, u.k.o.Queue)
		for outcome, n := range f.outcomes {
			if refused {
				outcome = "stale"
				u.stale.Add(int64(n))
			}
			count.WithLabelValues(u.k.o.Queue, outcome).Add(float64(n))
		}
	}
}

func (u *subscription) requeue(tags []uint64) {
	if len(tags) == 0 {
		return
	}
	u.acking.Lock()
	defer u.acking.Unlock()
	const outcome = "requeue"
	count := u.k.c.metrics.settled
	for i, tag := range tags {
		if u.ch.IsClosed() || u.ch.Nack(tag, false, true) != nil {
			rest := len(tags) - i
			u.stale.Add(int64(rest))
			count.WithLabelValues(u.k.o.Queue, "stale").Add(float64(rest))
			tags = tags[:i]
			break
		}
	}
	count.WithLabelValues(u.k.o.Queue, outcome).Add(float64(len(tags)))
	u.acks.settle(outcome, tags, true)
	if f, ok := u.acks.front(); ok {
		u.send(f)
	}
}
