package store

import (
	"context"
	"database/sql"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtUpcomingUnused = define("upcoming.unused", `SELECT id, version, template_id, revision, expires_at, due_at FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at < ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) AND MOD(id, 16) IN (?) ORDER BY due_at, id LIMIT ?`)
	stmtUpcomingLocks = define("upcoming.locks", `SELECT id, version, template_id, revision, lock_until, lock_until FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until < ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) AND MOD(id, 16) IN (?) ORDER BY lock_until, id LIMIT ?`)
)

// Upcoming gives the next triggers of some partitions, up to limit, that ring before end, behind the cursor, in keyset order, with
// the cursor behind the last one: of what is unused (KindExpire), or of locks (KindUnlock). It reads the index of the whole window,
// and the rows of these partitions.
func (s *Store) Upcoming(ctx context.Context, kind coupon.Kind, parts []int, end time.Time, from coupon.Cursor, limit int) (
	ts []coupon.Timed, next coupon.Cursor, err error,
) {
	if len(parts) == 0 {
		return nil, from, nil
	}
	st := stmtUpcomingUnused
	if kind == coupon.KindUnlock {
		st = stmtUpcomingLocks
	}
	args := after(from, end, limit)
	keyset, last := args[:len(args)-1], args[len(args)-1]
	args = append(make([]any, 0, len(args)+len(parts)), keyset...)
	for _, p := range parts {
		args = append(args, p)
	}
	args = append(args, last)
	next = from
	triggers := make([]coupon.Trigger, 0, limit)
	keys := make([]termsKey, 0, limit)
	err = s.query(ctx, s.sql, st.in(len(parts)), func(r *sql.Rows) error {
		t := coupon.Trigger{Kind: kind, Origin: coupon.OriginLadder}
		var k termsKey
		var version uint32
		var due time.Time
		if err := r.Scan(&t.CouponID, &version, &k.id, &k.revision, &t.At, &due); err != nil {
			return err
		}
		t.ID = coupon.TriggerID(coupon.SentByPlanner, t.CouponID, version)
		next = coupon.Cursor{At: due, ID: t.CouponID}
		ts = append(ts, coupon.Timed{ID: t.ID, Kind: kind, CouponID: t.CouponID, At: due})
		triggers, keys = append(triggers, t), append(keys, k)
		return nil
	}, args...)
	if err != nil {
		return nil, from, err
	}
	for i := range ts {
		terms, err := s.termsOf(ctx, s.sql, keys[i].id, keys[i].revision)
		if err != nil {
			return nil, from, err
		}
		ts[i].Body, ts[i].Class = s.codec.Trigger(triggers[i]), terms.Precision.Class()
	}
	return ts, next, nil
}
