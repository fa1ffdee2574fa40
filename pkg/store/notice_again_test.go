package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// A window may close hours before the reminder's instant, since quiet hours are between them. An order that held the coupon then
// and gives it back before the instant has the same event told again.
func TestReminderOfACouponThatWasHeldWhenItsWindowClosed(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	now := dbNow(t, d)
	ends := now.Add(27 * time.Hour)
	plant(t, d, 1, 2, coupon.Unused, sqlTime(ends), "NULL")
	held, other := reminder("u", 1, ends, now.Add(time.Hour)), reminder("v", 2, ends, now.Add(time.Hour))
	require.Equal(t, 2, collect(t, s, atOnce(), []coupon.NoticeItem{held, other}))
	lock := func(version int) {
		d.Exec(t, `UPDATE coupon SET status = 2, version = ?, lock_until = ? WHERE id = 1`, version, now.Add(10*time.Hour))
	}
	release := func(version int) {
		d.Exec(t, `UPDATE coupon SET status = 1, version = ?, lock_until = NULL WHERE id = 1`, version)
		held.Version = uint32(version)
	}
	lock(2)
	dueNow(t, d)
	require.Len(t, closeWindows(t, s, remindPlan()).Pending, 1)
	require.Equal(t, map[string]int{"changed": 1, "": 1}, dropped(t, d))

	require.Zero(t, collect(t, s, atOnce(), []coupon.NoticeItem{held, other}), "of the walk, once more")
	release(3)
	lock(4)
	require.Equal(t, 1, collect(t, s, atOnce(), []coupon.NoticeItem{held, other}))
	require.Zero(t, collect(t, s, atOnce(), []coupon.NoticeItem{held, other}), "each time once")
	dueNow(t, d)
	require.Empty(t, closeWindows(t, s, remindPlan()).Pending, "held again")
	release(5)
	require.Equal(t, 1, collect(t, s, atOnce(), []coupon.NoticeItem{held}))
	dueNow(t, d)
	c := closeWindows(t, s, remindPlan())
	require.Len(t, c.Pending, 1)
	require.Equal(t, "u", c.Pending[0].UserID)
	require.Equal(t, 1, c.Pending[0].Items)

	// Once it is told it is not told again, however often it is held and given back.
	release(7)
	require.Equal(t, 1, collect(t, s, atOnce(), []coupon.NoticeItem{held, other}))
	dueNow(t, d)
	require.Empty(t, closeWindows(t, s, remindPlan()).Pending)
	require.Equal(t, map[string]int{"changed": 2, "repeated": 1, "": 2}, dropped(t, d))
}
