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

// plantLock plants a locked coupon of order o1, with the history that led there.
func plantLock(t testing.TB, d testenv.Database, id int, ends, lockUntil string) {
	t.Helper()
	plant(t, d, id, 1, coupon.Locked, ends, lockUntil)
	d.Exec(t, `UPDATE coupon SET version = 2, locked_at = granted_at, late_pay_policy = 'honour_lock', late_pay_window = 1800 WHERE id = ?`, id)
	d.Exec(t, `INSERT INTO coupon_history SELECT id, 2, 1, 2, 'order', granted_at - INTERVAL 1 DAY, expires_at, due_at, order_id, '', '', '', '', '', lock_until, NULL
		FROM coupon WHERE id = ?`, id)
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at WHERE c.id = ?`, id)
	d.Exec(t, `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, body, trace, refused, created_at)
		VALUES (1, ?, ?, CONCAT(?, ':2:locked'), 'coupon.locked', ' ', '', '', 0, UTC_TIMESTAMP(3))`, id%16, id, id)
}

func history(t testing.TB, d testenv.Database, id int) (steps []string) {
	t.Helper()
	rows, err := d.SQL.QueryContext(t.Context(), `SELECT from_status, to_status, cause, order_id, actor FROM coupon_history WHERE coupon_id = ? AND version > 2 ORDER BY version`, id)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var from, to coupon.Status
		var cause, order, actor string
		require.NoError(t, rows.Scan(&from, &to, &cause, &order, &actor))
		steps = append(steps, fmt.Sprintf("%s>%s %s %s %s", from, to, cause, order, actor))
	}
	require.NoError(t, rows.Err())
	return steps
}

// A run-out lock is free at once for whoever comes next, and is settled in the same transaction.
func TestActMeetsARunOutLock(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	for id := 1; id <= 12; id++ {
		ends := whole(3600)
		if id > 8 {
			ends = whole(-60)
		}
		plantLock(t, d, id, ends, whole(-5))
	}
	done(t, s, ask(coupon.VerbLock, "o2", 1))
	require.Equal(t, []string{"locked>unused lock o1 lapse", "unused>locked order o2 test"}, history(t, d, 1))
	done(t, s, ask(coupon.VerbLock, "o1", 2))
	require.Equal(t, []string{"locked>unused lock o1 lapse", "unused>locked order o1 test"}, history(t, d, 2))
	done(t, s, ask(coupon.VerbRedeem, "o2", 3))
	require.Equal(t, []string{"locked>unused lock o1 lapse", "unused>used order o2 test"}, history(t, d, 3))
	done(t, s, ask(coupon.VerbRedeem, "o1", 4))
	require.Equal(t, []string{"locked>used order o1 test"}, history(t, d, 4))
	done(t, s, ask(coupon.VerbRelease, "o1", 5))
	require.Equal(t, []string{"locked>unused order o1 test"}, history(t, d, 5))
	done(t, s, ask(coupon.VerbVoid, "", 6))
	require.Equal(t, []string{"locked>unused lock o1 lapse", "unused>voided admin  test"}, history(t, d, 6))
	refused(t, s, ask(coupon.VerbRenew, "o1", 7), coupon.CodeNotLocked)
	require.Empty(t, history(t, d, 7))
	end := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	done(t, s, extend(8, end))
	require.Equal(t, []string{"locked>unused lock o1 lapse", "unused>unused admin  test"}, history(t, d, 8))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 8`), "a state that is left again needs no trigger")
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 1 AND routing_key = 'unlock'`))

	refused(t, s, ask(coupon.VerbLock, "o2", 9), coupon.CodeExpired)
	refused(t, s, ask(coupon.VerbRedeem, "o1", 10), coupon.CodeExpired)
	require.Equal(t, coupon.Expired, done(t, s, ask(coupon.VerbRelease, "o1", 11)).Status)
	require.Equal(t, []string{"locked>expired lock o1 test"}, history(t, d, 11))
	repeated(t, s, ask(coupon.VerbRelease, "o1", 11))
	refused(t, s, ask(coupon.VerbRelease, "o2", 11), coupon.CodeExpired)

	// The worker was there first: an order that gives back what has run out already is answered that it is done.
	plantLock(t, d, 13, whole(3600), whole(-5))
	_, _, err := s.ExpireBatch(t.Context(), triggersFor(12, 2, coupon.OriginLadder), always)
	require.NoError(t, err)
	require.Equal(t, coupon.Expired, repeated(t, s, ask(coupon.VerbRelease, "o1", 12)).Status)
	require.Equal(t, coupon.Unused, repeated(t, s, ask(coupon.VerbRelease, "o1", 13)).Status)
	done(t, s, ask(coupon.VerbLock, "o2", 13))
	refused(t, s, ask(coupon.VerbRelease, "o1", 13), coupon.CodeLockedByOther)
	requireReplays(t, d)
}

func TestActPastTheEnd(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	for id := 1; id <= 6; id++ {
		plantLock(t, d, id, whole(-5), whole(60))
	}
	d.Exec(t, `UPDATE coupon SET late_pay_policy = 'strict' WHERE id = 2`)

	refused(t, s, ask(coupon.VerbRedeem, "o2", 1), coupon.CodeLockedByOther)
	done(t, s, ask(coupon.VerbRedeem, "o1", 1))
	refused(t, s, ask(coupon.VerbRedeem, "o1", 2), coupon.CodeExpired)
	c := done(t, s, ask(coupon.VerbRelease, "o1", 3))
	require.Equal(t, coupon.Expired, c.Status)
	require.Equal(t, coupon.CauseLock, c.Cause)
	c = done(t, s, ask(coupon.VerbRefund, "o1", 1))
	require.Equal(t, coupon.Expired, c.Status)
	require.Equal(t, coupon.CauseRefund, c.Cause)
	require.True(t, c.UsedAt.IsZero())
	requireStored(t, s, c)
	repeated(t, s, ask(coupon.VerbRefund, "o1", 1))
	repeated(t, s, ask(coupon.VerbRedeem, "o1", 1))
	refused(t, s, ask(coupon.VerbRedeem, "o2", 1), coupon.CodeExpired)

	long := ask(coupon.VerbRenew, "o1", 4)
	long.LockFor = coupon.MaxLock
	c = done(t, s, long)
	require.Equal(t, c.ExpiresAt.Add(coupon.DefaultLateWindow), c.LockUntil, "renewals included")
	repeated(t, s, long)

	// An operator may move the end of what an order holds; the lock stays what it is.
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	c = done(t, s, extend(4, end))
	require.Equal(t, end, c.ExpiresAt)
	require.Equal(t, coupon.Locked, c.Status)
	breaks := ask(coupon.VerbVoid, "", 5)
	refused(t, s, breaks, coupon.CodeLocked)
	breaks.BreakLock = true
	done(t, s, breaks)
	refused(t, s, ask(coupon.VerbRedeem, "o1", 5), coupon.CodeVoided)
	requireReplays(t, d)
}

// A lock is granted until the end and refused from it on, to the millisecond of the database's clock.
func TestActLocksUntilTheEnd(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const n = 150
	plant(t, d, 1, n, coupon.Unused, "UTC_TIMESTAMP(3) + INTERVAL 300000 MICROSECOND", "NULL")
	d.Exec(t, `UPDATE coupon SET expires_at = (SELECT m FROM (SELECT MIN(expires_at) m FROM coupon) x), due_at = expires_at`)
	locked := 0
	for id := uint64(1); id <= n; id++ {
		now, out, err := s.Act(t.Context(), ask(coupon.VerbLock, "a", id))
		require.NoError(t, err)
		end := out[0].Coupon.ExpiresAt
		require.Equal(t, now.Before(end), out[0].Refused == "", "%s against %s", now, end)
		if out[0].Refused == "" {
			locked++
			continue
		}
		require.Equal(t, coupon.CodeExpired, out[0].Refused)
	}
	t.Logf("%d of %d before the end", locked, n)
}

func TestActMovesTheEnd(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 3, 3600)
	d.Exec(t, `UPDATE coupon SET due_at = expires_at + INTERVAL 17 SECOND`)
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at`)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	for _, end := range []time.Time{now.Add(2 * time.Hour), now.Add(10 * time.Minute)} { // later and sooner
		end = end.Truncate(time.Second)
		c := done(t, s, extend(1, end))
		require.Equal(t, end, c.ExpiresAt)
		require.Equal(t, end.Add(17*time.Second), c.DueAt, "the spread stays")
		requireStored(t, s, c)
		repeated(t, s, extend(1, end))
		require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 1 AND deliver_at = ?`, c.DueAt))
	}
	c := done(t, s, extend(1, coupon.Never))
	require.Equal(t, coupon.Never, c.ExpiresAt)
	require.Equal(t, coupon.Never, c.DueAt)
	c = done(t, s, ask(coupon.VerbLock, "a", 1))
	require.WithinDuration(t, c.LockedAt.Add(time.Minute), c.LockUntil, time.Second)
	done(t, s, ask(coupon.VerbRelease, "a", 1))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 1 AND routing_key = 'expire'`), "no trigger for never")
	end := now.Add(time.Hour).Truncate(time.Second)
	c = done(t, s, extend(1, end))
	require.Equal(t, end, c.ExpiresAt)
	require.Equal(t, end, c.DueAt, "exact has no spread")
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 1 AND routing_key = 'expire'`))

	refused(t, s, extend(2, now.Add(-time.Hour).Truncate(time.Second)), coupon.CodeInvalid)
	d.Exec(t, `UPDATE coupon SET valid_from = UTC_TIMESTAMP(3) + INTERVAL 1800 SECOND WHERE id = 3`)
	refused(t, s, extend(3, now.Add(time.Minute).Truncate(time.Second)), coupon.CodeInvalid)
	refused(t, s, ask(coupon.VerbLock, "a", 3), coupon.CodeNotYetValid)
	refused(t, s, ask(coupon.VerbRedeem, "a", 3), coupon.CodeNotYetValid)
	require.EqualValues(t, 2, d.Int(t, `SELECT SUM(version) FROM coupon WHERE id > 1`))
	requireReplays(t, d)
}

// Every lock has an unlock trigger, and what becomes unused an expire trigger, if it is due within reach.
func TestActTriggers(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 2, 3600)
	triggers := func(id int, kind coupon.Kind, at time.Time) int64 {
		return d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = ? AND routing_key = ? AND deliver_at = ?`, id, string(kind), at)
	}
	c := done(t, s, ask(coupon.VerbLock, "a", 1))
	require.EqualValues(t, 1, triggers(1, coupon.KindUnlock, c.LockUntil))
	longer := ask(coupon.VerbRenew, "a", 1)
	longer.LockFor = time.Hour / 2
	c = done(t, s, longer)
	require.EqualValues(t, 1, triggers(1, coupon.KindUnlock, c.LockUntil))
	done(t, s, extend(1, c.ExpiresAt.Add(time.Hour)))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "the lock did not move")
	c = done(t, s, ask(coupon.VerbRelease, "a", 1))
	require.EqualValues(t, 1, triggers(1, coupon.KindExpire, c.DueAt))
	done(t, s, ask(coupon.VerbRedeem, "a", 1))
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "none for what is used")
	done(t, s, ask(coupon.VerbRefund, "a", 1))
	require.EqualValues(t, 2, triggers(1, coupon.KindExpire, c.DueAt))

	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('horizon', '60000', UTC_TIMESTAMP(3)), ('guard', '1000', UTC_TIMESTAMP(3))`)
	done(t, s, ask(coupon.VerbLock, "a", 2))
	done(t, s, ask(coupon.VerbRelease, "a", 2))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 2 AND routing_key = 'expire'`), "the planner brings it")
	c = done(t, s, extend(2, time.Now().Add(30*time.Second).Truncate(time.Second)))
	require.EqualValues(t, 1, triggers(2, coupon.KindExpire, c.DueAt))
	requireReplays(t, d)
}

