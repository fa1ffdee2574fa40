package console

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// However many look, it is read once in its time; who asks while it is renewed gets what there is.
func TestAReadingIsMadeOnceForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork()
		defer w.close()
		var reads atomic.Int64
		k := &kept[int64]{
			every: 10 * time.Second, stale: 30 * time.Second, within: time.Minute, work: w, now: time.Now,
			read: func(ctx context.Context) (int64, error) {
				wait(ctx, time.Second)
				return reads.Add(1), nil
			},
		}
		look := func() (values []int64) {
			var mu sync.Mutex
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					v, at, err := k.get(t.Context())
					mu.Lock()
					defer mu.Unlock()
					values = append(values, v)
					if err != nil || at.IsZero() {
						t.Error(err, at)
					}
				})
			}
			all.Wait()
			return values
		}
		began := time.Now()
		require.NotContains(t, look(), int64(0))
		require.Equal(t, time.Second, time.Since(began), "the first wait for it")
		look()
		require.EqualValues(t, 1, reads.Load())

		wait(t.Context(), 10*time.Second)
		began = time.Now()
		require.NotContains(t, look(), int64(2), "it is renewed aside")
		require.Zero(t, time.Since(began))
		wait(t.Context(), 2*time.Second)
		require.EqualValues(t, 2, reads.Load())
		require.Contains(t, look(), int64(2))

		wait(t.Context(), time.Minute)
		began = time.Now()
		require.NotContains(t, look(), int64(2), "what is too old is not shown")
		require.Equal(t, time.Second, time.Since(began))
		wait(t.Context(), time.Hour)
		require.EqualValues(t, 3, reads.Load(), "nobody looks, nothing is read")
	})
}

func TestAReadingThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWork()
		gone := errors.New("gone")
		reads, fails := 0, false
		k := &kept[int]{
			every: 10 * time.Second, stale: 30 * time.Second, within: time.Second, work: w, now: time.Now, turn: make(chan struct{}, 1),
			read: func(context.Context) (int, error) {
				reads++
				if fails {
					return 0, gone
				}
				return reads, nil
			},
		}
		v, _, err := k.get(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, v)
		fails = true
		wait(t.Context(), 15*time.Second)
		for range 10 { // the last good one is shown while it is not too old, and what fails is not asked for at each look
			v, _, err = k.get(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, v)
		}
		synctest.Wait()
		require.Equal(t, 2, reads)
		wait(t.Context(), 60*time.Second)
		_, _, err = k.get(t.Context())
		require.ErrorIs(t, err, gone)

		wait(t.Context(), 60*time.Second)
		k.turn <- struct{}{} // another reading goes on, and on
		_, _, err = k.get(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded, "it has waited for its turn long enough")
		asked, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		wait(t.Context(), 60*time.Second)
		_, _, err = k.get(asked)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		w.close()
		wait(t.Context(), 60*time.Second)
		_, _, err = k.get(t.Context())
		require.ErrorIs(t, err, errClosed)
	})
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
