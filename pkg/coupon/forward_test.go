package coupon_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// waiting is an unused coupon that ends in so long, with the installation's usual reminders.
func waiting(now time.Time, life time.Duration) (coupon.Coupon, coupon.Reminders) {
	offsets, _ := coupon.ParseOffsets([]string{"-3d", "-1d", "-30m", "-1d@10:00"}) // they can be read
	end := coupon.CeilSecond(now.Add(life))
	return coupon.Coupon{
		Row: coupon.Row{
			ID: 7, Status: coupon.Unused, Version: 1, ValidFrom: now.Add(-time.Hour), ExpiresAt: end, DueAt: end,
			LatePay: coupon.HonourLock, LateWindow: 30 * time.Minute,
		},
		Terms:  coupon.Terms{TemplateID: 1, Revision: 1, Precision: coupon.Exact, LatePay: coupon.HonourLock, LateWindow: 30 * time.Minute},
		UserID: "u", GrantedAt: now.Add(-time.Hour),
	}, coupon.Reminders{Offsets: offsets, Zone: time.UTC}
}

func TestForwardChoosesTheReminder(t *testing.T) {
	now := someInstant
	for _, c := range []struct {
		name   string
		life   time.Duration
		picks  coupon.Picks
		offset string
		ends   time.Duration // after the reminder's instant; 0: refused
	}{
		{"the next one", 10 * 24 * time.Hour, "", "", 3 * 24 * time.Hour},
		{"the next of what is left", 2 * 24 * time.Hour, "", "", 24 * time.Hour},
		{"none is left: the one nearest to the end", 10 * time.Minute, "", "", 30 * time.Minute},
		{"the one that is named", 10 * 24 * time.Hour, "", "-30m", 30 * time.Minute},
		{"the only one that the template picks", 10 * 24 * time.Hour, "-1d,-1d@10:00", "", 24 * time.Hour},
		{"none that the template picks", 10 * 24 * time.Hour, coupon.PickNone, "", 0},
		{"one that the template does not pick", 10 * 24 * time.Hour, "-1d", "-30m", 0},
		{"a time of day cannot be had at another", 10 * 24 * time.Hour, "-1d@10:00", "", 0},
		{"not by name either", 10 * 24 * time.Hour, "", "-1d@10:00", 0},
	} {
		k, r := waiting(now, c.life)
		k.Terms.Reminders = c.picks
		f := coupon.Forward{CouponID: 7, What: coupon.AheadReminder, In: 5 * time.Second, Offset: c.offset}
		require.NoError(t, f.Validate(), c.name)
		v, at, detail := f.Apply(&k, r, now)
		if c.ends == 0 {
			require.Equal(t, coupon.CodeInvalid, v.Refused, c.name)
			require.NotEmpty(t, detail, c.name)
			require.Zero(t, at, c.name)
			continue
		}
		require.Empty(t, v.Refused, "%s: %s", c.name, detail)
		require.Equal(t, coupon.CeilSecond(now.Add(5*time.Second)), at, c.name)
		require.Equal(t, at.Add(c.ends), v.Steps[0].ExpiresAt, c.name)
	}
}

// Whatever the coupon is like: what is brought forward comes when it says, and a step is one that the row may take.
func TestForwardKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := someInstant.Add(time.Duration(rapid.IntRange(0, 999).Draw(t, "ms")) * time.Millisecond)
		k, r := waiting(now, time.Duration(rapid.IntRange(-7200, 7*86_400).Draw(t, "life"))*time.Second)
		k.Status = rapid.SampledFrom([]coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}).Draw(t, "status")
		if k.Status == coupon.Locked {
			k.OrderID, k.LockedAt = "o", now.Add(-time.Minute)
			k.LockUntil = coupon.CeilSecond(now.Add(time.Duration(rapid.IntRange(-600, 600).Draw(t, "lock")) * time.Second))
		}
		f := coupon.Forward{
			CouponID: 7, What: rapid.SampledFrom(coupon.Aheads()).Draw(t, "what"), In: time.Duration(rapid.IntRange(1, 86_400).Draw(t, "in")) * time.Second,
		}
		before := k
		v, at, detail := f.Apply(&k, r, now)
		require.Equal(t, before, k, "a decision changes nothing")
		if v.Refused != "" {
			require.Empty(t, v.Steps)
			require.NotEmpty(t, detail)
			return
		}
		require.NotContains(t, []coupon.Status{coupon.Used, coupon.Expired, coupon.Voided}, before.Seen(now))
		require.True(t, at.After(now))
		o := f.Order()
		require.Equal(t, coupon.Sandbox, o.Actor)
		for _, tr := range k.Take(v.Steps, &o, now) {
			require.NotEqual(t, coupon.Expired, tr.To)
		}
		switch f.What {
		case coupon.AheadEnd:
			require.Equal(t, at, k.ExpiresAt)
		case coupon.AheadLock:
			require.Equal(t, at, k.LockUntil)
			require.Equal(t, before.OrderID, k.OrderID)
			require.False(t, k.LockUntil.After(k.ExpiresAt.Add(k.LateWindow)))
		case coupon.AheadReminder:
			rings := false
			for _, o := range r.Offsets {
				rings = rings || o.NotifyAt(k.ExpiresAt, r.Zone).Equal(at)
			}
			require.True(t, rings)
		}
	})
}

func TestForwardValidates(t *testing.T) {
	good := coupon.Forward{CouponID: 1, What: coupon.AheadEnd, In: time.Second}
	require.NoError(t, good.Validate())
	for field, change := range map[string]func(*coupon.Forward){
		"coupon_id:":  func(f *coupon.Forward) { f.CouponID = 0 },
		"what:":       func(f *coupon.Forward) { f.What = "time" },
		"in_seconds:": func(f *coupon.Forward) { f.In = 1500 * time.Millisecond },
		"offset:":     func(f *coupon.Forward) { f.Offset = "-1d" },
		"actor:":      func(f *coupon.Forward) { f.Actor = string(make([]byte, 129)) },
	} {
		f := good
		change(&f)
		require.ErrorContains(t, f.Validate(), field)
	}
}
