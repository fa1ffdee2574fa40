package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// told gives an item for each of n expired coupons from first on, dealt to so many users.
func told(first, n, users int) []coupon.NoticeItem {
	items := make([]coupon.NoticeItem, n)
	for i := range items {
		id := first + i
		items[i] = coupon.NoticeItem{
			EventID: fmt.Sprintf("%d:1:expired", id), Kind: coupon.NoticeExpired, UserID: fmt.Sprintf("n%d", id%users), CouponID: uint64(id), Version: 1,
			ExpiresAt: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Value: 500, Currency: "CNY",
		}
	}
	return items
}

// atOnce closes windows as soon as they are looked at.
func atOnce() coupon.WindowRules {
	return coupon.WindowRules{MaxAge: time.Hour, MaxItems: 500} // due in the millisecond in which they are opened
}

// toldBy decides that the channels tell at once of whatever stands.
func toldBy(channels ...coupon.Channel) func(time.Time, *coupon.Closed) coupon.Decided {
	return func(now time.Time, c *coupon.Closed) (d coupon.Decided) {
		for _, ch := range channels {
			n := coupon.PlannedNotice{Channel: ch, State: coupon.NoticePending, SendAt: now, NotAfter: coupon.Never}
			if c.Items == 0 {
				n.State, n.Reason = coupon.NoticeSuppressed, c.Reason
			}
			d.Notices = append(d.Notices, n)
		}
		return d
	}
}

func closePlan(r coupon.WindowRules) coupon.ClosePlan {
	return coupon.ClosePlan{
		Kind: coupon.NoticeExpired, Rules: r, Decide: toldBy(coupon.ChannelInbox, coupon.ChannelLog), Lease: time.Minute, Limit: 100,
	}
}

func collect(t testing.TB, s *store.Store, r coupon.WindowRules, items []coupon.NoticeItem) int {
	t.Helper()
	added, err := s.CollectNotices(t.Context(), r, items)
	require.NoError(t, err)
	return added
}

func closeWindows(t testing.TB, s *store.Store, p coupon.ClosePlan) coupon.Closing {
	t.Helper()
	c, err := s.CloseNotices(t.Context(), p)
	require.NoError(t, err)
	return c
}

// deliver sends what closing left to send, and gives the number of inbox rows written.
func deliver(ctx context.Context, s *store.Store, ns []coupon.Notice) (int, error) {
	var es []coupon.InboxEntry
	var logged []coupon.NoticeResult
	for _, n := range ns {
		if n.Channel == coupon.ChannelLog {
			logged = append(logged, coupon.NoticeResult{WindowID: n.WindowID, Attempt: n.Attempt, State: coupon.NoticeSent})
			continue
		}
		es = append(es, coupon.InboxEntry{Notice: n, Texts: map[string]coupon.NoticeText{
			"en": {Title: "t", Text: fmt.Sprintf("%d of your coupons", n.Items)}, "zh-CN": {Title: "题", Text: fmt.Sprintf("%d张", n.Items)},
		}})
	}
	written, err := s.DeliverInbox(ctx, es)
	_, _, lerr := s.SettleNotices(ctx, coupon.ChannelLog, logged)
	return written, errors.Join(err, lerr)
}

// digestHolds audits by plain SQL: every one of n events in one window, every window closed, counted and told once.
func digestHolds(t testing.TB, d testenv.Database, n int) {
	t.Helper()
	require.EqualValues(t, n, d.Int(t, `SELECT COUNT(*) FROM notice_item`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_at IS NULL OR open_mark IS NOT NULL OR due_at < '9999-01-01'`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice_window w WHERE items = 0 OR items <> (SELECT COUNT(*) FROM notice_item i WHERE i.window_id = w.id)`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'pending' OR try_at < '9999-01-01'`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice_window w WHERE 2 <> (SELECT COUNT(*) FROM notice n WHERE n.window_id = w.id AND n.user_id = w.user_id)`))
	require.EqualValues(t, n, d.Int(t, `SELECT COUNT(DISTINCT i.coupon_id) FROM notice_item i JOIN inbox b ON b.window_id = i.window_id WHERE i.dropped = ''`))
	require.EqualValues(t, n, d.Int(t, `SELECT SUM(items) FROM inbox`))
	require.Equal(t, d.Int(t, `SELECT COUNT(*) FROM notice WHERE channel = 'inbox' AND state = 'sent'`), d.Int(t, `SELECT COUNT(*) FROM inbox`))
}

func TestNoticeTellsEachUserOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 70, coupon.Expired, past, "NULL")
	require.Equal(t, 70, collect(t, s, atOnce(), told(1, 70, 7)))

	c := closeWindows(t, s, closePlan(atOnce()))
	require.Equal(t, 7, c.Windows)
	require.Len(t, c.Pending, 14)
	require.True(t, c.Next.IsZero())
	written, err := deliver(t.Context(), s, c.Pending)
	require.NoError(t, err)
	require.Equal(t, 7, written)
	digestHolds(t, d, 70)

	again, err := deliver(t.Context(), s, c.Pending)
	require.NoError(t, err)
	require.Zero(t, again, "what is sent is not sent again")

	box, _, err := s.Inbox(t.Context(), "n3", 0, 10)
	require.NoError(t, err)
	require.Len(t, box, 1)
	require.Equal(t, 10, box[0].Items)
	require.Equal(t, coupon.NoticeText{Title: "题", Text: "10张"}, box[0].Texts["zh-CN"])
	require.True(t, box[0].ReadAt.IsZero())
	older, _, err := s.Inbox(t.Context(), "n3", box[0].ID, 10)
	require.NoError(t, err)
	require.Empty(t, older)
}

func TestNoticeRepeatsAreNoOps(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s, other := d.Store(t), d.Store(t)
	plant(t, d, 1, 20, coupon.Expired, past, "NULL")
	items := told(1, 10, 3)
	require.Equal(t, 10, collect(t, s, atOnce(), append(items, items...)), "twice in one batch")
	require.Zero(t, collect(t, other, atOnce(), items), "in an open window")
	c := closeWindows(t, s, closePlan(atOnce()))
	require.Equal(t, 3, c.Windows)
	require.Zero(t, collect(t, other, atOnce(), items), "in a closed window")
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE open_mark = 1`), "a repeat opens no window")
	require.Equal(t, 10, collect(t, other, atOnce(), told(6, 15, 3)), "the new ones among repeats")
	require.EqualValues(t, 6, d.Int(t, `SELECT COUNT(*) FROM notice_window`))
	require.Zero(t, collect(t, s, atOnce(), nil))
}

func TestNoticeFullWindowClosesEarly(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 40, coupon.Expired, past, "NULL")
	rules := coupon.WindowRules{Quiet: time.Hour, MaxAge: time.Hour, MaxItems: 3, NotBefore: time.Now().Add(time.Hour)}
	require.Equal(t, 8, collect(t, s, rules, told(1, 8, 1)))
	require.EqualValues(t, 2, d.Int(t, `SELECT items FROM notice_window WHERE open_mark = 1`))

	c := closeWindows(t, s, closePlan(rules))
	require.Equal(t, 2, c.Windows)
	for _, n := range c.Pending {
		require.Equal(t, 3, n.Items)
	}
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_by = 'size' AND closed_at IS NOT NULL`))
	require.Equal(t, 5, collect(t, s, rules, told(9, 5, 1)), "one joins the third window, three fill the fourth, one opens the fifth")
	require.EqualValues(t, 1, d.Int(t, `SELECT items FROM notice_window WHERE open_mark = 1`))

	// The limit is lowered while windows are open: they are full as they are.
	rules.MaxItems = 1
	require.Equal(t, 1, collect(t, s, rules, told(20, 1, 1)))
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE open_mark = 1`))
	require.Equal(t, 4, closeWindows(t, s, closePlan(rules)).Windows)
}

func TestNoticeWindowWaitsByItsRules(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 20, coupon.Expired, past, "NULL")
	rules := coupon.WindowRules{Quiet: 30 * time.Second, MaxAge: 5 * time.Minute, MaxItems: 500}
	collect(t, s, rules, told(1, 20, 2))
	c := closeWindows(t, s, closePlan(rules))
	require.Zero(t, c.Windows)
	require.WithinDuration(t, c.Now.Add(30*time.Second), c.Next, 5*time.Second)

	for _, x := range []struct {
		name         string
		opened, last int // ms ago, of a clock half an hour ahead
	}{{"quiet", 60000, 10000}, {"age", 299999, 1}, {"between", 280000, 10001}} {
		d.Exec(t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3), opened_at = UTC_TIMESTAMP(3) + INTERVAL (1800000 - ?) * 1000 MICROSECOND,
			last_item_at = UTC_TIMESTAMP(3) + INTERVAL (1800000 - ?) * 1000 MICROSECOND`, x.opened, x.last)
		require.Zero(t, closeWindows(t, s, closePlan(rules)).Windows)
		var opened, last, due time.Time
		require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT opened_at, last_item_at, due_at FROM notice_window LIMIT 1`).Scan(&opened, &last, &due))
		want, _ := rules.ClosesAt(opened, last)
		require.Equal(t, want, due, x.name)
	}

	d.Exec(t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3), opened_at = UTC_TIMESTAMP(3) - INTERVAL 5 MINUTE,
		last_item_at = UTC_TIMESTAMP(3) WHERE user_id = 'n0'`)
	d.Exec(t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3), opened_at = UTC_TIMESTAMP(3) - INTERVAL 31 SECOND,
		last_item_at = UTC_TIMESTAMP(3) - INTERVAL 31 SECOND WHERE user_id = 'n1'`)
	require.Equal(t, 2, closeWindows(t, s, closePlan(rules)).Windows)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_by = 'age' AND user_id = 'n0'`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_by = 'quiet' AND user_id = 'n1'`))
}

func TestNoticeNotBefore(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 50, coupon.Expired, past, "NULL")
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	rules := atOnce()
	rules.NotBefore = now.Add(700 * time.Millisecond)
	plan := closePlan(rules)
	collect(t, s, rules, told(1, 25, 5))
	first := closeWindows(t, s, plan)
	collect(t, s, rules, told(26, 25, 5))
	if first.Now.Before(rules.NotBefore) {
		require.Zero(t, first.Windows)
		require.Equal(t, rules.NotBefore, first.Next)
	}
	closed := first.Windows
	testenv.Wait(t, "the windows close", func() bool {
		closed += closeWindows(t, s, plan).Windows
		return closed == 5
	})
	require.EqualValues(t, 5, d.Int(t, `SELECT COUNT(*) FROM notice_window WHERE closed_at >= ?`, rules.NotBefore))
}

func TestNoticeLeavesOutWhatHasChanged(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 9, coupon.Expired, past, "NULL")
	collect(t, s, atOnce(), told(1, 12, 3)) // 10, 11, 12 do not exist
	// n0: 3 6 9 12, n1: 1 4 7 10, n2: 2 5 8 11
	d.Exec(t, `UPDATE coupon SET status = 1, version = 2 WHERE id IN (1, 4, 7, 2)`) // reinstated
	d.Exec(t, `UPDATE coupon SET version = 3 WHERE id = 5`)                         // … and expired again: another event tells of it
	c := closeWindows(t, s, closePlan(atOnce()))
	require.Equal(t, 3, c.Windows)
	require.Equal(t, map[string]int{"empty": 2}, c.Suppressed)
	got := map[string]int{}
	for _, n := range c.Pending {
		got[n.UserID] = n.Items
	}
	require.Equal(t, map[string]int{"n0": 3, "n2": 1}, got)
	_, err := deliver(t.Context(), s, c.Pending)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM inbox`), "an empty notice is not sent")
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM notice WHERE user_id = 'n1' AND state = 'suppressed' AND reason = 'empty' AND items = 0`))
	require.EqualValues(t, 5, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = 'changed'`))
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM notice_item WHERE dropped = 'absent'`))

	// The second expiry of coupon 5 is told, in a window of its own.
	item := told(5, 1, 3)
	item[0].EventID, item[0].Version = "5:3:expired", 3
	require.Equal(t, 1, collect(t, s, atOnce(), item))
	c = closeWindows(t, s, closePlan(atOnce()))
	require.Len(t, c.Pending, 2)
}

func TestNoticeOfADeadPodIsTakenOver(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	dead, live := d.Store(t), d.Store(t)
	plant(t, d, 1, 60, coupon.Expired, past, "NULL")
	collect(t, dead, atOnce(), told(1, 60, 6))
	c := closeWindows(t, dead, closePlan(atOnce()))
	require.Len(t, c.Pending, 12)

	claim := func(ch coupon.Channel) []coupon.Notice {
		ns, unknown, _, err := live.ClaimNotices(t.Context(), ch, time.Minute, 100)
		require.NoError(t, err)
		require.Empty(t, unknown)
		return ns
	}
	require.Empty(t, claim(coupon.ChannelInbox), "leased to the pod that closed the windows")
	d.Exec(t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3)`)
	taken := claim(coupon.ChannelInbox)
	require.Len(t, taken, 6)
	require.Equal(t, 2, taken[0].Attempt)
	require.Empty(t, claim(coupon.ChannelInbox), "leased again")
	taken = append(taken, claim(coupon.ChannelLog)...)

	// The pod was only slow: both deliver, at once.
	var wg sync.WaitGroup
	var counts [2]int
	var errs [2]error
	for i, work := range [][]coupon.Notice{c.Pending, taken} {
		wg.Go(func() { counts[i], errs[i] = deliver(t.Context(), []*store.Store{dead, live}[i], work) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	require.Equal(t, 6, counts[0]+counts[1])
	digestHolds(t, d, 60)
}

func TestNoticeRefusedItemStoresNothing(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	items := told(1, 5, 5)
	items[3].UserID = strings.Repeat("x", 129)
	_, err := s.CollectNotices(t.Context(), atOnce(), items)
	require.ErrorIs(t, err, coupon.ErrIntegrity)
	require.Zero(t, d.Int(t, `SELECT (SELECT COUNT(*) FROM notice_item) + (SELECT COUNT(*) FROM notice_window)`))
}

func TestNoticeReadsOneIndex(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const n = 3000
	plant(t, d, 1, n, coupon.Expired, past, "NULL")
	for first := 1; first <= n; first += 500 {
		collect(t, s, atOnce(), told(first, 500, n/2))
	}
	plan := closePlan(atOnce())
	plan.Limit = 500
	for closed := 0; closed < n/4; {
		c := closeWindows(t, s, plan)
		closed += c.Windows
		_, err := deliver(t.Context(), s, c.Pending)
		require.NoError(t, err)
	}
	for _, table := range []string{"notice_window", "notice_item", "notice", "inbox"} {
		d.Exec(t, "ANALYZE TABLE "+table)
	}
	conn, err := d.SQL.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	for name, args := range map[string][]any{
		"notice.window_next":  {"expired"},
		"notice.window_claim": {"expired", 500},
		"notice.claim":        {"inbox", 500},
		"read.inbox":          {[]byte("n3"), 1 << 40, 20},
	} {
		require.LessOrEqual(t, rowsRead(t, conn, statement(t, name), args...), 502, name)
	}
}

// BenchmarkCollectNotices: batches as the collector brings them, of 5 000 users who have windows already. "spread" ends at
// different instants and comes in no order, so that windows move all the time; "fresh" opens a window for each item.
func BenchmarkCollectNotices(b *testing.B) {
	const batch, users = 900, 5000
	ends := time.Now().Add(40 * time.Hour).Truncate(time.Second).UTC()
	of := func(first, users int, end func(i int) time.Time) []coupon.NoticeItem {
		items := make([]coupon.NoticeItem, batch)
		for i := range items {
			at := end(first + i)
			items[i] = reminder(fmt.Sprintf("n%d", (first+i)%users), first+i, at, at.Add(-30*time.Hour))
		}
		return items
	}
	for _, x := range []struct {
		name  string
		items func(first int) []coupon.NoticeItem
	}{
		{"expired", func(first int) []coupon.NoticeItem { return told(first, batch, users) }},
		{"reminders", func(first int) []coupon.NoticeItem {
			return of(first, users, func(int) time.Time { return ends })
		}},
		{"spread", func(first int) []coupon.NoticeItem {
			return of(first, users, func(i int) time.Time { return ends.Add(time.Duration(i*7919%80000) * time.Second) })
		}},
		{"fresh", func(first int) []coupon.NoticeItem {
			return of(first, 1<<40, func(int) time.Time { return ends })
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			d := testenv.NewDatabase(b)
			s := d.Store(b)
			rules := coupon.WindowRules{Quiet: time.Hour, MaxAge: time.Hour, MaxItems: 500}
			first := 1
			for range 6 {
				collect(b, s, rules, x.items(first))
				first += batch
			}
			began := first
			for b.Loop() {
				collect(b, s, rules, x.items(first))
				first += batch
			}
			b.ReportMetric(float64(first-began)/b.Elapsed().Seconds(), "items/s")
		})
	}
}
