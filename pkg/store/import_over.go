package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtImportMode = define("import.mode", `UPDATE import_source SET observe = ?, updated_at = UTC_TIMESTAMP(3) WHERE name = ?`)
	// The last step of its history has the two instants that observing moved.
	stmtImportReal = define("import.real", `UPDATE coupon c FORCE INDEX (PRIMARY) JOIN coupon_history h ON h.coupon_id = c.id AND h.version = c.version
		SET c.observed = 0, c.due_at = h.due_at, c.lock_until = IF(c.status = 2, h.lock_until, c.lock_until) WHERE c.observed = 1 AND c.id IN (?)`)
	stmtImportRealArchive    = define("import.real_archived", `UPDATE coupon_archive SET observed = 0 WHERE observed = 1 AND id IN (?)`)
	stmtImportForget         = define("import.forget", `DELETE FROM observation WHERE coupon_id IN (?)`)
	stmtImportObserve        = define("import.observe", `UPDATE coupon FORCE INDEX (PRIMARY) SET observed = 1 WHERE observed = 0 AND id IN (?)`)
	stmtImportObserveArchive = define("import.observe_archived", `UPDATE coupon_archive SET observed = 1 WHERE observed = 0 AND id IN (?)`)
	stmtImportDecided        = define("import.decided", `SELECT coupon_id, due_at, decided_at FROM observation WHERE coupon_id IN (?) AND decision = 'expire' ORDER BY coupon_id, due_at`)
)

// SetImportMode says whether an import's coupons are observed: from then on by every batch of it; its coupons follow by ImportOver or ImportBack.
// coupon.ErrNotFound when there is no such import.
func (s *Store) SetImportMode(ctx context.Context, name string, observe bool) error {
	if _, err := s.Import(ctx, name); err != nil {
		return err
	}
	_, err := s.exec(ctx, s.sql, stmtImportMode, observe, []byte(name))
	return err
}

// ImportOver makes the observed coupons of an import real, those of up to limit keys behind the place of the operation's progress: the
// sweep, readers, verbs and reminders find them from the commit on, and those whose end or lock has been decided upon ring at once. With
// notices the reminders are told of that a verb would tell of. What was decided meanwhile is forgotten.
func (s *Store) ImportOver(ctx context.Context, h coupon.OperationHold, name string, notices bool, limit int) (p coupon.ImportProgress, err error) {
	err = s.importWalk(ctx, h, name, limit, &p, func(ctx context.Context, tx *txn, ids []any) (int64, error) {
		before, now, err := s.coupons(ctx, tx, stmtReadCoupons.in(len(ids)), ids...)
		if err != nil {
			return 0, err
		}
		n, err := s.exec(ctx, tx, stmtImportReal.in(len(ids)), ids...)
		if err != nil {
			return 0, err
		}
		archived, err := s.exec(ctx, tx, stmtImportRealArchive.in(len(ids)), ids...)
		if err != nil {
			return 0, err
		}
		if _, err := s.exec(ctx, tx, stmtImportForget.in(len(ids)), ids...); err != nil {
			return 0, err
		}
		if len(before) == 0 {
			return n + archived, nil
		}
		after, _, err := s.coupons(ctx, tx, stmtReadCoupons.in(len(ids)), ids...)
		if err != nil {
			return 0, err
		}
		decided := make(map[uint64]bool, len(before))
		for i := range before {
			c := &before[i]
			decided[c.ID] = c.Observed && (coupon.IsNever(c.DueAt) && !coupon.IsNever(c.ExpiresAt) || c.Status == coupon.Locked)
		}
		var ts []coupon.Transition
		rings := make(map[uint64]bool)
		for i := range after {
			c := &after[i]
			if rings[c.ID] = decided[c.ID]; !decided[c.ID] && !notices || c.Status != coupon.Unused && c.Status != coupon.Locked {
				continue
			}
			ts = append(ts, coupon.Transition{
				CouponID: c.ID, Version: c.Version, From: c.Status, To: c.Status, UserID: c.UserID, BatchID: c.BatchID, Terms: c.Terms,
				ExpiresAt: c.ExpiresAt, DueAt: c.DueAt, LockUntil: c.LockUntil, At: now,
			})
		}
		rows, reminders, err := s.aheadRows(ctx, tx, now, ts)
		if err != nil {
			return 0, err
		}
		rows = slices.DeleteFunc(rows, func(r outboxRow) bool { return !rings[r.couponID] })
		if notices {
			rows = append(rows, reminders...)
		}
		return n + archived, s.writeOutbox(ctx, tx, rows)
	})
	return p, err
}

