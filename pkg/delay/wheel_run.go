package delay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	lookBack     = time.Minute            // what has been due for longer is the sweep's
	partsEvery   = 250 * time.Millisecond // how often the partitions are looked at
	readWithin   = 10 * time.Second       // one cycle of reading
	publishLimit = 10 * time.Second       // one batch
	longest      = time.Second            // sleep of the publishing loop
)

// place is how far rows were read.
type place struct {
	parts   []int
	cursors [2]coupon.Cursor // of each kind
	behind  [2]bool          // there was no room for all of the window
	next    time.Time        // when the window has moved on enough to read again
}

// reading keeps the window filled.
func (w *Wheel) reading(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = pauseMin, pauseMax, 2
	var p place
	ticker := time.NewTicker(partsEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if err := w.cycle(ctx, &p); err != nil && ctx.Err() == nil {
			w.tells.Failed("wheel: rows cannot be read, trying again", err)
			_ = lifecycle.Sleep(ctx, wait.NextBackOff())
			continue
		}
		w.tells.Recovered("wheel: reading rows again")
		wait.Reset()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-w.read:
		}
	}
}

// cycle looks whether the partitions are others, the window has moved on, or there is room, and reads what is missing.
func (w *Wheel) cycle(ctx context.Context, p *place) error {
	parts := w.deps.Parts()
	gained := slices.ContainsFunc(parts, func(part int) bool { return !slices.Contains(p.parts, part) })
	missed := w.takeMissed()
	room := w.room(p.behind)
	if !gained && !room && missed == [2]time.Time{} && time.Now().Before(p.next) {
		p.parts = parts
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	now, err := w.deps.Clock(ctx)
	if err != nil {
		w.giveMissed(missed)
		return fmt.Errorf("ask the database for the time: %w", err)
	}
	w.set(now, time.Now())
	back := coupon.Cursor{At: now.Add(-lookBack)}
	for k := range p.cursors {
		if gained || p.cursors[k].At.Before(back.At) {
			p.cursors[k] = back
		}
		if m := missed[k]; !m.IsZero() && m.Before(p.cursors[k].At) {
			p.cursors[k] = coupon.Cursor{At: m}
		}
	}
	end := now.Add(w.config.Window)
	w.mu.Lock()
	w.until = end // before reading: what is committed from now on is put in by Deliver
	w.mu.Unlock()
	p.parts = parts
	for k, kind := range []coupon.Kind{coupon.KindExpire, coupon.KindUnlock} {
		all, err := w.fill(ctx, kind, parts, end, &p.cursors[k])
		if err != nil {
			p.parts = nil // begin anew
			return err
		}
		p.behind[k] = !all
	}
	p.next = time.Now().Add(max(w.config.Window/5, partsEvery))
	return nil
}

// fill reads rows of a kind until the end of the window or until there is no room. Locks have a quarter of it.
func (w *Wheel) fill(ctx context.Context, kind coupon.Kind, parts []int, end time.Time, at *coupon.Cursor) (all bool, err error) {
	k := kindOf(kind)
	share := w.share(k)
	for len(parts) > 0 {
		w.mu.Lock()
		room := min(share-w.of[k], w.config.Max-len(w.held), w.config.Batch)
		w.mu.Unlock()
		if room <= 0 {
			return false, nil
		}
		ts, next, err := w.deps.Rows.Upcoming(ctx, kind, parts, end, *at, room)
		if err != nil {
			return false, fmt.Errorf("read what comes due: %w", err)
		}
		*at = next
		w.mu.Lock()
		for i := range ts {
			w.put(&ts[i], w.config.Max+w.config.Max/4+w.config.Batch)
		}
		w.metrics.waiting.Set(float64(len(w.held)))
		w.mu.Unlock()
		signal(w.wake)
		if len(ts) < room {
			break
		}
	}
	if at.At.Before(end) {
		*at = coupon.Cursor{At: end}
	}
	return true, nil
}

// share is how many of a kind are read.
func (w *Wheel) share(kind int8) int {
	if kind == kindOf(coupon.KindUnlock) {
		return w.config.Max / 4
	}
	return w.config.Max - w.config.Max/4
}

// room says that a tenth of a share is free for a kind that was not read to the window's end.
func (w *Wheel) room(behind [2]bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range behind {
		if share := w.share(int8(k)); behind[k] && w.of[k] <= share-share/10 {
			return true
		}
	}
	return false
}

func (w *Wheel) takeMissed() (missed [2]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.held) > w.config.Max-w.config.Max/10 {
		return missed
	}
	missed, w.missed = w.missed, missed
	return missed
}

