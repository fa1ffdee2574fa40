package console

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errClosed: the console has ended.
var errClosed = errors.New("the console has ended")

// work runs readings, each to its end whoever has stopped waiting for it, and waits for them when it is closed.
type work struct {
	ctx  context.Context //nolint:containedctx // the life of what runs in it
	stop context.CancelFunc

	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup
}

func newWork() *work {
	w := &work{}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// run runs f aside; false after close.
func (w *work) run(within time.Duration, f func(context.Context)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.all.Go(func() {
		ctx, cancel := context.WithTimeout(w.ctx, within)
		defer cancel()
		f(ctx)
	})
	return true
}

func (w *work) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.stop()
	w.all.Wait()
}

// kept is a reading that is made at most once in a time, for all who ask. Who asks gets what there is at once, unless it is too old
// to show; it is renewed aside, so that nobody waits for a slow one but the first.
type kept[T any] struct {
	every  time.Duration // from the end of one reading to the next
	stale  time.Duration // older than this is waited for instead
	within time.Duration // of one reading
	turn   chan struct{} // shared by readings that are made one at a time; nil: no turn is needed
	work   *work
	now    func() time.Time
	read   func(ctx context.Context) (T, error)

	mu      sync.Mutex
	value   T
	at      time.Time // when the value was read; zero: never
	err     error     // of the last reading
	ended   time.Time // when it ended
	reading chan struct{}
}

// get gives the reading, and when it was made.
func (k *kept[T]) get(ctx context.Context) (T, time.Time, error) {
	for {
		k.mu.Lock()
		now := k.now()
		if k.reading == nil && (k.ended.IsZero() || now.Sub(k.ended) >= k.every) && !k.start() {
			k.mu.Unlock()
			var none T
			return none, time.Time{}, errClosed
		}
		reading, value, at, err := k.reading, k.value, k.at, k.err
		k.mu.Unlock()
		switch {
		case !at.IsZero() && now.Sub(at) <= k.stale:
			return value, at, nil
		case reading == nil:
			return value, time.Time{}, err // it failed a moment ago
		}
		select {
		case <-reading:
		case <-ctx.Done():
			var none T
			return none, time.Time{}, ctx.Err() //nolint:wrapcheck // told by the handler
		}
	}
}

// start begins a reading; k.mu is held.
func (k *kept[T]) start() bool {
	done := make(chan struct{})
	began := k.work.run(k.within, func(ctx context.Context) {
		value, err := k.take(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.err, k.ended, k.reading = err, k.now(), nil
		if err == nil {
			k.value, k.at = value, k.ended
		}
		close(done)
	})
	if began {
		k.reading = done
	}
	return began
}

func (k *kept[T]) take(ctx context.Context) (T, error) {
	if k.turn != nil {
		select {
		case k.turn <- struct{}{}:
			defer func() { <-k.turn }()
		case <-ctx.Done():
			var none T
			return none, ctx.Err() //nolint:wrapcheck // told by the handler
		}
	}
	return k.read(ctx)
}