// ImportBack gives an import's coupons back to the other system, those of up to limit keys: they are observed again, as they are.
// moved are those that something else than the import has moved meanwhile: the other system does not know of that.
func (s *Store) ImportBack(ctx context.Context, h coupon.OperationHold, name string, limit int) (moved []coupon.ImportMoved, p coupon.ImportProgress, err error) {
	err = s.importWalk(ctx, h, name, limit, &p, func(ctx context.Context, tx *txn, ids []any) (int64, error) {
		n, err := s.exec(ctx, tx, stmtImportObserve.in(len(ids)), ids...)
		if err != nil {
			return 0, err
		}
		archived, err := s.exec(ctx, tx, stmtImportObserveArchive.in(len(ids)), ids...)
		return n + archived, err
	}, func(ctx context.Context, tx *txn, keys []string, ids []uint64) error {
		moved = nil
		touched, err := s.importTouched(ctx, tx, ids)
		if err != nil || len(touched) == 0 {
			return err
		}
		var of []uint64
		names := make(map[uint64]string, len(touched))
		for i, id := range ids {
			if touched[id] {
				of, names[id] = append(of, id), keys[i]
			}
		}
		cs, _, err := s.couponsIn(ctx, tx, of)
		for _, c := range cs {
			moved = append(moved, coupon.ImportMoved{Key: names[c.ID], Coupon: c})
		}
		return err
	})
	return moved, p, err
}

// importWalk does something to the coupons of the next keys, in one transaction with the progress.
func (s *Store) importWalk(ctx context.Context, h coupon.OperationHold, name string, limit int, p *coupon.ImportProgress,
	do func(ctx context.Context, tx *txn, ids []any) (int64, error), then ...func(ctx context.Context, tx *txn, keys []string, ids []uint64) error,
) error {
	limit = min(max(limit, 1), MaxImport)
	return s.tx(ctx, "import walk", func(ctx context.Context, tx *txn) error {
		*p = coupon.ImportProgress{}
		if err := s.operationProgress(ctx, tx, h, p); err != nil {
			return err
		}
		keys, ids, err := s.importKeys(ctx, tx, coupon.ImportIssuer(name), p.Place, limit)
		if err != nil {
			return err
		}
		if p.Done = len(keys) < limit; len(keys) > 0 {
			p.Place = keys[len(keys)-1]
			sorted := slices.Sorted(slices.Values(ids))
			all := make([]any, len(sorted))
			for i, id := range sorted {
				all[i] = id
			}
			// Held in the order of ids, as everybody does.
			if err := s.query(ctx, tx, stmtActLock.in(len(all)), func(r *sql.Rows) error {
				var id uint64
				return r.Scan(&id)
			}, all...); err != nil {
				return err
			}
			n, err := do(ctx, tx, all)
			if err != nil {
				return err
			}
			p.Rows += n
			for _, f := range then {
				if err := f(ctx, tx, keys, ids); err != nil {
					return err
				}
			}
		}
		progress, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("import: progress: %w", err)
		}
		return s.moveOperation(ctx, tx, h, progress, false)
	})
}

// Imported gives the coupons that an import made of up to 900 keys, by the keys, with what was decided of their ends.
func (s *Store) Imported(ctx context.Context, name string, keys []string) (map[string]coupon.Imported, error) {
	if len(keys) > maxIDs {
		return nil, fmt.Errorf("imported: %w: %d keys, at most %d", ErrBatch, len(keys), maxIDs)
	}
	out := make(map[string]coupon.Imported, len(keys))
	if len(keys) == 0 {
		return out, nil
	}
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		asked := make([]grantKey, len(keys))
		for i, k := range keys {
			asked[i] = grantKey{coupon.ImportIssuer(name), k}
		}
		of := make(map[uint64]*coupon.Imported, len(keys))
		var ids []uint64
		err := s.eachKey(ctx, q, asked, func(k grantKey, id uint64, hash []byte) {
			c := &coupon.Imported{Key: k.key}
			copy(c.Hash[:], hash)
			of[id], ids = c, append(ids, id)
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		cs, _, err := s.couponsIn(ctx, q, ids)
		if err != nil {
			return err
		}
		for i := range cs {
			of[cs[i].ID].Coupon = cs[i]
		}
		args := make([]any, len(ids))
		for i, id := range ids {
			args[i] = id
		}
		if err := s.query(ctx, q, stmtImportDecided.in(len(args)), func(r *sql.Rows) error {
			var id uint64
			var o coupon.Imported
			if err := r.Scan(&id, &o.DueAt, &o.At); err != nil {
				return err
			}
			c := of[id]
			if o.DueAt.Before(c.ExpiresAt) {
				return nil // the end was moved since: it is decided upon again
			}
			c.Decided, c.DueAt, c.At = true, o.DueAt, o.At
			return nil
		}, args...); err != nil {
			return err
		}
		for _, c := range of {
			out[c.Key] = *c
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("imported: %w", err)
	}
	return out, nil
}