func (w *Wheel) giveMissed(missed [2]time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, m := range missed {
		if !m.IsZero() && (w.missed[k].IsZero() || m.Before(w.missed[k])) {
			w.missed[k] = m
		}
	}
}

// publishing publishes what is due. What the broker does not take is tried again.
func (w *Wheel) publishing(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval, wait.Multiplier = pauseMin, pauseMax, 2
	for ctx.Err() == nil {
		batch, rest := w.take()
		if len(batch) > 0 && w.deps.Publisher.Ready() != nil {
			w.giveBack(batch)
			_ = lifecycle.Sleep(ctx, pauseMin) // the publisher tells of it
			continue
		}
		if len(batch) > 0 {
			if err := w.publish(ctx, batch); err != nil && ctx.Err() == nil {
				w.says.Failed("wheel: due triggers cannot be published, trying again", err)
				_ = lifecycle.Sleep(ctx, wait.NextBackOff())
				continue
			}
			w.says.Recovered("wheel: publishing again")
			wait.Reset()
			continue
		}
		timer := time.NewTimer(rest)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.wake:
		}
		timer.Stop()
	}
}

// take turns the wheel to the database's now, and gives a batch of what is due, or how long nothing is.
func (w *Wheel) take() (batch []*coupon.Timed, rest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wheel == nil {
		return nil, longest
	}
	now := w.clock()
	w.wheel.advance(tickOf(now), func(_ uint64, t *coupon.Timed) { w.due = append(w.due, t) })
	n := min(len(w.due), w.config.Batch)
	batch, w.due = w.due[:n:n], w.due[n:]
	w.metrics.flight.Set(float64(n))
	w.metrics.waiting.Set(float64(len(w.held) - n))
	if n > 0 {
		return batch, 0
	}
	w.due = nil
	next, ok := w.wheel.next()
	if !ok {
		return nil, longest
	}
	at := time.UnixMilli(int64(next) * tick.Milliseconds())
	return nil, min(max(at.Sub(now), time.Millisecond), longest)
}

func (w *Wheel) giveBack(ts []*coupon.Timed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.due = append(ts, w.due...)
}

// publish sends a batch. What another process relays by now is dropped: that one has read it. While no partition is held at all
// the lease is only late, and nobody else may have it.
func (w *Wheel) publish(ctx context.Context, batch []*coupon.Timed) error {
	parts := w.deps.Parts()
	mine := make([]*coupon.Timed, 0, len(batch))
	ms := make([]broker.Message, 0, len(batch))
	w.mu.Lock()
	clock := w.clock
	for _, t := range batch {
		if len(parts) > 0 && !slices.Contains(parts, coupon.Partition(t.CouponID)) {
			w.drop(t)
			continue
		}
		mine, ms = append(mine, t), append(ms, dueMessage(w.deps.Exchange, t))
	}
	w.mu.Unlock()
	if len(ms) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), publishLimit)
	defer cancel()
	results := w.deps.Publisher.Publish(ctx, ms)
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []*coupon.Timed
	var err error
	now := clock()
	for i, failed := range results {
		if failed != nil {
			left, err = append(left, mine[i]), fmt.Errorf("publish: %w", failed)
			continue
		}
		w.drop(mine[i])
		w.metrics.lag.Observe(max(0, now.Sub(mine[i].At).Seconds()))
	}
	w.due = append(left, w.due...)
	w.metrics.moved.WithLabelValues(resultConfirmed).Add(float64(len(results) - len(left)))
	w.metrics.moved.WithLabelValues(resultFailed).Add(float64(len(left)))
	if len(w.held) <= w.config.Max-w.config.Max/10 {
		signal(w.read)
	}
	return err
}
