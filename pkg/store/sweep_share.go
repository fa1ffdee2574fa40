package store

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtShareDue = define("sweep.share_due", `SELECT `+settleColumns+` FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at <= ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) AND id % ? = ?
		ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtShareLocks = define("sweep.share_locks", `SELECT `+settleColumns+` FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until <= ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) AND id % ? = ?
		ORDER BY lock_until, id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtShareKeys = define("sweep.share_keys", `SELECT id, due_at FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at <= ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) AND id % ? = ?
		ORDER BY due_at, id LIMIT ?`)
	stmtShareLockKeys = define("sweep.share_lock_keys", `SELECT id, lock_until FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until <= ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) AND id % ? = ?
		ORDER BY lock_until, id LIMIT ?`)
)

// Share is the store as one of several sweeps sees it that a scheduler wants apart: of the overdue coupons only those
// whose id modulo Of is Rest. Each reads what all of them have overdue, so it is dearer than to let them share.
type Share struct {
	*Store
	Of, Rest uint64
}

func (s Share) after(from coupon.Cursor, cutoff time.Time, limit int) []any {
	args := after(from, cutoff, limit)
	return append(args[:len(args)-1], s.Of, s.Rest, limit)
}

// SweepBatch is Store.SweepBatch for the share.
func (s Share) SweepBatch(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error) (coupon.Swept, error) {
	st := stmtShareDue
	if locks {
		st = stmtShareLocks
	}
	return s.sweepBatch(ctx, st, s.after(from, cutoff, limit), locks, from, limit, allow)
}

// SweepKeys is Store.SweepKeys for the share.
func (s Share) SweepKeys(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error) {
	st := stmtShareKeys
	if locks {
		st = stmtShareLockKeys
	}
	return s.sweepKeys(ctx, st, s.after(from, cutoff, limit))
}
