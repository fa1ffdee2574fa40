package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// dbNow is the database's clock, to the second.
func dbNow(t testing.TB, d testenv.Database) time.Time {
	t.Helper()
	var now time.Time
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT UTC_TIMESTAMP(0)`).Scan(&now))
	return now
}

func sqlTime(at time.Time) string { return at.UTC().Format("'2006-01-02 15:04:05.000'") }

// reminder is the item of a coupon's reminder a day before its end, to be told an hour from closeAt on.
func reminder(user string, id int, ends, closeAt time.Time) coupon.NoticeItem {
	return coupon.NoticeItem{
		EventID: coupon.ExpiringID(uint64(id), ends, "-1d"), Kind: coupon.NoticeExpiring, UserID: user, CouponID: uint64(id), TemplateID: 1, Version: 1,
		ExpiresAt: ends, Value: 500, Currency: "CNY", Offset: "-1d", Slot: "-1d/2026-11-01", NotifyAt: closeAt.Add(time.Hour), CloseAt: closeAt,
	}
}

// late makes of a reminder the one that comes of a release.
func late(it coupon.NoticeItem, version int) coupon.NoticeItem {
	it.EventID, it.Late, it.Version = fmt.Sprintf("%s:%d", it.EventID, version), true, uint32(version)
	return it
}

func remindPlan(channels ...coupon.Channel) coupon.ClosePlan {
	if len(channels) == 0 {
		channels = []coupon.Channel{coupon.ChannelInbox}
	}
	p := closePlan(atOnce())
	p.Kind, p.Decide = coupon.NoticeExpiring, toldBy(channels...)
	return p
}

// watch keeps what a plan was asked.
func watch(p *coupon.ClosePlan, asked *[]coupon.Closed) {
	decide := p.Decide
	p.Decide = func(now time.Time, c *coupon.Closed) coupon.Decided {
		*asked = append(*asked, *c)
		return decide(now, c)
	}
}

func dueNow(t testing.TB, d testenv.Database) {
	t.Helper()
	d.Exec(t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3) WHERE closed_at IS NULL`)
}

type windowState struct {
	items               int
	late                bool
	due, notify, ends   time.Time
	open                bool
	closedBy, remindsAt string
}

func windowsNow(t testing.TB, d testenv.Database) (out []windowState) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT items, late, due_at, COALESCE(notify_at, CAST('2000-01-01' AS DATETIME(3))), COALESCE(ends_at, CAST('2000-01-01' AS DATETIME(3))), open_mark IS NOT NULL,
		closed_by, remind_at FROM notice_window ORDER BY id`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var w windowState
		require.NoError(t, rows.Scan(&w.items, &w.late, &w.due, &w.notify, &w.ends, &w.open, &w.closedBy, &w.remindsAt))
		out = append(out, w)
	}
	require.NoError(t, rows.Err())
	return out
}

func dropped(t testing.TB, d testenv.Database) map[string]int {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT dropped, COUNT(*) FROM notice_item GROUP BY dropped`)
	require.NoError(t, err)
	defer rows.Close()
	out := map[string]int{}
	for rows.Next() {
		var why string
		var n int
		require.NoError(t, rows.Scan(&why, &n))
		out[why] = n
	}
	require.NoError(t, rows.Err())
	return out
}

func TestReminderWindowMovesToTheLeast(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	at := func(h int) time.Time { return now.Add(time.Duration(h) * time.Hour) }
	rules := coupon.WindowRules{Quiet: 30 * time.Second, MaxAge: time.Minute, MaxItems: 2}
	add := func(items ...coupon.NoticeItem) { require.Equal(t, len(items), collect(t, s, rules, items)) }

	add(reminder("u", 1, at(60), at(36)))
	add(reminder("u", 2, at(50), at(26)), reminder("u", 3, at(70), at(46)), reminder("u", 4, at(49), at(25)))
	add(reminder("u", 5, at(55), at(31)))
	skipped := reminder("u", 6, at(30), at(6))
	skipped.Dropped = coupon.ReasonSkipped
	add(skipped)
	other := reminder("u", 7, at(80), at(56))
	other.Slot = "-1d/2026-11-02"
	add(other, reminder("v", 8, at(60), at(36)), told(9, 1, 1)[0])

	got := windowsNow(t, d)
	require.Len(t, got, 4)
	require.Equal(t, windowState{items: 6, due: at(25), notify: at(26), ends: at(49), open: true, remindsAt: "-1d"}, got[0],
		"never full, due and ending with the first, whatever is not told")
	var kinds []int
	for _, w := range got {
		kinds = append(kinds, w.items)
	}
	require.ElementsMatch(t, []int{6, 1, 1, 1}, kinds)
	c := closeWindows(t, s, remindPlan())
	require.Zero(t, c.Windows)
	require.Equal(t, at(25), c.Next, "the expired one is another kind")

	// What is overdue gathers for a while; joining does not move it before that.
	over := reminder("w", 10, at(3), at(-2))
	add(over)
	add(reminder("w", 11, at(3), at(-3)))
	w := windowsNow(t, d)[4]
	require.WithinDuration(t, now.Add(30*time.Second), w.due, 10*time.Second)
	require.GreaterOrEqual(t, w.due.Sub(now), 30*time.Second)
}

