package store

import (
	"context"
	"database/sql"
	"encoding/json"
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
	// The row is made when there is none, and locked in any case.
	stmtRebuildLock = define("rebuild.lock", `INSERT INTO setting (name, value, updated_at) VALUES ('rebuild.place','',UTC_TIMESTAMP(3))
		ON DUPLICATE KEY UPDATE value = value`)
	stmtRebuildRead  = define("rebuild.read", `SELECT value, updated_at, UTC_TIMESTAMP(3) FROM setting WHERE name = 'rebuild.place'`)
	stmtRebuildWrite = define("rebuild.write", `UPDATE setting SET value = ?, updated_at = UTC_TIMESTAMP(3) WHERE name = 'rebuild.place'`)
	stmtRebuildLocks = define("rebuild.locks", `SELECT id, version, template_id, revision, lock_until, lock_until, UTC_TIMESTAMP(3) FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until < ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) ORDER BY lock_until, id LIMIT ?`)
	stmtRebuildCountUnused = define("rebuild.count_unused", `SELECT COUNT(*) FROM coupon FORCE INDEX (coupon_due)
		WHERE status = 1 AND due_at < ? AND due_at >= ? AND (due_at > ? OR (due_at = ? AND id > ?)) LIMIT ?`)
	stmtRebuildCountLocks = define("rebuild.count_locks", `SELECT COUNT(*) FROM coupon FORCE INDEX (coupon_lock)
		WHERE status = 2 AND lock_until < ? AND lock_until >= ? AND (lock_until > ? OR (lock_until = ? AND id > ?)) LIMIT ?`)
	stmtMeet = define("rebuild.meet", `SELECT id, template_id, revision, status, version, valid_from, expires_at, due_at, lock_until, UTC_TIMESTAMP(3)
		FROM coupon WHERE id IN (?)`)
)

// rebuildRow is the setting's value.
type rebuildRow struct {
	Owner   string `json:"owner,omitempty"` // none: nobody is at it
	Lease   int64  `json:"lease,omitempty"` // milliseconds from updated_at on
	Epoch   uint64 `json:"epoch"`
	Target  string `json:"target"`
	Began   int64  `json:"began"` // instants in milliseconds since 1970
	Unused  bool   `json:"unused"`
	At      int64  `json:"at"`
	ID      uint64 `json:"id"`
	Unlocks int64  `json:"unlocks"`
	Expires int64  `json:"expires"`
	Done    bool   `json:"done"`
}

// resumable is how long after its last step an unfinished rebuild is gone on with. What it published may be lost again
// since, and nobody would remember: later, a new one begins.
const resumable = time.Hour

func (r rebuildRow) goesOn(ask coupon.RebuildAsk, moved, now time.Time) bool {
	return !r.Done && r.Target == ask.Target && !ask.FromScratch && now.Sub(moved) < resumable
}

// lockRebuild reads the place and keeps others out until the transaction ends.
func (s *Store) lockRebuild(ctx context.Context, tx *txn) (row rebuildRow, moved, now time.Time, err error) {
	if _, err = s.exec(ctx, tx, stmtRebuildLock); err != nil {
		return row, moved, now, err
	}
	var text []byte
	if err = s.queryRow(ctx, tx, stmtRebuildRead, []any{&text, &moved, &now}); err != nil || len(text) == 0 {
		row.Done = true
		return row, moved, now, err
	}
	if err = json.Unmarshal(text, &row); err != nil {
		err = fmt.Errorf("setting rebuild.place: %w", err)
	}
	return row, moved, now, err
}

func (s *Store) writeRebuild(ctx context.Context, tx *txn, row rebuildRow) error {
	text, err := json.Marshal(row)
	if err != nil {
		return fmt.Errorf("setting rebuild.place: %w", err)
	}
	_, err = s.exec(ctx, tx, stmtRebuildWrite, text)
	return err
}

