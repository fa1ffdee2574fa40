package store_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func pauseOf(b coupon.Brake, scope coupon.PauseScope, id string) coupon.Pause {
	return coupon.Pause{Brake: b, Scope: scope, ID: id}
}

// brake puts a pause on, or takes it off, and lets the store know.
func brake(t testing.TB, s *store.Store, on bool, p coupon.Pause) {
	t.Helper()
	do := s.Resume
	if on {
		do = s.Pause
	}
	changed, err := do(t.Context(), p, "amy", "the end is wrong")
	require.NoError(t, err)
	require.True(t, changed)
	_, err = s.Pauses(t.Context())
	require.NoError(t, err)
}

func TestPausesAreKeptWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s, other := d.Store(t), d.Store(t)
	long := strings.Repeat("b", coupon.MaxText)
	all := []coupon.Pause{
		pauseOf(coupon.BrakeExpiry, coupon.PauseAll, ""), pauseOf(coupon.BrakeExpiry, coupon.PauseTemplate, "12"),
		pauseOf(coupon.BrakeIssuance, coupon.PauseBatch, long), pauseOf(coupon.BrakeNotices, coupon.PauseChannel, "sms"),
	}
	for _, p := range all {
		brake(t, s, true, p)
		again, err := s.Pause(t.Context(), p, "bob", "too")
		require.NoError(t, err)
		require.False(t, again)
	}
	now, _, err := other.ReadClock(t.Context()) // brings the brakes on the way
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), now, 5*time.Second)
	seen := other.BrakesSeen()
	require.Len(t, seen.List(), 4)
	require.True(t, seen.All(coupon.BrakeExpiry))
	require.False(t, seen.All(coupon.BrakeIssuance))
	require.True(t, seen.Coupon(coupon.BrakeIssuance, 1, long))
	require.True(t, seen.Channel(coupon.ChannelSMS))
	require.False(t, seen.Channel(coupon.ChannelEmail))
	for _, p := range seen.List() {
		require.WithinDuration(t, now, p.Since, 5*time.Second)
	}
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'pause.expiry'`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'pause.expiry.template.12'`))

	for _, p := range all {
		brake(t, s, false, p)
		again, err := s.Resume(t.Context(), p, "bob", "too")
		require.NoError(t, err)
		require.False(t, again)
	}
	ps, err := other.Pauses(t.Context())
	require.NoError(t, err)
	require.Empty(t, ps.List())
	for _, action := range []string{store.DeedPause, store.DeedResume} {
		deeds, err := s.Deeds(t.Context(), action, 0, 10)
		require.NoError(t, err)
		require.Len(t, deeds, 4)
		require.Equal(t, []string{"amy", "the end is wrong", all[3].String()}, []string{deeds[0].Actor, deeds[0].Reason, deeds[0].Subject})
	}
	for _, bad := range []coupon.Pause{
		pauseOf("all", "", ""), pauseOf(coupon.BrakeNotices, coupon.PauseTemplate, "1"), pauseOf(coupon.BrakeExpiry, coupon.PauseTemplate, "01"),
		pauseOf(coupon.BrakeExpiry, coupon.PauseChannel, "sms"), pauseOf(coupon.BrakeNotices, coupon.PauseChannel, "pigeon"), pauseOf(coupon.BrakeExpiry, "", "1"),
		pauseOf(coupon.BrakeIssuance, coupon.PauseBatch, ""),
	} {
		_, err := s.Pause(t.Context(), bad, "amy", "r")
		require.Error(t, err, bad)
	}
	_, err = s.Pause(t.Context(), all[0], "", "r")
	require.ErrorContains(t, err, "actor")
}

