package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

func TestTurnsGoRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ts store.Turns
		require.NoError(t, store.Take(&ts, t.Context(), []uint64{1, 2}, time.Second))
		require.NoError(t, store.Take(&ts, t.Context(), []uint64{3}, time.Second), "another coupon")
		var order []int
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				if err := store.Take(&ts, t.Context(), []uint64{2}, time.Minute); err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				store.Give(&ts, []uint64{2}, false)
			})
			synctest.Wait()
		}
		require.Empty(t, order)
		store.Give(&ts, []uint64{1, 2}, false)
		wg.Wait()
		require.Equal(t, []int{0, 1, 2}, order, "first come, first served")
		store.Give(&ts, []uint64{3}, false)
		require.Zero(t, ts.Waiting())
	})
}

func TestTurnsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ts store.Turns
		require.NoError(t, store.Take(&ts, t.Context(), []uint64{2}, time.Second))
		// It does not come in time; what was taken meanwhile is given back.
		require.ErrorIs(t, store.Take(&ts, t.Context(), []uint64{1, 2}, time.Second), coupon.ErrContention)
		require.Equal(t, 1, ts.Waiting())
		// The caller gives up.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, store.Take(&ts, ctx, []uint64{2}, time.Minute), context.DeadlineExceeded)
		// Who had it found the row held: all who wait go away at once, and the next comer tries again.
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := store.Take(&ts, t.Context(), []uint64{2}, time.Minute); !errors.Is(err, coupon.ErrContention) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		store.Give(&ts, []uint64{2}, true)
		wg.Wait()
		require.Zero(t, ts.Waiting())
		require.NoError(t, store.Take(&ts, t.Context(), []uint64{2}, time.Second))
	})
}

// A turn that comes to one who is leaving goes on to the next.
func TestTurnsAreNotLost(t *testing.T) {
	t.Parallel()
	var ts store.Turns
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := range 300 {
				ids := []uint64{uint64(1 + n%3), uint64(4 + i%2)}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n%7)*50*time.Microsecond)
				if err := store.Take(&ts, ctx, ids, time.Duration(1+n%5)*50*time.Microsecond); err == nil {
					store.Give(&ts, ids, n%11 == 0)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, ts.Waiting())
}

// lender counts what it lends.
type lender struct{ lent, back int }

func (l *lender) Lend() { l.lent++ }

func (l *lender) Reclaim(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reclaim: %w", err)
	}
	l.back++
	return nil
}

// What the caller has is lent while it waits, and had again before it goes on; who cannot have it again gives the turn on.
func TestTurnsLend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ts store.Turns
		l := &lender{}
		ctx := coupon.WithLender(t.Context(), l)
		require.NoError(t, store.Take(&ts, ctx, []uint64{1}, time.Second))
		require.Equal(t, lender{}, *l, "it did not wait")
		require.ErrorIs(t, store.Take(&ts, ctx, []uint64{1}, time.Second), coupon.ErrContention)
		require.Equal(t, lender{1, 1}, *l)

		var wg sync.WaitGroup
		wg.Go(func() {
			if err := store.Take(&ts, ctx, []uint64{1}, time.Second); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		require.Equal(t, lender{2, 1}, *l)
		store.Give(&ts, []uint64{1}, false)
		wg.Wait()
		require.Equal(t, lender{2, 2}, *l)
		store.Give(&ts, []uint64{1}, false)
		require.Zero(t, ts.Waiting())
	})
}

// stingy never gives back what it was lent.
type stingy struct{}

func (stingy) Lend() {}

func (stingy) Reclaim(context.Context) error { return coupon.ErrContention }

func TestTurnsGoOnFromWhoCannotUseThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ts store.Turns
		require.NoError(t, store.Take(&ts, t.Context(), []uint64{1}, time.Second))
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := store.Take(&ts, coupon.WithLender(t.Context(), stingy{}), []uint64{1}, time.Second); !errors.Is(err, coupon.ErrContention) {
				t.Error(err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if err := store.Take(&ts, t.Context(), []uint64{1}, time.Second); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		store.Give(&ts, []uint64{1}, false)
		wg.Wait()
		store.Give(&ts, []uint64{1}, false)
		require.Zero(t, ts.Waiting())
	})
}
