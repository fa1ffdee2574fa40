package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// whole is an instant of the database's clock on a whole second, as ends are.
func whole(seconds int) string {
	return fmt.Sprintf("DATE_FORMAT(UTC_TIMESTAMP(3) + INTERVAL %d SECOND, '%%Y-%%m-%%d %%H:%%i:%%s.000')", seconds)
}

// plantUnused plants n coupons that end so many whole seconds from now, and a history that says the same.
func plantUnused(t testing.TB, d testenv.Database, first, n, seconds int) {
	t.Helper()
	plant(t, d, first, n, coupon.Unused, whole(seconds), "NULL")
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at
		WHERE c.id BETWEEN ? AND ?`, first, first+n-1)
}

func ask(verb coupon.Verb, order string, ids ...uint64) coupon.Order {
	o := coupon.Order{Verb: verb, OrderID: order, CouponIDs: ids, Actor: "test", Reason: "r"}
	if verb == coupon.VerbLock || verb == coupon.VerbRenew {
		o.LockFor = time.Minute
	}
	if !verb.OfOrder() {
		o.OrderID = ""
	}
	return o
}

func extend(id uint64, end time.Time) coupon.Order {
	o := ask(coupon.VerbExtend, "", id)
	o.EndsAt = end
	return o
}

// act asks and must get an answer for every coupon.
func act(t testing.TB, s *store.Store, o coupon.Order) []coupon.Acted {
	t.Helper()
	now, out, err := s.Act(t.Context(), o)
	require.NoError(t, err)
	require.False(t, now.IsZero())
	require.Len(t, out, len(o.CouponIDs))
	for i := range out {
		require.Equal(t, o.CouponIDs[i], out[i].Coupon.ID)
		require.Equal(t, out[i].Refused != "", out[i].Detail != "")
	}
	return out
}

// done asks of one coupon and must be done, not repeated.
func done(t testing.TB, s *store.Store, o coupon.Order) coupon.Coupon {
	t.Helper()
	a := act(t, s, o)[0]
	require.Empty(t, a.Refused, a.Detail)
	require.False(t, a.Repeated)
	return a.Coupon
}

func repeated(t testing.TB, s *store.Store, o coupon.Order) coupon.Coupon {
	t.Helper()
	a := act(t, s, o)[0]
	require.Empty(t, a.Refused, a.Detail)
	require.True(t, a.Repeated)
	return a.Coupon
}

func refused(t testing.TB, s *store.Store, o coupon.Order, code coupon.Code) {
	t.Helper()
	a := act(t, s, o)[0]
	require.Equal(t, code, a.Refused)
	require.False(t, a.Repeated)
}

// anAnswer is what the coupon is as read afterwards; it must be what the verb answered.
func requireStored(t testing.TB, s *store.Store, c coupon.Coupon) {
	t.Helper()
	stored, _, err := s.Coupon(t.Context(), c.ID)
	require.NoError(t, err)
	require.Equal(t, stored, c)
}

func TestActWholeLife(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 1, 3600)
	written := s.OutboxWritten()

	c := done(t, s, ask(coupon.VerbLock, "a", 1))
	require.Equal(t, coupon.Locked, c.Status)
	require.Equal(t, "a", c.OrderID)
	require.Zero(t, c.LockUntil.Nanosecond())
	require.WithinDuration(t, c.LockedAt.Add(time.Minute), c.LockUntil, time.Second)
	require.False(t, c.LockUntil.Before(c.LockedAt.Add(time.Minute)), "rounded up")
	requireStored(t, s, c)
	select {
	case <-written:
	default:
		require.Fail(t, "the commit did not wake the relay")
	}
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE late_pay_policy = 'honour_lock' AND late_pay_window = 1800`))
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbLock, "a", 1)))
	refused(t, s, ask(coupon.VerbLock, "b", 1), coupon.CodeLockedByOther)
	refused(t, s, ask(coupon.VerbRenew, "b", 1), coupon.CodeLockedByOther)
	refused(t, s, ask(coupon.VerbRedeem, "b", 1), coupon.CodeLockedByOther)
	refused(t, s, ask(coupon.VerbRelease, "b", 1), coupon.CodeLockedByOther)
	refused(t, s, ask(coupon.VerbRefund, "a", 1), coupon.CodeNotUsed)
	refused(t, s, ask(coupon.VerbVoid, "", 1), coupon.CodeLocked)

	longer := ask(coupon.VerbRenew, "a", 1)
	longer.LockFor = time.Hour / 2
	c = done(t, s, longer)
	require.Equal(t, coupon.Locked, c.Status)
	require.WithinDuration(t, c.LockedAt.Add(time.Hour/2), c.LockUntil, 3*time.Second)
	requireStored(t, s, c)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRenew, "a", 1)), "a renewal takes no time away")

	c = done(t, s, ask(coupon.VerbRelease, "a", 1))
	require.Equal(t, coupon.Unused, c.Status)
	requireStored(t, s, c)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRelease, "a", 1)))
	refused(t, s, ask(coupon.VerbRelease, "b", 1), coupon.CodeNotLocked)
	refused(t, s, ask(coupon.VerbRenew, "a", 1), coupon.CodeNotLocked)

	done(t, s, ask(coupon.VerbLock, "b", 1))
	require.Equal(t, "b", repeated(t, s, ask(coupon.VerbRelease, "a", 1)).OrderID, "a late cancel of a frees nothing")
	c = done(t, s, ask(coupon.VerbRedeem, "b", 1))
	require.Equal(t, coupon.Used, c.Status)
	require.Equal(t, "b", c.OrderID)
	require.False(t, c.UsedAt.IsZero())
	requireStored(t, s, c)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRedeem, "b", 1)))
	refused(t, s, ask(coupon.VerbRedeem, "a", 1), coupon.CodeAlreadyUsed)
	refused(t, s, ask(coupon.VerbLock, "a", 1), coupon.CodeAlreadyUsed)
	refused(t, s, ask(coupon.VerbRelease, "b", 1), coupon.CodeAlreadyUsed)
	refused(t, s, ask(coupon.VerbRefund, "a", 1), coupon.CodeUsedByOther)
	refused(t, s, ask(coupon.VerbVoid, "", 1), coupon.CodeAlreadyUsed)

	partial := ask(coupon.VerbRefund, "b", 1)
	partial.Partial, partial.Tombstone = true, true
	require.Equal(t, c, done(t, s, partial), "of a part moves nothing")
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM order_tombstone`))

	c = done(t, s, ask(coupon.VerbRefund, "b", 1))
	require.Equal(t, coupon.Unused, c.Status)
	require.Empty(t, c.OrderID)
	require.True(t, c.UsedAt.IsZero())
	requireStored(t, s, c)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRefund, "b", 1)))
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRedeem, "b", 1)), "a late repeat does not burn it")

	done(t, s, ask(coupon.VerbRedeem, "till", 1)) // without a lock
	require.Equal(t, "till", repeated(t, s, ask(coupon.VerbRefund, "b", 1)).OrderID)
	done(t, s, ask(coupon.VerbRefund, "till", 1))

	c = done(t, s, ask(coupon.VerbVoid, "", 1))
	require.Equal(t, coupon.Voided, c.Status)
	requireStored(t, s, c)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbVoid, "", 1)))
	refused(t, s, ask(coupon.VerbLock, "c", 1), coupon.CodeVoided)
	require.Equal(t, c, repeated(t, s, ask(coupon.VerbRefund, "b", 1)))
	requireReplays(t, d)
}

func TestActAnswersForEveryCoupon(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 10, 3600) // id 7 is u0's, 1 and 8 are u1's
	plantUnused(t, d, 11, 1, -5)

	out := act(t, s, ask(coupon.VerbLock, "a", 10, 11, 3, 99))
	require.Empty(t, out[0].Refused)
	require.Equal(t, coupon.Unused, out[0].Coupon.Status, "nothing moves")
	require.Equal(t, coupon.CodeExpired, out[1].Refused)
	require.Equal(t, coupon.CodeNotFound, out[3].Refused)
	require.Equal(t, coupon.Coupon{Row: coupon.Row{ID: 99}}, out[3].Coupon)
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox`))
	require.EqualValues(t, 11, d.Int(t, `SELECT SUM(version) FROM coupon`))

	each := ask(coupon.VerbLock, "a", 10, 11, 3, 99)
	each.Each = true
	out = act(t, s, each)
	require.Equal(t, coupon.Locked, out[0].Coupon.Status)
	require.Equal(t, coupon.CodeExpired, out[1].Refused)
	require.Equal(t, coupon.Locked, out[2].Coupon.Status)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 2 AND order_id = 'a'`))

	others := ask(coupon.VerbLock, "b", 1, 7)
	others.UserID = "u1"
	out = act(t, s, others)
	require.Empty(t, out[0].Refused)
	require.Equal(t, coupon.Acted{Coupon: coupon.Coupon{Row: coupon.Row{ID: 7}}, Refused: coupon.CodeNotFound, Detail: "no such coupon"}, out[1])
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE order_id = 'b'`))
	others.CouponIDs = []uint64{1, 8}
	for _, a := range act(t, s, others) {
		require.Equal(t, coupon.Locked, a.Coupon.Status)
	}
	out = act(t, s, ask(coupon.VerbLock, "x", 98, 99)) // none of them exists
	require.Equal(t, coupon.CodeNotFound, out[1].Refused)
	now, _, err := s.Act(t.Context(), ask(coupon.VerbLock, "x", 98))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), now, 5*time.Second)

	_, _, err = s.Act(t.Context(), ask(coupon.VerbLock, "x", 1, 1))
	require.ErrorContains(t, err, "coupon_ids: ")
	_, _, err = s.Act(t.Context(), coupon.Order{Verb: "take", CouponIDs: []uint64{1}})
	require.ErrorContains(t, err, "verb: ")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = s.Act(canceled, ask(coupon.VerbLock, "x", 2))
	require.ErrorIs(t, err, context.Canceled)
	requireReplays(t, d)
}

