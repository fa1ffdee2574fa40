package store_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func entries(ns []coupon.Notice, until time.Time) []coupon.InboxEntry {
	es := make([]coupon.InboxEntry, len(ns))
	for i, n := range ns {
		es[i] = coupon.InboxEntry{Notice: n, Texts: map[string]coupon.NoticeText{"en": {Title: "t", Text: "x"}}, ValidUntil: until}
	}
	return es
}

func TestInboxIsReadOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := many(t, d, s, 5, coupon.ChannelInbox)
	written, err := s.DeliverInbox(t.Context(), entries(ns, time.Time{}))
	require.NoError(t, err)
	require.Equal(t, 5, written)
	unread := func() int {
		n, err := s.InboxUnread(t.Context(), "n0")
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 5, unread())
	box, _, err := s.Inbox(t.Context(), "n0", 0, 10)
	require.NoError(t, err)
	require.Len(t, box, 5)
	require.Equal(t, ns[4].ID(), box[0].NoticeID)
	require.True(t, coupon.IsNever(box[0].ValidUntil))
	read := func(ids []uint64, upTo uint64) int {
		n, err := s.InboxRead(t.Context(), "n0", ids, upTo)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, read([]uint64{box[1].ID}, 0))
	require.Zero(t, read([]uint64{box[1].ID, 1 << 50}, 0))
	require.Zero(t, read([]uint64{}, box[0].ID), "none of them")
	require.Zero(t, read(nil, 0))
	require.Equal(t, 3, read(nil, box[1].ID))
	require.Equal(t, 1, unread())
	n, err := s.InboxRead(t.Context(), "other", []uint64{box[0].ID}, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 1, read(nil, 1<<64-1))
	require.Zero(t, unread())
}

func TestPopupsAreHandedOutOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	s := stores[0]
	const n = 40
	ns := many(t, d, s, n, coupon.ChannelPopup)
	es := entries(ns, dbNow(t, d).Add(time.Hour))
	es[0].ValidUntil = dbNow(t, d)
	written, err := s.DeliverInbox(t.Context(), es)
	require.NoError(t, err)
	require.Equal(t, n, written)
	written, err = s.DeliverInbox(t.Context(), es)
	require.NoError(t, err)
	require.Zero(t, written)
	box, _, err := s.Inbox(t.Context(), "n0", 0, 10)
	require.NoError(t, err)
	require.Empty(t, box, "popups are not in the list")
	unread, err := s.InboxUnread(t.Context(), "n0")
	require.NoError(t, err)
	require.Zero(t, unread)

	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			for range 4 {
				items, err := stores[i%2].TakePopups(t.Context(), "n0", 3)
				if errs[i] = err; err != nil {
					return
				}
				mu.Lock()
				for _, it := range items {
					got[it.NoticeID]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	for {
		items, err := s.TakePopups(t.Context(), "n0", 100)
		require.NoError(t, err)
		if len(items) == 0 {
			break
		}
		for _, it := range items {
			require.True(t, it.Popup)
			got[it.NoticeID]++
		}
	}
	require.Len(t, got, n-1, "the one whose coupons have ended is not handed out")
	for id, times := range got {
		require.Equal(t, 1, times, id)
	}
}

// One window may be told by the inbox and by a popup.
func TestInboxAndPopupOfOneWindow(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	ns := sending(t, d, s, 2, toldBy(coupon.ChannelInbox, coupon.ChannelPopup))
	require.Len(t, ns, 4)
	written, err := s.DeliverInbox(t.Context(), entries(ns, dbNow(t, d).Add(time.Hour)))
	require.NoError(t, err)
	require.Equal(t, 4, written)
	popups, err := s.TakePopups(t.Context(), "n1", 5)
	require.NoError(t, err)
	require.Len(t, popups, 1)
	require.Equal(t, map[string]int{"inbox sent": 2, "popup sent": 2}, states(t, d))
}

// A pop-up says that coupons are about to end: one whose coupons were used meanwhile says nothing true, and one whose coupon an
// order has locked may yet.
func TestPopupsOfWhatWillNotEnd(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := now.Add(25 * time.Hour)
	plant(t, d, 1, 5, coupon.Unused, sqlTime(ends), "NULL")
	collect(t, s, atOnce(), []coupon.NoticeItem{
		reminder("stands", 1, ends, now), reminder("stands", 2, ends, now), reminder("used", 3, ends, now), reminder("locked", 4, ends, now),
		reminder("moved", 5, ends, now),
	})
	dueNow(t, d)
	var ns []coupon.Notice
	for range 4 {
		ns = append(ns, closeWindows(t, s, remindPlan(coupon.ChannelPopup)).Pending...)
	}
	require.Len(t, ns, 4)
	_, err := s.DeliverInbox(t.Context(), entries(ns, ends))
	require.NoError(t, err)
	d.Exec(t, `UPDATE coupon SET status = 3 WHERE id IN (1, 3)`)
	d.Exec(t, `UPDATE coupon SET status = 2, lock_until = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE id = 4`)
	d.Exec(t, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 DAY WHERE id = 5`)
	take := func(user string) int {
		items, err := s.TakePopups(t.Context(), user, 5)
		require.NoError(t, err)
		return len(items)
	}
	for user, want := range map[string]int{"stands": 1, "used": 0, "locked": 0, "moved": 0} {
		require.Equal(t, want, take(user), user)
		require.Zero(t, take(user), user)
	}
	d.Exec(t, `UPDATE coupon SET lock_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id = 4`)
	require.Equal(t, 1, take("locked"), "its lock has run out")
	require.Zero(t, take("locked"))
}

// However many a user has, one statement marks so many.
func TestInboxIsReadInSteps(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const rows = 2500
	d.Exec(t, `INSERT INTO inbox (user_id, window_id, kind, display, items, texts, created_at, valid_until)
		SELECT IF(n.n = 1, 'v', 'u'), n.n, 'expired', IF(n.n = 2, 'popup', ''), 1, '{}', UTC_TIMESTAMP(3), '9999-12-31' FROM (
			SELECT a.i + 10 * b.i + 100 * c.i + 1000 * d.i + 1 n FROM `+digits("a")+`, `+digits("b")+`, `+digits("c")+`, `+digits("d")+`) n
		WHERE n.n <= ? ORDER BY n.n`, rows)
	last := uint64(d.Int(t, `SELECT MAX(id) FROM inbox`))
	read := func(upTo uint64, want int) {
		t.Helper()
		n, err := s.InboxRead(t.Context(), "u", nil, upTo)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	read(last-100, rows-102)
	read(math.MaxUint64, 100)
	read(last, 0)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM inbox WHERE read_at IS NULL`), "another's, and the popup")
}

