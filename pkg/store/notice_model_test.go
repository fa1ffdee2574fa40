package store_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// noticeWorld is a few users' coupons and what the far side of the channels has seen.
type noticeWorld struct {
	t      testing.TB
	d      testenv.Database
	pods   []*store.Store
	prefix string
	now    time.Time
	ends   map[int]time.Time
	unused map[int]bool
	ver    map[int]int
	events map[string]bool
	held   map[coupon.Channel][]coupon.Notice
	sent   map[string]int              // notice id → times that it went out
	by     map[int]map[string][]uint64 // coupon → offset → windows that told of it
}

func (w *noticeWorld) user(id int) string { return fmt.Sprintf("%s%d", w.prefix, id%2) }

func (w *noticeWorld) collect(pod *store.Store, it coupon.NoticeItem) {
	rules := atOnce()
	rules.Quiet = time.Hour
	rules.MaxItems = 3
	it.UserID = w.user(int(it.CouponID))
	added, err := pod.CollectNotices(w.t.Context(), rules, []coupon.NoticeItem{it})
	require.NoError(w.t, err)
	require.Equal(w.t, !w.events[it.EventID], added == 1, "an event is taken once")
	w.events[it.EventID] = true
}

// change lets something happen to a coupon.
func (w *noticeWorld) change(what string, id int) {
	w.ver[id]++
	switch what {
	case "use":
		w.unused[id] = false
		w.d.Exec(w.t, `UPDATE coupon SET status = 3, version = ? WHERE id = ?`, w.ver[id], id)
	case "refund":
		w.unused[id] = true
		w.d.Exec(w.t, `UPDATE coupon SET status = 1, version = ? WHERE id = ?`, w.ver[id], id)
	case "extend":
		w.ends[id] = w.ends[id].Add(time.Hour)
		w.d.Exec(w.t, `UPDATE coupon SET expires_at = ?, version = ? WHERE id = ?`, w.ends[id], w.ver[id], id)
	}
}

// send lets a pod prepare what it holds of a channel, and sees what goes out.
func (w *noticeWorld) send(pod *store.Store, ch coupon.Channel, end coupon.NoticeState) {
	once := ch == coupon.ChannelSMS
	ps, err := pod.PrepareNotices(w.t.Context(), ch, w.held[ch], coupon.Cap{Week: 1000}, once, today)
	require.NoError(w.t, err)
	w.held[ch] = nil
	var rs []coupon.NoticeResult
	for _, p := range ps {
		sum := int64(0)
		for _, a := range p.Totals {
			sum += a.Minor
		}
		require.EqualValues(w.t, 500*p.Items, sum)
		require.Equal(w.t, p.Items == 0, p.Suppressed != "")
		require.Len(w.t, p.Members, min(p.Items, coupon.MembersShown))
		for _, m := range p.Members {
			require.True(w.t, w.unused[int(m.CouponID)] && m.ExpiresAt.Equal(w.ends[int(m.CouponID)]), "%d is not what it was", m.CouponID)
			require.Equal(w.t, w.user(int(m.CouponID)), p.UserID)
		}
		if p.Suppressed != "" {
			continue
		}
		if end == coupon.NoticePending || end == coupon.NoticeFailed || end == coupon.NoticeSuppressed { // nothing went out
			r := coupon.NoticeResult{WindowID: p.WindowID, Attempt: p.Attempt, State: end, TryAt: w.now}
			if end == coupon.NoticeSuppressed {
				r.Reason = coupon.ReasonInactive
			}
			rs = append(rs, r)
			continue
		}
		w.sent[p.ID()]++
		for _, m := range p.Members {
			by := w.by[int(m.CouponID)]
			if !slices.Contains(by[p.Slot[:3]], p.WindowID) {
				by[p.Slot[:3]] = append(by[p.Slot[:3]], p.WindowID)
			}
		}
		if end == coupon.NoticeSent {
			rs = append(rs, coupon.NoticeResult{WindowID: p.WindowID, Attempt: p.Attempt, State: end})
		}
	}
	settled, _, err := pod.SettleNotices(w.t.Context(), ch, rs)
	require.NoError(w.t, err)
	require.Equal(w.t, len(rs), settled)
}

func (w *noticeWorld) leasesEnd() {
	w.d.Exec(w.t, `UPDATE notice SET try_at = UTC_TIMESTAMP(3) WHERE state IN ('pending','sending') AND user_id LIKE ?`, w.prefix+"%")
}

func (w *noticeWorld) claim(pod *store.Store, ch coupon.Channel) {
	ns, _, _, err := pod.ClaimNotices(w.t.Context(), ch, time.Hour, 1000)
	require.NoError(w.t, err)
	w.held[ch] = append(w.held[ch], ns...)
}

