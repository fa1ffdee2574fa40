package coupon_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

var now = time.Date(2031, 3, 4, 5, 6, 7, 890_000_000, time.UTC)

// The circumstances of a decision: where the coupon's end and its lock's lie, and what the trigger carries.
var (
	ends  = map[string]time.Time{"ended": now.Add(-time.Second), "ends now": now, "not ended": now.Add(time.Hour), "never": coupon.Never}
	locks = map[string]time.Time{"run out": now.Add(-time.Minute), "runs out now": now, "live": now.Add(time.Minute)}
)

const spread = 49 * time.Second

func row(status coupon.Status, end, lock string) *coupon.Row {
	r := &coupon.Row{ID: 7, Status: status, Version: 3, ExpiresAt: ends[end], DueAt: ends[end].Add(spread)}
	if status == coupon.Locked {
		r.LockUntil = locks[lock]
	}
	return r
}

func TestDecideIsTheTable(t *testing.T) {
	t.Parallel()
	const (
		own   = "own"   // carries the row's own instant
		other = "other" // carries another
	)
	type key struct {
		status    coupon.Status
		end, lock string
		kind      coupon.Kind
		carries   string
	}
	expire := func(c coupon.Cause) coupon.Decision { return coupon.Decision{Action: coupon.Expire, Cause: c} }
	drop := func(reason string) coupon.Decision { return coupon.Decision{Action: coupon.Drop, Reason: reason} }
	again := func(until time.Time) coupon.Decision {
		return coupon.Decision{Action: coupon.Reschedule, Until: until}
	}
	unlock := coupon.Decision{Action: coupon.Unlock, Cause: coupon.CauseLock}
	// The expectation is written from the table of the design, not from the code.
	want := func(k key) coupon.Decision {
		ended := k.end == "ended" || k.end == "ends now"
		switch k.status {
		case coupon.Used, coupon.Expired, coupon.Voided:
			return drop(coupon.DropSettled)
		case coupon.Unused:
			switch {
			case ended:
				return expire(coupon.CauseLadder)
			case k.kind == coupon.KindExpire && k.carries == own:
				return again(ends[k.end].Add(spread))
			}
			return drop(coupon.DropStale)
		case coupon.Locked:
			switch {
			case k.lock != "live" && ended:
				return expire(coupon.CauseLock)
			case k.lock != "live":
				return unlock
			case k.kind == coupon.KindExpire:
				return drop(coupon.DropLocked)
			case k.carries == own:
				return again(locks[k.lock])
			}
			return drop(coupon.DropStale)
		}
		return coupon.Decision{}
	}
	checked := 0
	for _, status := range []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided} {
		for end := range ends {
			for lock := range locks {
				for _, kind := range []coupon.Kind{coupon.KindExpire, coupon.KindUnlock} {
					for _, carries := range []string{own, other} {
						r := row(status, end, lock)
						at := r.ExpiresAt
						if kind == coupon.KindUnlock {
							at = r.LockUntil
						}
						if carries == other {
							at = at.Add(-time.Second)
						}
						trigger := coupon.Trigger{Kind: kind, CouponID: r.ID, At: at, Origin: coupon.OriginLadder}
						k := key{status, end, lock, kind, carries}
						require.Equal(t, want(k), coupon.Decide(r, trigger, now), "%+v", k)
						checked++
					}
				}
			}
		}
	}
	require.Equal(t, 5*4*3*2*2, checked)
	require.Equal(t, drop(coupon.DropAbsent), coupon.Decide(nil, coupon.Trigger{Kind: coupon.KindExpire}, now))
}

func TestDecideKeepsTheCause(t *testing.T) {
	t.Parallel()
	for origin, cause := range map[coupon.Origin]coupon.Cause{
		coupon.OriginLadder: coupon.CauseLadder, coupon.OriginRebuild: coupon.CauseLadder,
		coupon.OriginLazy: coupon.CauseLazy, coupon.OriginSweep: coupon.CauseSweep,
	} {
		trigger := coupon.Trigger{Kind: coupon.KindExpire, Origin: origin}
		require.Equal(t, cause, coupon.Decide(row(coupon.Unused, "ended", ""), trigger, now).Cause)
		require.Equal(t, coupon.CauseLock, coupon.Decide(row(coupon.Locked, "ended", "run out"), trigger, now).Cause)
	}
}

func TestDecideMayExpireBeforeTheSpreadButNeverBeforeTheEnd(t *testing.T) {
	t.Parallel()
	r := row(coupon.Unused, "ended", "") // due only in 48 s
	require.Equal(t, coupon.Expire, coupon.Decide(r, coupon.Trigger{Kind: coupon.KindExpire, Origin: coupon.OriginLazy}, now).Action)
	require.Equal(t, coupon.Reschedule, coupon.Decide(r, coupon.Trigger{Kind: coupon.KindExpire, At: r.ExpiresAt}, r.ExpiresAt.Add(-1)).Action)
}

