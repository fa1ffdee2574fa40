package store

import (
	"context"
	"database/sql"
	"time"
)

// Windows and inbox rows are numbered as they come, so the oldest stand first. Both walks stop at the first page that
// holds nothing old.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtOldWindows = define("archive.windows", `SELECT w.id, w.items, w.opened_at, w.closed_at <= ? AND NOT EXISTS (
			SELECT 1 FROM notice n WHERE n.window_id = w.id AND n.state IN ('pending','sending'))
		FROM notice_window w FORCE INDEX (PRIMARY) WHERE w.id > ? ORDER BY w.id LIMIT ?`)
	stmtOldWindowsLock = define("archive.windows_lock", `SELECT id FROM notice_window FORCE INDEX (PRIMARY)
		WHERE closed_at <= ? AND id IN (?) ORDER BY id FOR UPDATE SKIP LOCKED`)

	stmtOldInbox     = define("archive.inbox", `SELECT id, created_at <= ? FROM inbox FORCE INDEX (inbox_id) WHERE id > ? ORDER BY id LIMIT ?`)
	stmtOldInboxDrop = define("archive.inbox_drop", `DELETE i FROM inbox i FORCE INDEX (inbox_id) WHERE i.id IN (?)`)

	stmtOldCounts = define("archive.counts_drop", `DELETE FROM notice_count WHERE day < ? ORDER BY day LIMIT ?`)
)

// PruneNotices removes windows that closed before then, with their items and notices, among the next limit (at most 900)
// after the id; those with a notice still to be sent, or being sent, stay. Next is where to go on; 0: nothing old follows.
func (s *Store) PruneNotices(ctx context.Context, before time.Time, after uint64, limit int) (pruned int, next uint64, err error) {
	limit = min(max(limit, 1), maxIDs)
	var r removal
	seen, full, fresh := 0, false, false
	err = s.query(ctx, s.sql, stmtOldWindows, func(row *sql.Rows) error {
		var id uint64
		var items int
		var opened time.Time
		var old sql.NullBool
		if err := row.Scan(&id, &items, &opened, &old); err != nil {
			return err
		}
		if full = full || old.Bool && !r.add(id, items); full { // the rest is the next page's
			return nil
		}
		seen++
		next, fresh = id, opened.After(before)
		return nil
	}, before, after, limit)
	if err != nil {
		return 0, 0, err
	}
	if fresh || seen < limit && !full {
		next = 0
	}
	if pruned, err = s.remove(ctx, "prune notices", r, stmtOldWindowsLock, before); err != nil {
		return 0, 0, err
	}
	return pruned, next, nil
}

// PruneInbox removes up to limit (at most 900) of the oldest inbox rows that were written before then, read or not. More
// says that others may be as old.
func (s *Store) PruneInbox(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error) {
	limit = min(max(limit, 1), maxIDs)
	var ids []any
	err = s.query(ctx, s.sql, stmtOldInbox, func(r *sql.Rows) error {
		var id uint64
		var old bool
		if err := r.Scan(&id, &old); err != nil {
			return err
		}
		if old {
			ids = append(ids, id)
		}
		return nil
	}, before, 0, limit)
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	err = s.tx(ctx, "prune inbox", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtOldInboxDrop.in(len(ids)), ids...)
		pruned = int(n)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return pruned, len(ids) == limit, nil
}

// PruneNoticeCounts removes up to limit (at most 900) of the counts of notices on local days before that of the instant. More
// says that others may be as old.
func (s *Store) PruneNoticeCounts(ctx context.Context, before time.Time, limit int) (pruned int, more bool, err error) {
	limit = min(max(limit, 1), maxIDs)
	err = s.tx(ctx, "prune notice counts", func(ctx context.Context, tx *txn) error {
		n, err := s.exec(ctx, tx, stmtOldCounts, before.UTC().Format(time.DateOnly), limit)
		pruned = int(n)
		return err
	})
	if err != nil {
		return 0, false, err
	}
	return pruned, pruned == limit, nil
}