func (w *noticeWorld) close(pod *store.Store) {
	w.d.Exec(w.t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3) WHERE closed_at IS NULL AND user_id LIKE ?`, w.prefix+"%")
	plan := remindPlan()
	plan.Lease, plan.Limit = time.Hour, 1000
	plan.Decide = func(now time.Time, c *coupon.Closed) coupon.Decided {
		d := toldBy(coupon.ChannelEmail, coupon.ChannelSMS)(now, c)
		d.Notices[1].Next = []coupon.Channel{coupon.ChannelPush, coupon.ChannelEmail}
		return d
	}
	c, err := pod.CloseNotices(w.t.Context(), plan)
	require.NoError(w.t, err)
	for _, n := range c.Pending {
		w.held[n.Channel] = append(w.held[n.Channel], n)
	}
}

// holds audits by plain SQL.
func (w *noticeWorld) holds() {
	t, like := w.t, w.prefix+"%"
	require.EqualValues(t, len(w.events), w.d.Int(t, `SELECT COUNT(*) FROM notice_item i JOIN notice_window w ON w.id = i.window_id WHERE w.user_id LIKE ?`, like))
	require.Zero(t, w.d.Int(t, `SELECT COUNT(*) FROM notice_window w WHERE user_id LIKE ? AND (items = 0 OR items <> (SELECT COUNT(*) FROM notice_item i WHERE i.window_id = w.id))`, like))
	require.Zero(t, w.d.Int(t, `SELECT COUNT(*) FROM notice n JOIN notice_window w ON w.id = n.window_id WHERE n.user_id LIKE ? AND w.closed_at IS NULL`, like))
	require.Zero(t, w.d.Int(t, `SELECT COUNT(*) FROM (SELECT user_id FROM notice_window WHERE user_id LIKE ? AND late = 0 AND ends_at IS NOT NULL
		GROUP BY user_id, kind, slot HAVING COUNT(*) > 1) x`, like), "a slot that has been told of has late windows only")
	require.Zero(t, w.d.Int(t, `SELECT COUNT(*) FROM notice n WHERE user_id LIKE ? AND state IN ('sent','sending','unknown','delivered') AND items = 0`, like))
	// What counts against the cap is what went out, or may have.
	require.Equal(t, w.d.Int(t, `SELECT COALESCE(SUM(sent), 0) FROM notice_count WHERE user_id LIKE ?`, like),
		w.d.Int(t, `SELECT COUNT(*) FROM notice WHERE user_id LIKE ? AND counted_on IS NOT NULL`, like))
	for id, times := range w.sent {
		_, ch, err := coupon.ParseNoticeID(id)
		require.NoError(t, err)
		if ch == coupon.ChannelSMS {
			require.Equal(t, 1, times, "%s is sent at most once", id)
		}
		require.EqualValues(t, 1, w.d.Int(t, `SELECT COUNT(*) FROM notice WHERE CONCAT(window_id, '-', channel) = ?
			AND state IN ('sent','sending','unknown','delivered','pending','failed')`, id), id)
	}
	for id, by := range w.by {
		for offset, windows := range by {
			require.Len(t, windows, 1, "coupon %d at %s", id, offset)
		}
	}
}

// TestNoticeModel: whatever happens in whatever order, an event is in one window, no reminder is repeated, an SMS goes out once
// at most, what goes out tells of coupons that stand, and the sums agree.
func TestNoticeModel(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	now := dbNow(t, d)
	run, next := 0, 1
	channels := []coupon.Channel{coupon.ChannelSMS, coupon.ChannelEmail, coupon.ChannelPush}
	rapid.Check(t, func(r *rapid.T) {
		const coupons = 4
		first := next
		next += coupons
		run++
		w := &noticeWorld{
			t: t, d: d, pods: pods, prefix: fmt.Sprintf("m%d.", run), now: now, ends: map[int]time.Time{}, unused: map[int]bool{}, ver: map[int]int{},
			events: map[string]bool{}, held: map[coupon.Channel][]coupon.Notice{}, sent: map[string]int{}, by: map[int]map[string][]uint64{},
		}
		plant(t, d, first, coupons, coupon.Unused, sqlTime(now.Add(20*time.Hour)), "NULL")
		for id := first; id < next; id++ {
			w.ends[id], w.unused[id], w.ver[id], w.by[id] = now.Add(20*time.Hour), true, 1, map[string][]uint64{}
		}
		for range rapid.IntRange(1, 14).Draw(r, "steps") {
			pod := pods[rapid.IntRange(0, 1).Draw(r, "pod")]
			id := rapid.IntRange(first, next-1).Draw(r, "coupon")
			ch := rapid.SampledFrom(channels).Draw(r, "channel")
			switch what := rapid.SampledFrom([]string{
				"remind", "remind", "remind", "late", "use", "refund", "extend", "close", "close", "send", "send", "fails", "refused", "again", "dies", "leases end", "claim",
			}).Draw(r, "what"); what {
			case "remind":
				it := reminder("", id, w.ends[id], now)
				it.Offset = rapid.SampledFrom([]string{"-1d", "-3d"}).Draw(r, "offset")
				it.EventID = coupon.ExpiringID(uint64(id), w.ends[id], it.Offset)
				it.Slot = it.Offset + "/x"
				w.collect(pod, it)
			case "late":
				it := late(reminder("", id, w.ends[id], now), w.ver[id])
				it.Slot = "-1d/x"
				w.collect(pod, it)
			case "use", "refund", "extend":
				w.change(what, id)
			case "close":
				w.close(pod)
			case "send":
				w.send(pod, ch, coupon.NoticeSent)
			case "fails":
				w.send(pod, ch, coupon.NoticeFailed)
			case "refused":
				w.send(pod, ch, coupon.NoticeSuppressed)
			case "again":
				w.send(pod, ch, coupon.NoticePending)
			case "dies":
				if ch == coupon.ChannelSMS { // after it went out; of the others that would be a repeat with the same id
					w.send(pod, ch, coupon.NoticeUnknown)
				}
				w.held[ch] = nil
			case "leases end":
				w.leasesEnd()
			case "claim":
				w.claim(pod, ch)
			}
		}
		w.holds()
		w.leasesEnd()
		w.close(pods[0])
		for range 3 { // chains end
			for _, ch := range channels {
				w.claim(pods[1], ch)
				w.send(pods[1], ch, coupon.NoticeSent)
			}
		}
		w.holds()
		require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM notice WHERE user_id LIKE ? AND state IN ('sending')`, w.prefix+"%"))
		d.Exec(t, `UPDATE notice SET try_at = '9999-12-31' WHERE user_id LIKE ?`, w.prefix+"%")
	})
}