func TestDecideIsTotalAndNeverEarly(t *testing.T) {
	t.Parallel()
	instant := rapid.Custom(func(t *rapid.T) time.Time {
		return now.Add(time.Duration(rapid.Int64Range(-5, 5).Draw(t, "seconds")) * time.Second)
	})
	rapid.Check(t, func(t *rapid.T) {
		var r *coupon.Row
		if rapid.IntRange(0, 20).Draw(t, "present") > 0 {
			r = &coupon.Row{
				ID:        1,
				Status:    coupon.Status(rapid.Uint8Range(0, 8).Draw(t, "status")), // states of a later version too
				ExpiresAt: instant.Draw(t, "end"), LockUntil: instant.Draw(t, "lock"),
			}
			r.DueAt = r.ExpiresAt.Add(time.Duration(rapid.IntRange(0, 540).Draw(t, "spread")) * time.Second)
		}
		trigger := coupon.Trigger{
			Kind: rapid.SampledFrom([]coupon.Kind{coupon.KindExpire, coupon.KindUnlock, "other"}).Draw(t, "kind"),
			At:   instant.Draw(t, "at"), Attempt: rapid.Int().Draw(t, "attempt"),
			Origin: rapid.SampledFrom([]coupon.Origin{coupon.OriginLadder, coupon.OriginLazy, coupon.OriginRebuild, coupon.OriginSweep, "other"}).Draw(t, "origin"),
		}
		at := instant.Draw(t, "now")
		d := coupon.Decide(r, trigger, at)
		switch d.Action {
		case coupon.Expire:
			require.False(t, r.ExpiresAt.After(at), "early")
			require.False(t, r.Status == coupon.Locked && r.LockUntil.After(at), "a live lock shields")
			require.Contains(t, []coupon.Status{coupon.Unused, coupon.Locked}, r.Status)
			require.NotEmpty(t, d.Cause)
		case coupon.Unlock:
			require.Equal(t, coupon.Locked, r.Status)
			require.False(t, r.LockUntil.After(at))
			require.True(t, r.ExpiresAt.After(at))
		case coupon.Reschedule:
			require.True(t, d.Until.After(at), "to an instant ahead, or it would ring at once for ever")
		case coupon.Drop:
			require.NotEmpty(t, d.Reason)
		default:
			require.Fail(t, "no answer", "%v", d)
		}
		// What the trigger carries decides only what becomes of one that is not yet due.
		trigger.At = instant.Draw(t, "other at")
		other := coupon.Decide(r, trigger, at)
		if d.Action == coupon.Expire || d.Action == coupon.Unlock {
			require.Equal(t, d, other)
		} else {
			require.NotContains(t, []coupon.Action{coupon.Expire, coupon.Unlock}, other.Action)
		}
	})
}

func TestAnEndedCouponIsExpiredByWhateverRings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := row(coupon.Unused, rapid.SampledFrom([]string{"ended", "ends now"}).Draw(t, "end"), "")
		if rapid.Bool().Draw(t, "locked") {
			r.Status, r.LockUntil = coupon.Locked, locks[rapid.SampledFrom([]string{"run out", "runs out now"}).Draw(t, "lock")]
		}
		trigger := coupon.Trigger{
			Kind: rapid.SampledFrom([]coupon.Kind{coupon.KindExpire, coupon.KindUnlock}).Draw(t, "kind"),
			At:   now.Add(time.Duration(rapid.Int64().Draw(t, "at"))), Origin: coupon.OriginLadder,
		}
		require.Equal(t, coupon.Expire, coupon.Decide(r, trigger, now).Action)
	})
}

func TestNamesAreStable(t *testing.T) {
	t.Parallel()
	require.Equal(t, "unused locked used expired voided status(9)",
		fmt.Sprint(coupon.Unused, " ", coupon.Locked, " ", coupon.Used, " ", coupon.Expired, " ", coupon.Voided, " ", coupon.Status(9)))
	require.Equal(t, []coupon.Status{1, 2, 3, 4, 5}, []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}, "they are stored")
	require.Equal(t, "drop expire unlock reschedule unknown", fmt.Sprint(coupon.Drop, " ", coupon.Expire, " ", coupon.Unlock, " ", coupon.Reschedule, " ", coupon.Action(9)))
	require.Equal(t, "v4711.3", coupon.TriggerID(coupon.SentByVerb, 4711, 3))
	require.Equal(t, "xrr", string([]byte{coupon.Exact.Class(), coupon.Standard.Class(), coupon.Relaxed.Class()}))
	require.Equal(t, 15, coupon.Partition(31))
}

func TestCeilSecondNeverShortens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(-1<<33, 1<<33).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		got := coupon.CeilSecond(at)
		require.Zero(t, got.Nanosecond())
		require.Equal(t, time.UTC, got.Location())
		require.False(t, got.Before(at))
		require.Less(t, got.Sub(at), time.Second)
	})
	require.True(t, coupon.IsNever(coupon.Never))
	require.False(t, coupon.IsNever(coupon.Never.Add(-1)))
}