func TestActTombstones(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 10, 3600)
	bury := func(verb coupon.Verb, order string, ids ...uint64) coupon.Order {
		o := ask(verb, order, ids...)
		o.Tombstone, o.Each = true, true
		return o
	}
	// Closed before it asked for the lock; also a coupon that does not exist, or not yet.
	out := act(t, s, bury(coupon.VerbRelease, "a", 2, 1, 77))
	require.Equal(t, coupon.CodeNotLocked, out[0].Refused)
	require.Equal(t, coupon.CodeNotFound, out[2].Refused)
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM order_tombstone WHERE order_id = 'a' AND closed = 1 AND refunded = 0`))
	act(t, s, bury(coupon.VerbRelease, "a", 1)) // again
	refused(t, s, ask(coupon.VerbLock, "a", 1), coupon.CodeOrderClosed)
	refused(t, s, ask(coupon.VerbLock, "a", 3, 1), "")
	plantUnused(t, d, 77, 1, 3600)
	refused(t, s, ask(coupon.VerbLock, "a", 77), coupon.CodeOrderClosed)
	done(t, s, ask(coupon.VerbLock, "b", 1))
	done(t, s, ask(coupon.VerbLock, "a", 3)) // another coupon

	// Refunded before it was said to be paid: the lock is given up, and what is paid later takes nothing.
	done(t, s, ask(coupon.VerbLock, "c", 4))
	refund := bury(coupon.VerbRefund, "c", 4, 5)
	out = act(t, s, refund)
	require.Equal(t, coupon.Unused, out[0].Coupon.Status)
	require.Equal(t, coupon.CodeNotUsed, out[1].Refused)
	repeated(t, s, bury(coupon.VerbRefund, "c", 4))
	refused(t, s, ask(coupon.VerbRedeem, "c", 4), coupon.CodeOrderRefunded)
	refused(t, s, ask(coupon.VerbRedeem, "c", 5), coupon.CodeOrderRefunded)
	refused(t, s, ask(coupon.VerbLock, "c", 5), coupon.CodeOrderRefunded)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id = 4 AND version = 3 AND from_status = 2 AND to_status = 1 AND cause = 'order'`))

	// Without a tombstone a refund leaves a lock alone, and a tombstone is of both.
	done(t, s, ask(coupon.VerbLock, "d", 6))
	refused(t, s, ask(coupon.VerbRefund, "d", 6), coupon.CodeNotUsed)
	done(t, s, bury(coupon.VerbRelease, "d", 6))
	repeated(t, s, bury(coupon.VerbRefund, "d", 6)) // nothing of the order is left
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM order_tombstone WHERE coupon_id = 6 AND closed = 1 AND refunded = 1`))

	// All or none holds for the coupons, not for what is remembered.
	both := bury(coupon.VerbRelease, "e", 7, 88)
	both.Each = false
	act(t, s, both)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM order_tombstone WHERE order_id = 'e'`))
	requireReplays(t, d)
}
