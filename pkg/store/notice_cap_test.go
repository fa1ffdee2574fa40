package store_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// many gives n notices of one user.
func many(t testing.TB, d testenv.Database, s *store.Store, n int, ch coupon.Channel) []coupon.Notice {
	t.Helper()
	var ns []coupon.Notice
	first := int(d.Int(t, `SELECT COALESCE(MAX(id), 0) FROM coupon`)) + 1
	plant(t, d, first, n, coupon.Expired, past, "NULL")
	plan := closePlan(atOnce())
	plan.Decide = chain(ch)
	for id := first; id < first+n; id++ {
		collect(t, s, atOnce(), told(id, 1, 1))
		ns = append(ns, closeWindows(t, s, plan).Pending...)
	}
	require.Len(t, ns, n)
	return ns
}

func capped(ps []coupon.Prepared) (n int) {
	for _, p := range ps {
		if p.Suppressed == coupon.ReasonCap {
			n++
		}
	}
	return n
}

func onDay(day int) func(time.Time, *coupon.Profile) time.Time {
	return func(time.Time, *coupon.Profile) time.Time {
		return time.Date(2026, 11, day, 23, 0, 0, 0, time.FixedZone("", 14*3600))
	}
}

func TestCaps(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := many(t, d, s, 20, coupon.ChannelSMS)
	caps := coupon.Cap{Day: 2, Week: 5}
	take := func(n, day int) []coupon.Prepared {
		t.Helper()
		out, err := s.PrepareNotices(t.Context(), coupon.ChannelSMS, ns[:n], caps, true, onDay(day))
		require.NoError(t, err)
		require.Len(t, out, n)
		ns = ns[n:]
		return out
	}
	count := func(day int) int64 {
		return d.Int(t, `SELECT sent FROM notice_count WHERE user_id = 'n0' AND channel = 'sms' AND day = ?`, time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC))
	}
	first := take(3, 10)
	require.Equal(t, 1, capped(first), "two a day")
	require.EqualValues(t, 2, count(10))
	require.Equal(t, 1, capped(take(3, 11)))
	require.Equal(t, 1, capped(take(2, 16)), "five in seven days")
	require.Equal(t, 0, capped(take(1, 17)), "the tenth is out of the week")
	require.Equal(t, 0, capped(take(1, 17)))
	require.Equal(t, 1, capped(take(1, 15)), "days that the user has had elsewhere count")

	// What was not sent is given back.
	settle(t, s, coupon.ChannelSMS, []coupon.NoticeResult{
		{WindowID: first[0].WindowID, Attempt: 1, State: coupon.NoticeFailed},
		{WindowID: first[1].WindowID, Attempt: 1, State: coupon.NoticeUnknown},
	})
	require.EqualValues(t, 1, count(10))
	_, err := noticeReceipt(t, s, first[1].WindowID, coupon.ChannelSMS, false, "", time.Now())
	require.NoError(t, err)
	require.EqualValues(t, 0, count(10))

	// A try that was not settled is counted once; on another day it moves.
	caps = coupon.Cap{Week: 100}
	one := ns[:1]
	for _, day := range []int{20, 20, 21} {
		out, err := s.PrepareNotices(t.Context(), coupon.ChannelSMS, one, caps, false, onDay(day))
		require.NoError(t, err)
		require.Zero(t, capped(out))
		d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE window_id = ?`, one[0].WindowID)
		one, _ = claimOf(t, s, coupon.ChannelSMS)
		require.Len(t, one, 1)
	}
	require.EqualValues(t, 0, count(20))
	require.EqualValues(t, 1, count(21))
	rs := results(one, coupon.NoticePending)
	settle(t, s, coupon.ChannelSMS, rs)
	require.EqualValues(t, 0, count(21), "to be tried again: counted then")
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM notice WHERE counted_on IS NOT NULL AND state IN ('pending','failed','suppressed')`))
}

// Pods that prepare at the same time never exceed the cap together.
func TestCapsUnderConcurrency(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	const n, users, day = 60, 3, 4
	plant(t, d, 1, n, coupon.Expired, past, "NULL")
	plan := closePlan(atOnce())
	plan.Decide = chain(coupon.ChannelSMS)
	var ns []coupon.Notice
	for id := 1; id <= n; id += users {
		collect(t, stores[0], atOnce(), told(id, users, users))
		ns = append(ns, closeWindows(t, stores[0], plan).Pending...)
	}
	require.Len(t, ns, n)
	var wg sync.WaitGroup
	errs := make([]error, 10)
	sent := make([]int, 10)
	for i := range errs {
		wg.Go(func() {
			for part := ns[i*6 : i*6+6]; len(part) > 0; part = part[2:] {
				out, err := stores[i%2].PrepareNotices(t.Context(), coupon.ChannelSMS, part[:2], coupon.Cap{Day: day, Week: 6}, true, today)
				if errs[i] = err; err != nil {
					return
				}
				sent[i] += len(out) - capped(out)
			}
		})
	}
	wg.Wait()
	total := 0
	for i, err := range errs {
		require.NoError(t, err)
		total += sent[i]
	}
	require.Equal(t, users*day, total)
	require.EqualValues(t, users, d.Int(t, `SELECT COUNT(*) FROM notice_count WHERE sent = ?`, day))
	require.EqualValues(t, users*day, d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'sending' AND counted_on = '2026-11-30'`))
}
