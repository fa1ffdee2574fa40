package coupon_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func offset(t require.TestingT, text string) coupon.Offset {
	o, err := coupon.ParseOffset(text)
	require.NoError(t, err)
	return o
}

func TestOffsetsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	require.Equal(t, 72*time.Hour, offset(t, "-3d").Before)
	require.Equal(t, 30*time.Minute, offset(t, "-30m").Before)
	at := offset(t, "-1d@10:30")
	require.True(t, at.Local && at.Days == 1 && at.Clock == 10*time.Hour+30*time.Minute)
	for _, bad := range []string{"", "3d", "-0d", "-1w", "-1h@10:00", "-1d@24:00", "-91d", "-1d@1:00", "- 1d", "-1d@10:60"} {
		_, err := coupon.ParseOffset(bad)
		require.ErrorContains(t, err, `got "`+bad+`"`)
	}
	_, err := coupon.ParseOffsets([]string{"-1d", "-24h"})
	require.ErrorContains(t, err, "twice")
	_, err = coupon.ParseOffsets([]string{"-1d", "-2d", "-3d", "-4d", "-5d", "-6d", "-7d", "-8d", "-9d"})
	require.ErrorContains(t, err, "at most 8")
}

func TestAMidnightEndBelongsToTheDayBefore(t *testing.T) {
	t.Parallel()
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	require.NoError(t, err)
	midnight := time.Date(2026, 11, 1, 0, 0, 0, 0, shanghai)
	require.Equal(t, "-1d/2026-10-31", offset(t, "-1d").Slot(midnight, shanghai))
	require.Equal(t, "-1d/2026-11-01", offset(t, "-1d").Slot(midnight.Add(time.Second), shanghai))
	require.Equal(t, "2026-10-30T10:00:00+08:00", offset(t, "-1d@10:00").NotifyAt(midnight, shanghai).In(shanghai).Format(time.RFC3339))
}

func TestATimeOfDayThatTheClocksJumpOver(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	ends := time.Date(2026, 3, 30, 12, 0, 0, 0, berlin) // the clocks jump from 02:00 to 03:00 on the 29th
	require.Equal(t, "2026-03-29T03:00:00+02:00", offset(t, "-1d@02:30").NotifyAt(ends, berlin).In(berlin).Format(time.RFC3339))
	ends = time.Date(2026, 10, 26, 12, 0, 0, 0, berlin) // and back from 03:00 to 02:00 on the 25th
	require.Equal(t, "2026-10-25T02:30:00+02:00", offset(t, "-1d@02:30").NotifyAt(ends, berlin).In(berlin).Format(time.RFC3339))
}

// A time of day that is none on its day is the instant at which the clocks jump over it, on that day, and no other is off the wall.
func TestNotifyAtWhereClocksJump(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string]string{
		"America/New_York -1d@02:30":     "2026-03-08T03:00:00-04:00",
		"Europe/Berlin -1d@02:30":        "2026-03-29T03:00:00+02:00",
		"America/Havana -1d@00:00":       "2026-03-08T01:00:00-04:00", // not the evening before
		"America/Santiago -1d@00:30":     "2026-09-06T01:00:00-03:00",
		"Africa/Cairo -1d@00:00":         "2026-04-24T01:00:00+03:00",
		"Antarctica/Troll -1d@01:30":     "2026-03-29T03:00:00+02:00",
		"Australia/Lord_Howe -1d@02:15":  "2026-10-04T02:30:00+11:00",
		"America/New_York -1d@01:30":     "2026-03-08T01:30:00-05:00",
		"Australia/Lord_Howe  -1d@02:30": "2026-10-04T02:30:00+11:00",
	} {
		fields := strings.Fields(zone)
		l, err := time.LoadLocation(fields[0])
		require.NoError(t, err)
		o, err := coupon.ParseOffset(fields[1])
		require.NoError(t, err)
		jump, err := time.Parse(time.RFC3339, want)
		require.NoError(t, err)
		ends := jump.In(l).AddDate(0, 0, 1).Add(9 * time.Hour)
		require.Equal(t, want, o.NotifyAt(ends, l).In(l).Format(time.RFC3339), zone)
	}
}

// A reminder comes before the end, within its reach, and what ends on one local day shares a slot.
func TestRemindersComeBeforeTheEnd(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Asia/Shanghai", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Kiritimati", "Pacific/Apia", "Australia/Lord_Howe", "America/St_Johns", "Africa/Cairo"}
	offsets := []string{"-90d", "-3d", "-1d", "-1d@00:00", "-1d@10:00", "-2d@23:59", "-25h", "-30m", "-1s"}
	rapid.Check(t, func(r *rapid.T) {
		zone, err := time.LoadLocation(rapid.SampledFrom(zones).Draw(r, "zone"))
		require.NoError(r, err)
		o := offset(r, rapid.SampledFrom(offsets).Draw(r, "offset"))
		ends := time.Unix(rapid.Int64Range(1_500_000_000, 2_100_000_000).Draw(r, "ends"), 0)
		at := o.NotifyAt(ends, zone)
		require.True(r, at.Before(ends), "%s for %s", at, ends)
		require.LessOrEqual(r, ends.Sub(at), o.Reach())
		if o.Local {
			require.Less(r, at.In(zone).Format(time.DateOnly), coupon.LastDay(ends, zone).Format(time.DateOnly))
		}
		require.Contains(r, o.Slot(ends, zone), o.Name+"/")
		require.LessOrEqual(r, len(o.Slot(ends, zone)), 96)
	})
}

func TestPicks(t *testing.T) {
	t.Parallel()
	require.True(t, coupon.Picks("").Has("-1d"))
	require.False(t, coupon.PickNone.Has("-1d"))
	require.True(t, coupon.Picks("-3d,-30m").Has("-30m"))
	require.False(t, coupon.Picks("-3d,-30m").Has("-3"))
	require.Error(t, coupon.Picks("soon").Validate())
	require.NoError(t, coupon.PickNone.Validate())
}
