package store

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtSweepDue = define("sweep.due", `SELECT `+settleColumns+` FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at <= ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?))
		ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtSweepLocks = define("sweep.locks", `SELECT `+settleColumns+` FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until <= ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?))
		ORDER BY lock_until, id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtSweepKeys = define("sweep.keys", `SELECT id, due_at FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at <= ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?))
		ORDER BY due_at, id LIMIT ?`)
	stmtSweepLockKeys = define("sweep.lock_keys", `SELECT id, lock_until FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until <= ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?))
		ORDER BY lock_until, id LIMIT ?`)
	stmtMarkPut = define("sweep.mark_put", `INSERT INTO setting (name, value, updated_at) VALUES (?,?,UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE value = VALUES(value), updated_at = VALUES(updated_at)`)
	stmtMarks = define("sweep.marks", `SELECT value, UTC_TIMESTAMP(3) FROM setting
		WHERE name >= 'mark.' AND name < 'mark/' AND updated_at > UTC_TIMESTAMP(3) - INTERVAL 15 SECOND`)
	stmtPodsPrune = define("sweep.pods_prune", `DELETE FROM setting
		WHERE (name >= 'mark.' AND name < 'mark/' OR name >= 'relay.' AND name < 'relay/' OR name >= 'clock.' AND name < 'clock/'
		OR name >= 'pod.' AND name < 'pod/' OR name >= 'stage.' AND name < 'stage/') AND updated_at < UTC_TIMESTAMP(3) - INTERVAL 1 DAY`)
	stmtOverdue = define("sweep.overdue", `SELECT COUNT(*), MIN(due_at), UTC_TIMESTAMP(3) FROM
		(SELECT due_at FROM coupon FORCE INDEX (coupon_due) WHERE status = 1 AND due_at <= UTC_TIMESTAMP(3) - INTERVAL ? SECOND ORDER BY due_at LIMIT 10000) o`)
)

// epoch is a beginning that every engine can compare with.
var epoch = time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant instant

func after(c coupon.Cursor, cutoff time.Time, limit int) []any {
	at := c.At
	if at.IsZero() {
		at = epoch
	}
	return []any{cutoff, at, at, at, c.ID, limit}
}

// SweepBatch settles up to limit overdue rows after the cursor, in the core's own transaction: selected FOR UPDATE
// SKIP LOCKED, so that several pods share the work without leases and never wait for each other.
func (s *Store) SweepBatch(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error) (coupon.Swept, error) {
	st := stmtSweepDue
	if locks {
		st = stmtSweepLocks
	}
	return s.sweepBatch(ctx, st, after(from, cutoff, limit), locks, from, limit, allow)
}

func (s *Store) sweepBatch(ctx context.Context, st Statement, args []any, locks bool, from coupon.Cursor, limit int,
	allow func(time.Time) error,
) (coupon.Swept, error) {
	var res coupon.Swept
	brakes, err := s.Brakes(ctx)
	if err != nil {
		return res, err
	}
	err = s.tx(ctx, "sweep", func(ctx context.Context, tx *txn) error {
		res = coupon.Swept{Next: from}
		rows, now, err := s.lockRows(ctx, tx, st, args...)
		if err != nil || len(rows) == 0 {
			return err
		}
		if err := allow(now); err != nil {
			return err
		}
		triggers := make([]coupon.Trigger, 0, len(rows))
		for _, row := range rows {
			c := coupon.Cursor{At: row.DueAt, ID: row.ID}
			if locks {
				c.At = row.LockUntil
			}
			if c.After(res.Next) {
				res.Next = c
			}
			triggers = append(triggers, coupon.Trigger{Kind: coupon.KindExpire, CouponID: row.ID, At: row.ExpiresAt, Origin: coupon.OriginSweep})
		}
		res.Now, res.More = now, len(rows) == limit
		res.Settled, err = s.settle(ctx, tx, now, triggers, rows, nil, brakes)
		return err
	})
	return res, err
}

// SweepKeys reads the ids that SweepBatch would take, without locking: for going past a row that cannot be changed.
func (s *Store) SweepKeys(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error) {
	st := stmtSweepKeys
	if locks {
		st = stmtSweepLockKeys
	}
	return s.sweepKeys(ctx, st, after(from, cutoff, limit))
}

func (s *Store) sweepKeys(ctx context.Context, st Statement, args []any) ([]coupon.Cursor, error) {
	var keys []coupon.Cursor
	err := s.query(ctx, s.sql, st, func(r *sql.Rows) error {
		var c coupon.Cursor
		if err := r.Scan(&c.ID, &c.At); err != nil {
			return err
		}
		keys = append(keys, c)
		return nil
	}, args...)
	return keys, err
}

// PutMark records how far the ladder has come on one due queue of this pod.
func (s *Store) PutMark(ctx context.Context, queue, pod string, mark time.Time) error {
	_, err := s.exec(ctx, s.sql, stmtMarkPut, "mark."+queue+"."+pod, strconv.FormatInt(mark.UnixMilli(), 10))
	return err
}

// PrunePods deletes the marks, the relays' announcements, the clock reports and what was told of pods that have been gone for a day.
func (s *Store) PrunePods(ctx context.Context) error {
	_, err := s.exec(ctx, s.sql, stmtPodsPrune)
	return err
}

// Mark gives the least of the recent ladder marks, and now when there is none: in a spike the sweep does not fight
// the ladder.
func (s *Store) Mark(ctx context.Context) (mark, now time.Time, err error) {
	if now, err = s.Now(ctx); err != nil {
		return mark, now, err
	}
	mark = now
	err = s.query(ctx, s.sql, stmtMarks, func(r *sql.Rows) error {
		var ms string
		if err := r.Scan(&ms, &now); err != nil {
			return err
		}
		// A row that holds no instant counts as none: it must not stop the sweep.
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			if t := time.UnixMilli(n).UTC(); t.Before(mark) {
				mark = t
			}
		}
		return nil
	})
	return mark, now, err
}

// Overdue counts unused coupons whose due instant lies more than grace back, up to 10 000, and the age of the oldest.
func (s *Store) Overdue(ctx context.Context, grace time.Duration) (n int64, oldest time.Duration, err error) {
	var least sql.NullTime
	var now time.Time
	if err := s.queryRow(ctx, s.sql, stmtOverdue, []any{&n, &least, &now}, int(grace.Seconds())); err != nil {
		return 0, 0, err
	}
	if least.Valid {
		oldest = now.Sub(least.Time)
	}
	return n, oldest, nil
}
