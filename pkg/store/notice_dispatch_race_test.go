package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// farSide counts what goes out, by notice id.
type farSide struct {
	mu   sync.Mutex
	seen map[string]int
}

func (f *farSide) take(ps []coupon.Prepared) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range ps {
		if p.Suppressed == "" {
			f.seen[p.ID()]++
		}
	}
}

func tolerable(err error) bool {
	return err == nil || errors.Is(err, coupon.ErrContention) || errors.Is(err, coupon.ErrUnavailable) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)
}

// TestDispatchRace: reminders are collected by two pods while both close their windows and send by two channels, with calls cut
// off at any point and leases that end too soon. No SMS goes out twice, no event is in two windows, a slot that was told of
// has late windows only, and in the end nothing waits.
func TestDispatchRace(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	const n, users = 240, 12
	now := dbNow(t, d)
	ends := now.Add(20 * time.Hour)
	plant(t, d, 1, n, coupon.Unused, sqlTime(ends), "NULL")
	plan := remindPlan(coupon.ChannelSMS, coupon.ChannelEmail)
	plan.Limit = 5
	far := &farSide{seen: map[string]int{}}
	seed := testenv.Seed(t)
	var failures sync.Map
	check := func(what string, err error) {
		if !tolerable(err) {
			failures.Store(what, err)
		}
	}
	send := func(ctx context.Context, s *store.Store, r *rand.Rand, ch coupon.Channel, ns []coupon.Notice) {
		ps, err := s.PrepareNotices(ctx, ch, ns, coupon.Cap{Week: 1000}, ch == coupon.ChannelSMS, today)
		check("prepare", err)
		if err != nil {
			return
		}
		far.take(ps)
		if r.IntN(5) == 0 { // the pod dies
			return
		}
		var rs []coupon.NoticeResult
		for _, p := range ps {
			if p.Suppressed == "" {
				rs = append(rs, coupon.NoticeResult{WindowID: p.WindowID, Attempt: p.Attempt, State: coupon.NoticeSent})
			}
		}
		_, _, err = s.SettleNotices(ctx, ch, rs)
		check("settle", err)
	}
	round := func(ctx context.Context, s *store.Store, r *rand.Rand) {
		// Plain SQL may lose a deadlock against them.
		_, _ = d.SQL.ExecContext(t.Context(), `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3) WHERE closed_at IS NULL AND id % 3 = ?`, r.IntN(3))
		c, err := s.CloseNotices(ctx, plan)
		check("close", err)
		by := map[coupon.Channel][]coupon.Notice{}
		for _, p := range c.Pending {
			by[p.Channel] = append(by[p.Channel], p)
		}
		for _, ch := range []coupon.Channel{coupon.ChannelSMS, coupon.ChannelEmail} {
			ns, _, _, err := s.ClaimNotices(ctx, ch, time.Duration(1+r.IntN(300))*time.Millisecond, 20)
			check("claim", err)
			send(ctx, s, r, ch, append(by[ch], ns...))
		}
	}
	var collectors, senders sync.WaitGroup
	done := make(chan struct{})
	for i := range 2 {
		s := pods[i]
		collectors.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for _, k := range r.Perm(n / 8) {
				var items []coupon.NoticeItem
				for j := range 8 {
					id := k*8 + j + 1
					items = append(items, reminder(fmt.Sprintf("n%d", id%users), id, ends, now))
				}
				for {
					_, err := s.CollectNotices(t.Context(), atOnce(), items)
					check("collect", err)
					if err == nil || !tolerable(err) {
						break
					}
				}
			}
		})
		senders.Go(func() {
			r := rand.New(rand.NewPCG(seed+1, uint64(i)))
			for {
				select {
				case <-done:
					return
				default:
				}
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(6) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(r.IntN(20_000))*time.Microsecond)
				}
				round(ctx, s, r)
				cancel()
			}
		})
	}
	collectors.Wait()
	close(done)
	senders.Wait()
	failures.Range(func(what, err any) bool {
		require.NoError(t, err.(error), what)
		return true
	})
	last := rand.New(rand.NewPCG(seed, 9))
	testenv.Wait(t, "nothing waits", func() bool {
		d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE state IN ('pending','sending')`)
		dueNow(t, d)
		round(t.Context(), pods[0], last)
		return d.Int(t, `SELECT (SELECT COUNT(*) FROM notice WHERE state IN ('pending','sending')) + (SELECT COUNT(*) FROM notice_window WHERE closed_at IS NULL)`) == 0
	})
	require.EqualValues(t, n, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = ''`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice_window w WHERE items = 0 OR items <> (SELECT COUNT(*) FROM notice_item i WHERE i.window_id = w.id)`))
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE late = 0`), "one for each day, and then late ones")
	require.Equal(t, 2*d.Int(t, `SELECT COUNT(*) FROM notice_window`), d.Int(t, `SELECT COUNT(*) FROM notice`))
	for id, times := range far.seen {
		_, ch, err := coupon.ParseNoticeID(id)
		require.NoError(t, err)
		if ch == coupon.ChannelSMS {
			require.Equal(t, 1, times, id)
		}
	}
	sent, unknown := d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'sent'`), d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'unknown'`)
	require.GreaterOrEqual(t, len(far.seen), int(sent))
	require.LessOrEqual(t, len(far.seen), int(sent+unknown), "what went out is recorded so, or as unknown")
}