// ClaimRebuild takes the one rebuild of the installation for owner: an unfinished one to the same target that stopped
// within the last hour goes on, else a new one begins. The horizon is that of now, so that what the planner has published meanwhile is covered.
func (s *Store) ClaimRebuild(ctx context.Context, owner string, ask coupon.RebuildAsk, lease time.Duration) (coupon.RebuildClaim, error) {
	var c coupon.RebuildClaim
	err := s.tx(ctx, "claim rebuild", func(ctx context.Context, tx *txn) error {
		c = coupon.RebuildClaim{}
		row, moved, now, err := s.lockRebuild(ctx, tx)
		if err != nil {
			return err
		}
		if left := moved.Add(time.Duration(row.Lease) * time.Millisecond).Sub(now); row.Owner != "" && row.Owner != owner && left > 0 {
			c.Left, c.Moved = left, moved
			return nil
		}
		c.Held, c.Resumed = true, row.goesOn(ask, moved, now)
		if !c.Resumed {
			row = rebuildRow{Epoch: row.Epoch, Target: ask.Target, Began: now.UnixMilli(), At: epoch.UnixMilli()}
		}
		row.Owner, row.Lease, row.Epoch = owner, lease.Milliseconds(), row.Epoch+1
		if err := s.writeRebuild(ctx, tx, row); err != nil {
			return err
		}
		if c.Place, err = s.rebuildPlace(ctx, tx, row, now); err != nil {
			return err
		}
		c.Place.Since = now.Add(-ask.Grace)
		return nil
	})
	return c, err
}

func (s *Store) rebuildPlace(ctx context.Context, q querier, row rebuildRow, now time.Time) (coupon.RebuildPlace, error) {
	r, err := s.reachAt(ctx, q, now)
	if err != nil {
		return coupon.RebuildPlace{}, err
	}
	p := coupon.RebuildPlace{
		Now: now, Began: time.UnixMilli(row.Began).UTC(), Until: r.until, Unused: row.Unused,
		Cursor:  coupon.Cursor{At: time.UnixMilli(row.At).UTC(), ID: row.ID},
		Unlocks: row.Unlocks, Expires: row.Expires, Done: row.Done, Epoch: row.Epoch,
	}
	if r.unlimited || p.Until.After(coupon.Never) {
		p.Until = coupon.Never
	}
	return p, nil
}

// PeekRebuild says where ClaimRebuild would begin, and takes nothing.
func (s *Store) PeekRebuild(ctx context.Context, ask coupon.RebuildAsk) (c coupon.RebuildClaim, err error) {
	var text []byte
	var moved, now time.Time
	row := rebuildRow{Done: true}
	err = s.query(ctx, s.sql, stmtRebuildRead, func(r *sql.Rows) error { return r.Scan(&text, &moved, &now) })
	if err == nil && len(text) > 0 {
		err = json.Unmarshal(text, &row)
	}
	if err == nil && now.IsZero() {
		now, err = s.Now(ctx)
	}
	if err != nil {
		return c, fmt.Errorf("look at the rebuild: %w", err)
	}
	if c.Resumed = row.goesOn(ask, moved, now); !c.Resumed {
		row = rebuildRow{Began: now.UnixMilli(), At: epoch.UnixMilli()}
	}
	c.Place, err = s.rebuildPlace(ctx, s.sql, row, now)
	c.Place.Since = now.Add(-ask.Grace)
	return c, err
}

// MoveRebuild stores the place and prolongs the lease; a lease of 0 lets go. False means that another process has
// taken over, and this one must stop.
func (s *Store) MoveRebuild(ctx context.Context, owner string, p coupon.RebuildPlace, lease time.Duration) (held bool, err error) {
	err = s.tx(ctx, "move rebuild", func(ctx context.Context, tx *txn) error {
		row, _, _, err := s.lockRebuild(ctx, tx)
		if err != nil {
			return err
		}
		if held = row.Owner == owner && row.Epoch == p.Epoch; !held {
			return nil
		}
		row.Lease, row.Unused, row.At, row.ID = lease.Milliseconds(), p.Unused, p.Cursor.At.UnixMilli(), p.Cursor.ID
		row.Unlocks, row.Expires, row.Done = p.Unlocks, p.Expires, p.Done
		if lease == 0 {
			row.Owner = ""
		}
		return s.writeRebuild(ctx, tx, row)
	})
	return held, err
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