func digits(name string) string {
	return `(SELECT 0 i UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) ` + name
}

// One that waits for an order, or is of no use, does not stand before those behind it.
func TestPopupsBehindOthers(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := func(i int) time.Time { return now.Add(time.Duration(i) * 10 * time.Minute) }
	const popups = 4
	for i := 1; i <= popups; i++ {
		plant(t, d, i, 1, coupon.Unused, sqlTime(ends(i)), "NULL")
		it := reminder("u", i, ends(i), now)
		it.Offset, it.Slot = "-30m", fmt.Sprint("-30m/", i)
		require.Equal(t, 1, collect(t, s, atOnce(), []coupon.NoticeItem{it}))
	}
	dueNow(t, d)
	c := closeWindows(t, s, remindPlan(coupon.ChannelPopup))
	require.Len(t, c.Pending, popups)
	for _, n := range c.Pending {
		until := ends(int(d.Int(t, `SELECT coupon_id FROM notice_item WHERE window_id = ?`, n.WindowID)))
		written, err := s.DeliverInbox(t.Context(), []coupon.InboxEntry{{Notice: n, ValidUntil: until}})
		require.NoError(t, err)
		require.Equal(t, 1, written)
	}
	d.Exec(t, `UPDATE coupon SET status = 2, version = 2, lock_until = ? WHERE id = 1`, now.Add(time.Hour))
	d.Exec(t, `UPDATE coupon SET status = 3, version = 2 WHERE id = 2`)
	take := func(want ...int) {
		t.Helper()
		items, err := s.TakePopups(t.Context(), "u", 1)
		require.NoError(t, err)
		require.Len(t, items, len(want))
		for i := range want {
			require.WithinDuration(t, ends(want[i]), items[i].ValidUntil, 0)
		}
	}
	take(3)
	take(4)
	take()
	d.Exec(t, `UPDATE coupon SET status = 1, version = 3, lock_until = NULL WHERE id = 1`)
	take(1)
	take()
}