// A reminder's window is one notice, of as many as one transaction can look at: the rest is kept and not told.
func TestReminderWindowTellsOfSoMany(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := now.Add(25 * time.Hour)
	plant(t, d, 1, 20, coupon.Unused, sqlTime(ends), "NULL")
	skipped := reminder("u", 1, ends, now)
	skipped.Dropped = coupon.ReasonSkipped
	collect(t, s, atOnce(), []coupon.NoticeItem{skipped})
	d.Exec(t, `UPDATE notice_window SET items = 20000`)
	collect(t, s, atOnce(), []coupon.NoticeItem{reminder("u", 2, ends, now), reminder("u", 3, ends.Add(-time.Hour), now)})
	collect(t, s, atOnce(), []coupon.NoticeItem{reminder("u", 4, ends, now), reminder("v", 5, ends, now)})
	require.Equal(t, map[string]int{"": 2, "skipped": 1, "full": 2}, dropped(t, d))
	got := windowsNow(t, d)
	require.Len(t, got, 2)
	require.Equal(t, 20_003, got[0].items)
	require.Equal(t, ends, got[0].ends, "of what is told")
	dueNow(t, d)
	c := closeWindows(t, s, remindPlan())
	require.True(t, c.More)
	require.Equal(t, 1, c.Pending[0].Items)
	require.Equal(t, 1, closeWindows(t, s, remindPlan()).Pending[0].Items)
	require.Equal(t, map[string]int{"": 2, "skipped": 1, "full": 2}, dropped(t, d))
}

// What is left out opens a window that closes soon; the first that is told moves it to its hour, and the rest of the day joins.
func TestReminderWindowOpenedByWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends, hour := now.Add(26*time.Hour), now.Add(2*time.Hour)
	plant(t, d, 1, 20, coupon.Unused, sqlTime(ends), "NULL")
	rules := coupon.WindowRules{Quiet: 200 * time.Millisecond, MaxAge: time.Minute, MaxItems: 2}
	add := func(items ...coupon.NoticeItem) { require.Equal(t, len(items), collect(t, s, rules, items)) }
	skipped := reminder("u", 1, ends, now.Add(-8*time.Hour))
	skipped.Dropped = coupon.ReasonSkipped

	add(skipped)
	require.WithinDuration(t, now, windowsNow(t, d)[0].due, 10*time.Second)
	late2 := late(reminder("u", 2, ends, hour), 2)
	late2.CloseAt, late2.NotifyAt, late2.Slot = time.Time{}, time.Time{}, "-1d/2026-11-02"
	skipped2 := skipped
	skipped2.EventID, skipped2.Slot = "other", late2.Slot
	add(skipped2)
	add(late2)
	add(reminder("u", 3, ends, hour))
	got := windowsNow(t, d)
	require.Equal(t, windowState{items: 2, due: hour, notify: hour.Add(time.Hour), ends: ends, open: true, remindsAt: "-1d"}, got[0])
	require.WithinDuration(t, now, got[1].due, 10*time.Second, "what has no hour waits for none")

	d.Exec(t, `UPDATE notice_window SET due_at = UTC_TIMESTAMP(3) WHERE id = 2`)
	require.Equal(t, 1, closeWindows(t, s, remindPlan()).Windows, "that of its own slot")
	add(reminder("u", 4, ends, hour.Add(time.Hour)))
	got = windowsNow(t, d)
	require.Len(t, got, 2)
	require.Equal(t, windowState{items: 3, due: hour, notify: hour.Add(time.Hour), ends: ends, open: true, remindsAt: "-1d"}, got[0])
	dueNow(t, d)
	plan := remindPlan()
	var asked []coupon.Closed
	watch(&plan, &asked)
	require.Equal(t, 1, closeWindows(t, s, plan).Windows)
	require.Equal(t, 2, asked[0].Items)
	require.False(t, asked[0].Late)
}

