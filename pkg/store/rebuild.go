package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The deeds of a rebuild, as operator_log names them.
const (
	DeedRebuild     = "rebuild"
	DeedRebuildDone = "rebuild.done"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtRebuildLocks = define("rebuild.locks", `SELECT id, version, template_id, revision, lock_until, lock_until, UTC_TIMESTAMP(3) FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until < ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) ORDER BY lock_until, id LIMIT ?`)
	stmtRebuildCountUnused = define("rebuild.count_unused", `SELECT COUNT(*) FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at < ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) LIMIT ?`)
	stmtRebuildCountLocks = define("rebuild.count_locks", `SELECT COUNT(*) FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until < ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) LIMIT ?`)
	stmtMeet = define("rebuild.meet", `SELECT id, template_id, revision, status, version, valid_from, expires_at, due_at, lock_until, UTC_TIMESTAMP(3)
		FROM coupon WHERE id IN (?)`)
)

// RebuildReach says at what instant the database is, and up to which one coupons are within the horizon (Never when that is unlimited):
// what the planner has published meanwhile is covered.
func (s *Store) RebuildReach(ctx context.Context) (now, until time.Time, err error) {
	if now, err = s.Now(ctx); err != nil {
		return now, until, err
	}
	r, err := s.reachAt(ctx, s.sql, now)
	if r.unlimited || r.until.After(coupon.Never) {
		return now, coupon.Never, err
	}
	return now, r.until, err
}

// from is where the place's walk goes on: what is left to the sweep is passed over.
func from(p coupon.RebuildPlace) coupon.Cursor {
	if p.Cursor.At.Before(p.Since) {
		return coupon.Cursor{At: p.Since}
	}
	return p.Cursor
}

// RebuildPage gives the next triggers from the place on, up to limit, with the cursor behind the last one and the
// database's clock of the reading (zero when there are none): of locks, or of what is unused, as the place says.
func (s *Store) RebuildPage(ctx context.Context, p coupon.RebuildPlace, limit int) (ts []coupon.Timed, next coupon.Cursor, now time.Time, err error) {
	st, kind, end := stmtRebuildLocks, coupon.KindUnlock, coupon.Never
	if p.Unused {
		st, kind, end = stmtPlanPage, coupon.KindExpire, p.Until
	}
	next = from(p)
	triggers := make([]coupon.Trigger, 0, limit)
	keys := make([]termsKey, 0, limit)
	err = s.query(ctx, s.sql, st, func(r *sql.Rows) error {
		t := coupon.Trigger{Kind: kind, Origin: coupon.OriginRebuild}
		var k termsKey
		var version uint32
		var due time.Time
		if err := r.Scan(&t.CouponID, &version, &k.id, &k.revision, &t.At, &due, &now); err != nil {
			return err
		}
		t.ID = coupon.TriggerID(coupon.SentByRebuild, t.CouponID, version)
		next = coupon.Cursor{At: due, ID: t.CouponID}
		ts = append(ts, coupon.Timed{ID: t.ID, Kind: kind, Class: coupon.Exact.Class(), CouponID: t.CouponID, At: due})
		triggers, keys = append(triggers, t), append(keys, k)
		return nil
	}, after(next, end, limit)...)
	if err != nil {
		return nil, p.Cursor, now, err
	}
	for i := range ts {
		ts[i].Body = s.codec.Trigger(triggers[i])
		terms, err := s.termsOf(ctx, s.sql, keys[i].id, keys[i].revision)
		if err != nil {
			return nil, p.Cursor, now, err
		}
		ts[i].Class = terms.Precision.Class()
	}
	return ts, next, now, nil
}

// RebuildCounts counts what a rebuild has to do from the place on, and what it leaves to others. It reads index
// entries alone, but all of them: about a second for two million.
func (s *Store) RebuildCounts(ctx context.Context, p coupon.RebuildPlace) (n coupon.RebuildCounts, err error) {
	count := func(into *int64, st Statement, from coupon.Cursor, end time.Time) {
		if err != nil || !from.At.Before(end) {
			return
		}
		var some int64
		err = s.queryRow(ctx, s.sql, st, []any{&some}, after(from, end, 1)...)
		*into += some
	}
	if p.Unused {
		count(&n.Expires, stmtRebuildCountUnused, from(p), p.Until)
	} else {
		count(&n.Unlocks, stmtRebuildCountLocks, from(p), coupon.Never)
		count(&n.Expires, stmtRebuildCountUnused, coupon.Cursor{At: p.Since}, p.Until)
	}
	count(&n.Overdue, stmtRebuildCountUnused, coupon.Cursor{At: epoch}, p.Since)
	count(&n.Overdue, stmtRebuildCountLocks, coupon.Cursor{At: epoch}, p.Since)
	count(&n.Beyond, stmtRebuildCountUnused, coupon.Cursor{At: p.Until}, coupon.Never)
	return n, err
}

// Meet says what triggers would meet at this moment: one decision for each, and the precision class of the row (0 when
// there is none). Nothing is locked and nothing changed. At most 900.
func (s *Store) Meet(ctx context.Context, ts []coupon.Trigger) (now time.Time, ds []coupon.Decision, classes []byte, err error) {
	if len(ts) > maxIDs {
		return now, nil, nil, fmt.Errorf("%d triggers: %w", len(ts), ErrBatch)
	}
	if len(ts) == 0 {
		now, err = s.Now(ctx)
		return now, nil, nil, err
	}
	type met struct {
		coupon.Row
		key termsKey
	}
	rows := make(map[uint64]*met, len(ts))
	args := make([]any, len(ts))
	for i := range ts {
		args[i] = ts[i].CouponID
	}
	err = s.query(ctx, s.sql, stmtMeet.in(len(args)), func(r *sql.Rows) error {
		var m met
		var until sql.NullTime
		if err := r.Scan(&m.ID, &m.key.id, &m.key.revision, &m.Status, &m.Version, &m.ValidFrom, &m.ExpiresAt, &m.DueAt, &until, &now); err != nil {
			return err
		}
		m.LockUntil = until.Time
		rows[m.ID] = &m
		return nil
	}, args...)
	if err == nil && now.IsZero() {
		now, err = s.Now(ctx)
	}
	if err != nil {
		return now, nil, nil, err
	}
	ds, classes = make([]coupon.Decision, len(ts)), make([]byte, len(ts))
	for i := range ts {
		m := rows[ts[i].CouponID]
		if m == nil {
			ds[i] = coupon.Decide(nil, ts[i], now)
			continue
		}
		ds[i] = coupon.Decide(&m.Row, ts[i], now)
		terms, err := s.termsOf(ctx, s.sql, m.key.id, m.key.revision)
		if err != nil {
			return now, nil, nil, err
		}
		classes[i] = terms.Precision.Class()
	}
	return now, ds, classes, nil
}
