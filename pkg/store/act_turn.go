package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// turns lets one caller of this process at a time ask for a coupon. The row is the authority, and other pods wait for it
// in the database; but a caller who waits there keeps a connection, and a coupon that somebody holds for long must not
// take the whole pool away from all others. Nor must those who wait here keep what they have of it: see coupon.Lend.
type turns struct {
	mu sync.Mutex
	m  map[uint64][]chan bool // who waits, first come first served, for a coupon that is being asked for
}

// take waits for the turn of each coupon, in the order of ids, so that two callers never wait for each other.
// coupon.ErrContention when whoever had the turn found the row held for too long, or when it did not come within limit.
func (ts *turns) take(ctx context.Context, ids []uint64, limit time.Duration) error {
	for i, id := range ids {
		if err := ts.takeOne(ctx, id, limit); err != nil {
			ts.give(ids[:i], false)
			return err
		}
	}
	return nil
}

func (ts *turns) takeOne(ctx context.Context, id uint64, limit time.Duration) error {
	ts.mu.Lock()
	if ts.m == nil {
		ts.m = make(map[uint64][]chan bool)
	}
	queue, taken := ts.m[id]
	if !taken {
		ts.m[id] = nil
		ts.mu.Unlock()
		return nil
	}
	mine := make(chan bool, 1)
	ts.m[id] = append(queue, mine)
	ts.mu.Unlock()

	reclaim := coupon.Lend(ctx)
	err := ts.await(ctx, id, mine, limit)
	if rerr := reclaim(ctx); rerr != nil && err == nil {
		ts.give([]uint64{id}, false)
		err = fmt.Errorf("after the wait for coupon %d: %w", id, rerr)
	}
	return err
}

// await waits for a turn that was asked for.
func (ts *turns) await(ctx context.Context, id uint64, mine <-chan bool, limit time.Duration) error {
	patience := time.NewTimer(limit)
	defer patience.Stop()
	var err error
	select {
	case ok := <-mine:
		if !ok {
			return fmt.Errorf("coupon %d is held by somebody: %w", id, coupon.ErrContention)
		}
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("wait for coupon %d: %w", id, classify(context.Cause(ctx)))
	case <-patience.C:
		err = fmt.Errorf("wait for coupon %d: %w", id, coupon.ErrContention)
	}
	ts.leave(id, mine)
	return err
}

// leave takes a waiter out of the queue; a turn that has come to it meanwhile goes on to the next.
func (ts *turns) leave(id uint64, mine <-chan bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if i := slices.IndexFunc(ts.m[id], func(c chan bool) bool { return c == mine }); i >= 0 {
		ts.m[id] = slices.Delete(ts.m[id], i, i+1)
		return
	}
	if <-mine {
		ts.next(id)
	}
}

// give passes the turns on. With held all who wait are sent away: they have waited for the same row as long as one may.
func (ts *turns) give(ids []uint64, held bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, id := range ids {
		if !held {
			ts.next(id)
			continue
		}
		for _, waiter := range ts.m[id] {
			waiter <- false
		}
		delete(ts.m, id)
	}
}

func (ts *turns) next(id uint64) {
	queue := ts.m[id]
	if len(queue) == 0 {
		delete(ts.m, id)
		return
	}
	queue[0] <- true
	ts.m[id] = queue[1:]
}