// Whoever rings: what is paused does not expire, everything else does, and locks run out.
func TestPausedExpiryMovesNothing(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]coupon.Pause{
		"all": pauseOf(coupon.BrakeExpiry, coupon.PauseAll, ""), "template": pauseOf(coupon.BrakeExpiry, coupon.PauseTemplate, "1"),
		"batch": pauseOf(coupon.BrakeExpiry, coupon.PauseBatch, "autumn"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			s := d.Store(t)
			plant(t, d, 1, 10, coupon.Unused, past, "NULL")
			plant(t, d, 11, 10, coupon.Locked, past, past)   // run out, ended
			plant(t, d, 21, 10, coupon.Locked, future, past) // run out, not ended
			plant(t, d, 31, 10, coupon.Unused, past, "NULL")
			d.Exec(t, `UPDATE coupon SET batch_id = 'autumn' WHERE id <= 30`)
			other := 0
			if p.Scope != coupon.PauseAll {
				other = 10
				d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
					VALUES (2,1,'t','{"kind":"never"}',500,'CNY','exact',UTC_TIMESTAMP(3),'test','')`)
				d.Exec(t, `UPDATE coupon SET template_id = 2, batch_id = '' WHERE id > 30`)
			}
			brake(t, s, true, p)
			for _, origin := range []coupon.Origin{coupon.OriginLadder, coupon.OriginLazy, coupon.OriginRepair} {
				_, out, err := s.ExpireBatch(t.Context(), triggersFor(1, 40-other, origin), always)
				require.NoError(t, err)
				for i, r := range out {
					if i < 20 || i >= 30 {
						require.Equal(t, coupon.Decision{Action: coupon.Drop, Reason: coupon.DropPaused}, r.Decision, i)
					}
				}
			}
			require.EqualValues(t, 10, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE id BETWEEN 21 AND 30 AND status = 1`), "locks run out")
			for _, locks := range []bool{false, true} {
				swept, err := s.SweepBatch(t.Context(), locks, time.Now().Add(time.Hour), coupon.Cursor{}, 500, always)
				require.NoError(t, err)
				require.NotEmpty(t, swept.Settled)
				require.False(t, swept.Next.At.IsZero(), "it goes past what is paused")
			}
			require.EqualValues(t, other, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4`))
			require.EqualValues(t, other, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4`))

			// What an order gives back past its end is not expired either.
			plant(t, d, 50, 1, coupon.Locked, past, future)
			d.Exec(t, `UPDATE coupon SET batch_id = 'autumn' WHERE id = 50`)
			c := done(t, s, ask(coupon.VerbRelease, "o1", 50))
			require.Equal(t, coupon.Unused, c.Status)
			cs, now, err := s.Coupons(t.Context(), []uint64{1, 50})
			require.NoError(t, err)
			for i := range cs {
				require.Equal(t, coupon.Expired, cs[i].Seen(now), "readers show the truth")
			}
			refused(t, s, ask(coupon.VerbLock, "o2", 1), coupon.CodeExpired)

			brake(t, s, false, p)
			for _, locks := range []bool{false, true} {
				_, err := s.SweepBatch(t.Context(), locks, time.Now().Add(time.Second), coupon.Cursor{}, 500, always)
				require.NoError(t, err)
			}
			require.EqualValues(t, 31, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4`))
			require.EqualValues(t, 31, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4`))
		})
	}
}

func TestPausedIssuance(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	a, b := create(t, s, nil), create(t, s, nil)
	brake(t, s, true, pauseOf(coupon.BrakeIssuance, coupon.PauseTemplate, strconv.FormatUint(a, 10)))
	brake(t, s, true, pauseOf(coupon.BrakeIssuance, coupon.PauseBatch, "b1"))
	inBatch := grant(b, "u", "k2")
	inBatch.BatchID = "b1"
	grants := []coupon.Grant{grant(a, "u", "k1"), inBatch, grant(b, "u", "k3")}
	_, err := s.Issue(t.Context(), grants)
	require.ErrorIs(t, err, coupon.ErrPaused)
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon`))

	for range 2 { // a delivery that comes again
		out, err := s.IssueOrHold(t.Context(), grants)
		require.NoError(t, err)
		require.Equal(t, []bool{true, true, false}, []bool{out[0].Held, out[1].Held, out[2].Held})
		require.NotZero(t, out[2].CouponID)
	}
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon`))
	n, err := s.HeldGrants(t.Context(), 100)
	require.NoError(t, err)
	require.EqualValues(t, 4, n)
	next, answers, more, err := s.IssueHeld(t.Context(), 0, 3)
	require.NoError(t, err)
	require.Empty(t, answers)
	require.True(t, more)
	_, answers, more, err = s.IssueHeld(t.Context(), next, 3)
	require.NoError(t, err)
	require.Empty(t, answers)
	require.False(t, more)

	brake(t, s, false, pauseOf(coupon.BrakeIssuance, coupon.PauseBatch, "b1"))
	_, answers, _, err = s.IssueHeld(t.Context(), 0, 100)
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.True(t, answers[1].Repeated, "once, by its key")
	brake(t, s, false, pauseOf(coupon.BrakeIssuance, coupon.PauseTemplate, strconv.FormatUint(a, 10)))
	_, answers, _, err = s.IssueHeld(t.Context(), 0, 100)
	require.NoError(t, err)
	require.Len(t, answers, 2)
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM coupon`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM grant_held`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE batch_id = 'b1'`))
}
