package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// What a forward leaves is what an extension leaves: history, an event, and the trigger that takes the real way.
func TestForward(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	offsets, err := coupon.ParseOffsets([]string{"-1d", "-30m"})
	require.NoError(t, err)
	require.NoError(t, s.SetReminders(t.Context(), coupon.Reminders{
		Offsets: offsets, Zone: time.UTC, Leads: map[string]time.Duration{"-1d": time.Hour, "-30m": time.Hour},
	}))
	template, err := s.CreateTemplate(t.Context(), coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "240h"}, Actor: "test", Reason: "r",
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}.Defaults(),
	})
	require.NoError(t, err)
	granted, err := s.Issue(t.Context(), []coupon.Grant{
		{Key: "a", TemplateID: template, UserID: "u"}, {Key: "b", TemplateID: template, UserID: "u"}, {Key: "c", TemplateID: template, UserID: "u"},
	})
	require.NoError(t, err)
	forward := func(i int, what coupon.Ahead, in time.Duration) coupon.Forwarded {
		t.Helper()
		out, err := s.Forward(t.Context(), coupon.Forward{CouponID: granted[i].CouponID, What: what, In: in, Actor: "test/mei"})
		require.NoError(t, err)
		return out
	}
	last := func(i int) coupon.Transition {
		t.Helper()
		steps, err := s.Timeline(t.Context(), granted[i].CouponID)
		require.NoError(t, err)
		return steps[len(steps)-1]
	}
	trigger := func(i int, kind string, at time.Time) int64 {
		t.Helper()
		return db.Int(t, "SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = ? AND routing_key = ? AND deliver_at = ?",
			granted[i].CouponID, kind, at.Format("2006-01-02 15:04:05.000"))
	}

	out := forward(0, coupon.AheadEnd, time.Hour)
	require.Empty(t, out.Refused)
	require.Equal(t, coupon.CeilSecond(out.Now.Add(time.Hour)), out.At)
	require.Equal(t, out.At, out.Coupon.ExpiresAt)
	step := last(0)
	require.Equal(t, []any{coupon.Sandbox, "forward end, asked by test/mei", coupon.CauseAdmin, granted[0].ExpiresAt},
		[]any{step.Actor, step.Reason, step.Cause, step.Previous})
	require.EqualValues(t, 1, trigger(0, "expire", out.At))

	_, _, err = s.Act(t.Context(), coupon.Order{Verb: coupon.VerbLock, OrderID: "o", UserID: "u", CouponIDs: []uint64{granted[1].CouponID}, LockFor: time.Hour})
	require.NoError(t, err)
	out = forward(1, coupon.AheadLock, 10*time.Second)
	require.Empty(t, out.Refused)
	require.Equal(t, out.At, out.Coupon.LockUntil)
	require.Equal(t, coupon.Locked, last(1).From)
	require.EqualValues(t, 1, trigger(1, "unlock", out.At))
	require.Equal(t, coupon.CodeLocked, forward(1, coupon.AheadReminder, time.Second).Refused)

	out = forward(2, coupon.AheadReminder, 10*time.Second)
	require.Empty(t, out.Refused, out.Detail)
	require.Equal(t, out.At.Add(24*time.Hour), out.Coupon.ExpiresAt)
	require.EqualValues(t, 1, db.Int(t, "SELECT COUNT(*) FROM outbox WHERE msg_id = ?",
		coupon.ExpiringID(granted[2].CouponID, out.Coupon.ExpiresAt, "-1d")))
	require.Equal(t, coupon.CodeNotLocked, forward(2, coupon.AheadLock, time.Second).Refused)

	missing, err := s.Forward(t.Context(), coupon.Forward{CouponID: 1 << 40, What: coupon.AheadEnd, In: time.Second})
	require.NoError(t, err)
	require.Equal(t, coupon.CodeNotFound, missing.Refused)
	require.False(t, missing.Now.IsZero())
	_, err = s.Forward(t.Context(), coupon.Forward{CouponID: 1, What: "x", In: time.Second})
	require.ErrorContains(t, err, "what:")
}
