package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestNoticeClosersShare(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	const users = 400
	plant(t, d, 1, users, coupon.Expired, past, "NULL")
	collect(t, stores[0], atOnce(), told(1, users, users))
	plan := closePlan(atOnce())
	plan.Limit = 10
	var wg sync.WaitGroup
	counts := make([]int, 2)
	for i := range stores {
		wg.Go(func() {
			for {
				c, err := stores[i].CloseNotices(t.Context(), plan)
				if err != nil {
					return // the audit would find what is missing
				}
				counts[i] += c.Windows
				if _, err := deliver(t.Context(), stores[i], c.Pending); err != nil || c.Next.IsZero() {
					return
				}
			}
		})
	}
	wg.Wait()
	for {
		c := closeWindows(t, stores[0], plan)
		_, err := deliver(t.Context(), stores[0], c.Pending)
		require.NoError(t, err)
		counts[0] += c.Windows
		if c.Next.IsZero() {
			break
		}
	}
	require.Equal(t, users, counts[0]+counts[1])
	digestHolds(t, d, users)
}

// TestNoticeRace: two pods collect overlapping batches, again and again, while both close, and calls are cut off at
// any point as by a kill: what was cut off is brought again, as the broker would, and picked up when its lease is out.
func TestNoticeRace(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	const n, users = 700, 20
	plant(t, d, 1, n, coupon.Expired, past, "NULL")
	rules := atOnce()
	rules.MaxItems = 7
	plan := closePlan(rules)
	plan.Limit = 8
	cut := func(r *rand.Rand) (context.Context, context.CancelFunc) {
		if r.IntN(8) > 0 {
			return context.WithCancel(t.Context())
		}
		return context.WithTimeout(t.Context(), time.Duration(r.IntN(15_000))*time.Microsecond)
	}
	tell := func(s *store.Store, r *rand.Rand, p coupon.ClosePlan) {
		ctx, cancel := cut(r)
		defer cancel()
		c, err := s.CloseNotices(ctx, p)
		if err == nil && r.IntN(4) > 0 { // else: killed between the commits
			_, _ = deliver(ctx, s, c.Pending) // what fails stays pending
		}
	}
	seed := testenv.Seed(t)
	var collectors, closers sync.WaitGroup
	done := make(chan struct{})
	failures := make(chan error, 100)
	for i := range 4 {
		s := stores[i%2]
		collectors.Go(func() {
			r := rand.New(rand.NewPCG(seed+7, uint64(i)))
			all := told(1, n, users)
			r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
			for len(all) > 0 {
				batch := all[:min(len(all), 1+r.IntN(60))]
				ctx, cancel := cut(r)
				_, err := s.CollectNotices(ctx, rules, batch)
				cut := ctx.Err() != nil
				cancel()
				switch {
				case err == nil:
					all = all[len(batch):]
				case !cut && !errors.Is(err, coupon.ErrContention) && !errors.Is(err, coupon.ErrUnavailable):
					failures <- err
					return
				}
			}
		})
		closers.Go(func() {
			r := rand.New(rand.NewPCG(seed+8, uint64(i)))
			for {
				select {
				case <-done:
					return
				default:
					tell(s, r, plan)
				}
			}
		})
	}
	collectors.Wait()
	close(done)
	closers.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	testenv.Wait(t, "the rest closes", func() bool {
		c := closeWindows(t, stores[0], plan)
		_, err := deliver(t.Context(), stores[0], c.Pending)
		require.NoError(t, err)
		return c.Next.IsZero()
	})
	d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE state = 'pending'`)
	for _, ch := range []coupon.Channel{coupon.ChannelInbox, coupon.ChannelLog} {
		ns, _, _, err := stores[1].ClaimNotices(t.Context(), ch, time.Minute, 2*n)
		require.NoError(t, err)
		_, err = deliver(t.Context(), stores[1], ns)
		require.NoError(t, err)
	}
	digestHolds(t, d, n)
}