// archive moves coupons there by plain SQL.
func archive(t testing.TB, d testenv.Database, where string) {
	t.Helper()
	const columns = `template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, locked_at, lock_until,
		order_id, late_pay_policy, late_pay_window, used_at, expired_at, expire_cause`
	d.Exec(t, `INSERT INTO coupon_archive (id, `+columns+`, archived_at) SELECT id, `+columns+`, UTC_TIMESTAMP(3) FROM coupon WHERE `+where)
	d.Exec(t, `INSERT INTO coupon_history_archive SELECT * FROM coupon_history WHERE coupon_id IN (SELECT id FROM coupon WHERE `+where+`)`)
	d.Exec(t, `DELETE FROM coupon_history WHERE coupon_id IN (SELECT id FROM coupon WHERE `+where+`)`)
	d.Exec(t, `DELETE FROM coupon WHERE `+where)
}

// A refund reaches into the archive and brings the coupon back, with its history; no other verb does.
func TestActArchived(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 4, 3600)
	plantUnused(t, d, 5, 1, -60)
	for id := uint64(1); id <= 3; id++ {
		done(t, s, ask(coupon.VerbLock, "a", id))
		done(t, s, ask(coupon.VerbRedeem, "a", id))
	}
	_, _, err := s.ExpireBatch(t.Context(), triggersFor(5, 1, coupon.OriginLadder), always)
	require.NoError(t, err)
	archive(t, d, "id IN (1,2,5)")

	c := repeated(t, s, ask(coupon.VerbRedeem, "a", 1))
	require.Equal(t, coupon.Used, c.Status)
	require.True(t, c.Archived)
	refused(t, s, ask(coupon.VerbLock, "b", 1), coupon.CodeAlreadyUsed)
	refused(t, s, ask(coupon.VerbRefund, "b", 1), coupon.CodeUsedByOther)
	refused(t, s, ask(coupon.VerbRedeem, "a", 5), coupon.CodeExpired)
	other := ask(coupon.VerbRefund, "a", 1)
	other.UserID = "somebody"
	refused(t, s, other, coupon.CodeNotFound)
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM coupon_archive`))

	// One in the archive, one in the table, one that is unused: nothing moves.
	require.Empty(t, act(t, s, ask(coupon.VerbRefund, "a", 1, 3, 4))[0].Refused)
	require.EqualValues(t, 3, d.Int(t, `SELECT COUNT(*) FROM coupon_archive`))
	out := act(t, s, ask(coupon.VerbRefund, "a", 3, 1))
	require.Equal(t, coupon.Unused, out[1].Coupon.Status)
	require.False(t, out[1].Coupon.Archived)
	requireStored(t, s, out[1].Coupon)
	require.EqualValues(t, 4, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id = 1`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history_archive WHERE coupon_id = 1`))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = 1 AND routing_key = 'expire'`))

	// Many at once: it comes back once.
	pods := []*store.Store{s, d.Store(t)}
	inParallel(8, func(i int) {
		_, out, err := pods[i%2].Act(t.Context(), ask(coupon.VerbRefund, "a", 2))
		if err != nil || out[0].Refused != "" || out[0].Coupon.Status != coupon.Unused {
			t.Errorf("%v %v", out, err)
		}
	})
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id = 2 AND cause = 'refund'`))
	done(t, s, ask(coupon.VerbVoid, "", 2))
	archive(t, d, "id = 2")
	repeated(t, s, ask(coupon.VerbRefund, "a", 2))
	repeated(t, s, ask(coupon.VerbRedeem, "a", 2))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM coupon_archive`))
	requireReplays(t, d)
}
