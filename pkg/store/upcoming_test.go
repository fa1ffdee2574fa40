package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// Page by page, in the order of their instants: every row of the partitions that were asked for, within the window, and no other.
func TestUpcomingIsOfThePartitionsAskedFor(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 64, coupon.Unused, "'2035-10-31 16:00:00'", "NULL")
	d.Exec(t, `UPDATE coupon SET due_at = expires_at + INTERVAL (64 - id) SECOND`)
	plant(t, d, 65, 32, coupon.Locked, "'2035-12-31 16:00:00'", "'2035-10-31 16:00:05'")
	ends := time.Date(2035, 10, 31, 16, 0, 0, 0, time.UTC)
	parts := []int{0, 3, 15}
	read := func(kind coupon.Kind, end time.Time) (ts []coupon.Timed) {
		at := coupon.Cursor{At: ends.Add(-time.Hour)}
		for {
			page, next, err := s.Upcoming(t.Context(), kind, parts, end, at, 2)
			require.NoError(t, err)
			ts, at = append(ts, page...), next
			if len(page) < 2 {
				return ts
			}
		}
	}
	unused := read(coupon.KindExpire, ends.Add(32*time.Second))
	require.Len(t, unused, 6, "the later half of the ids, three partitions of sixteen")
	for i, one := range unused {
		require.Contains(t, parts, coupon.Partition(one.CouponID))
		require.Equal(t, ends.Add(time.Duration(64-one.CouponID)*time.Second), one.At)
		if i > 0 {
			require.True(t, one.At.After(unused[i-1].At))
		}
		trigger, err := event.DecodeTrigger(one.Body)
		require.NoError(t, err)
		require.Equal(t, ends, trigger.At, "of the end, though it rings when it is due")
		require.Equal(t, one.CouponID, trigger.CouponID)
	}
	locks := read(coupon.KindUnlock, ends.Add(time.Minute))
	require.Len(t, locks, 6)
	require.Equal(t, ends.Add(5*time.Second), locks[0].At)
	require.Equal(t, coupon.KindUnlock, locks[0].Kind)
	none, _, err := s.Upcoming(t.Context(), coupon.KindExpire, nil, ends.Add(time.Hour), coupon.Cursor{At: ends}, 2)
	require.NoError(t, err)
	require.Empty(t, none)
}