func TestReminderStandsOnlyIfTheCouponIsUnusedAndEndsThen(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := now.Add(20 * time.Hour)
	plant(t, d, 1, 20, coupon.Unused, sqlTime(ends), "NULL")
	d.Exec(t, `UPDATE coupon SET status = 2, order_id = 'o', locked_at = UTC_TIMESTAMP(3), lock_until = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR WHERE id = 1`)
	d.Exec(t, `UPDATE coupon SET status = 2, order_id = 'o', locked_at = UTC_TIMESTAMP(3), lock_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id = 2`)
	d.Exec(t, `UPDATE coupon SET status = 3, order_id = 'o', used_at = UTC_TIMESTAMP(3), version = 2 WHERE id = 3`)
	d.Exec(t, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 DAY, version = 2 WHERE id = 4`)
	d.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id = 5`)
	d.Exec(t, `UPDATE coupon SET status = 5 WHERE id = 6`)
	d.Exec(t, `UPDATE coupon SET version = 9 WHERE id = 8`) // locked and released since
	d.Exec(t, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 HOUR WHERE id = 9`)
	var items []coupon.NoticeItem
	for id := 1; id <= 9; id++ {
		it := reminder("u", id, ends, now.Add(-time.Hour))
		switch id {
		case 5:
			it.ExpiresAt = now.Add(-time.Second)
		case 7:
			it.Currency, it.Value, it.TemplateID = "AED", 70, 8
		case 9:
			it.ExpiresAt = ends.Add(time.Hour)
		}
		items = append(items, it)
	}
	items = append(items, reminder("u", 30, ends, now)) // there is no such coupon
	items = append(items, late(items[7], 9))            // the same coupon again
	collect(t, s, atOnce(), items)
	plan := remindPlan()
	var asked []coupon.Closed
	watch(&plan, &asked)
	require.Equal(t, 1, closeWindows(t, s, plan).Windows)
	require.Len(t, asked, 1)
	c := asked[0]
	require.Equal(t, 4, c.Items, "2 7 8 9")
	require.Equal(t, []coupon.Amount{{Minor: 70, Currency: "AED"}, {Minor: 1500, Currency: "CNY"}}, c.Totals)
	require.Equal(t, []uint64{1, 8}, c.Of)
	require.Equal(t, ends, c.EndsAt)
	require.Equal(t, ends.Add(time.Hour), c.LastEnd)
	require.Equal(t, ends.Add(-24*time.Hour), c.NotifyAt)
	require.Equal(t, "-1d", c.Offset)
	require.Equal(t, "-1d/2026-11-01", c.Slot)
	require.Equal(t, "u", c.Profile.UserID)
	require.False(t, c.Late)
	require.Equal(t, map[string]int{"": 4, "changed": 5, "absent": 1, "repeated": 1}, dropped(t, d))
	require.Equal(t, "time", windowsNow(t, d)[0].closedBy)
}

func TestReminderAfterItsDaysNotice(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := now.Add(20 * time.Hour)
	plant(t, d, 1, 20, coupon.Unused, sqlTime(ends), "NULL")
	soon := now.Add(-time.Minute)
	plan := remindPlan()
	var asked []coupon.Closed
	watch(&plan, &asked)
	closeAll := func() coupon.Closing {
		asked = nil
		dueNow(t, d)
		return closeWindows(t, s, plan)
	}
	// A window of which nothing stands does not use its slot up.
	skipped := reminder("u", 1, ends, soon)
	skipped.Dropped = coupon.ReasonSkipped
	collect(t, s, atOnce(), []coupon.NoticeItem{skipped})
	c := closeAll()
	require.Equal(t, map[string]int{coupon.ReasonSkipped: 1}, c.Suppressed)
	require.Empty(t, c.Pending)
	require.Equal(t, coupon.ReasonSkipped, asked[0].Reason)

	collect(t, s, atOnce(), []coupon.NoticeItem{reminder("u", 2, ends, soon)})
	closeAll()
	require.False(t, asked[0].Late)
	require.Equal(t, 1, asked[0].Items)

	rules := atOnce()
	rules.Quiet = time.Minute
	collect(t, s, rules, []coupon.NoticeItem{reminder("u", 3, ends, now.Add(time.Hour)), late(reminder("u", 2, ends, soon), 5)})
	collect(t, s, rules, []coupon.NoticeItem{reminder("u", 4, ends, now.Add(-time.Hour))})
	w := windowsNow(t, d)
	require.Len(t, w, 3)
	require.True(t, w[2].late)
	require.WithinDuration(t, now.Add(time.Minute), w[2].due, 20*time.Second, "a while after it was opened, whenever its items are due")
	closeAll()
	require.True(t, asked[0].Late)
	require.Equal(t, 2, asked[0].Items, "2 has been told")
	require.Equal(t, map[string]int{"": 3, "skipped": 1, "repeated": 1}, dropped(t, d))
	require.Equal(t, "quiet", windowsNow(t, d)[2].closedBy)

	collect(t, s, rules, []coupon.NoticeItem{reminder("u", 5, ends, soon)})
	closeAll()
	require.True(t, asked[0].Late, "a third one as well")
}

// None is repeated within a day; and what was not told is no reason not to tell.
func TestReminderIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name     string
		before   string // what became of the first notice
		extended bool   // the coupon ends later now: the second reminder is of another end
		items    int
	}{
		{"told just now", `state = 'sent', settled_at = UTC_TIMESTAMP(3)`, true, 0},
		{"arrived", `state = 'delivered', settled_at = UTC_TIMESTAMP(3) - INTERVAL 23 HOUR`, true, 0},
		{"may have arrived", `state = 'unknown', settled_at = UTC_TIMESTAMP(3) - INTERVAL 23 HOUR`, true, 0},
		{"being told", `state = 'sending'`, true, 0},
		{"told a day ago", `state = 'sent', settled_at = UTC_TIMESTAMP(3) - INTERVAL 25 HOUR`, true, 1},
		{"the one that waits will drop out", `state = 'pending', try_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR`, true, 1},
		{"the same end, long ago", `state = 'sent', settled_at = UTC_TIMESTAMP(3) - INTERVAL 25 HOUR`, false, 0},
		{"the same end, to be told", `state = 'pending', try_at = UTC_TIMESTAMP(3) + INTERVAL 1 HOUR`, false, 0},
		{"the same end, never told", `state = 'suppressed', reason = 'empty', settled_at = UTC_TIMESTAMP(3)`, false, 1},
		{"the same end, failed", `state = 'failed', settled_at = UTC_TIMESTAMP(3)`, false, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			s := d.Store(t)
			now := dbNow(t, d)
			ends := now.Add(20 * time.Hour)
			plant(t, d, 1, 2, coupon.Unused, sqlTime(ends), "NULL")
			collect(t, s, atOnce(), []coupon.NoticeItem{reminder("u", 1, ends, now)})
			dueNow(t, d)
			require.Len(t, closeWindows(t, s, remindPlan()).Pending, 1)
			d.Exec(t, `UPDATE notice SET `+x.before)
			second := late(reminder("u", 1, ends, now), 5)
			if x.extended {
				ends = ends.Add(10 * time.Hour)
				d.Exec(t, `UPDATE coupon SET expires_at = ? WHERE id = 1`, ends)
				second = reminder("u", 1, ends, now)
				second.Slot = "-1d/2026-11-02"
			}
			other := second // at another offset it is another reminder
			other.EventID, other.Offset, other.Slot = "1:other", "-30m", "-30m/x"
			collect(t, s, atOnce(), []coupon.NoticeItem{second, other})
			plan := remindPlan()
			var asked []coupon.Closed
			watch(&plan, &asked)
			dueNow(t, d)
			require.Equal(t, 2, closeWindows(t, s, plan).Windows)
			for _, c := range asked {
				if c.Offset == "-30m" {
					require.Equal(t, 1, c.Items)
					continue
				}
				require.Equal(t, x.items, c.Items)
				if x.items == 0 {
					require.Equal(t, coupon.ReasonRepeated, c.Reason)
				}
			}
		})
	}
}

// A thousand coupons of one user in one day are one notice: the count, and the first few.
func TestReminderOfAThousand(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	const n = 1000
	plant(t, d, 1, n, coupon.Unused, "UTC_TIMESTAMP(0) + INTERVAL 20 HOUR", "NULL")
	d.Exec(t, `UPDATE coupon SET expires_at = ? + INTERVAL (1000 - id) SECOND`, now.Add(20*time.Hour))
	var items []coupon.NoticeItem
	for id := 1; id <= n; id++ {
		items = append(items, reminder("u", id, now.Add(20*time.Hour+time.Duration(1000-id)*time.Second), now))
	}
	for part := 0; part < n; part += 250 {
		collect(t, s, atOnce(), items[part:part+250])
	}
	dueNow(t, d)
	c := closeWindows(t, s, remindPlan())
	require.Len(t, c.Pending, 1)
	require.Equal(t, n, c.Pending[0].Items)
	p := prepare(t, s, coupon.ChannelInbox, c.Pending, coupon.Cap{}, false)
	require.Len(t, p, 1)
	require.Equal(t, n, p[0].Items)
	require.Len(t, p[0].Members, coupon.MembersShown)
	for i, m := range p[0].Members {
		require.EqualValues(t, n-i, m.CouponID)
	}
	require.Equal(t, []coupon.Amount{{Minor: 500 * n, Currency: "CNY"}}, p[0].Totals)
	require.Equal(t, now.Add(20*time.Hour), p[0].EndsAt)
	require.Equal(t, now.Add(20*time.Hour+999*time.Second), p[0].LastEnd)
}

func prepare(t testing.TB, s *store.Store, ch coupon.Channel, ns []coupon.Notice, caps coupon.Cap, once bool) []coupon.Prepared {
	t.Helper()
	out, err := s.PrepareNotices(t.Context(), ch, ns, caps, once, today)
	require.NoError(t, err)
	return out
}

func today(time.Time, *coupon.Profile) time.Time {
	return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
}
