package store

import (
	"context"
	"database/sql"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Whoever removes windows locks them by their primary key, as those who collect and close do. One that has more items than one
// transaction should remove goes in steps: from the first on it is closed and has no notices, so that nobody is told of what is
// left, and its row stays to the last, so that what a pod leaves unfinished is found again.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtRemoveLock = define("remove.lock", `SELECT id FROM notice_window FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtRemoveSeal = define("remove.seal", `UPDATE notice_window SET closed_by = IF(closed_at IS NULL, ?, closed_by),
		closed_at = COALESCE(closed_at, UTC_TIMESTAMP(3)), open_mark = NULL, due_at = '9999-12-31', ends_at = NULL WHERE id = ?`)
	stmtRemovePart    = define("remove.part", `DELETE FROM notice_item WHERE window_id = ? ORDER BY window_id, event_id LIMIT ?`)
	stmtRemoveItems   = define("remove.items", `DELETE i FROM notice_item i FORCE INDEX (PRIMARY) WHERE i.window_id IN (?)`)
	stmtRemoveNotices = define("remove.notices", `DELETE n FROM notice n FORCE INDEX (PRIMARY) WHERE n.window_id IN (?)`)
	stmtRemoveWindows = define("remove.windows", `DELETE w FROM notice_window w FORCE INDEX (PRIMARY) WHERE w.id IN (?)`)
)

const removeItems = 5000 // items that one transaction removes at most

// removal gathers windows that one transaction can remove: those of removeItems items together, or one that has more.
type removal struct {
	ids   []any
	items int
}

// add takes the window in; false: there is no room.
func (r *removal) add(id uint64, items int) bool {
	if len(r.ids) > 0 && r.items+items > removeItems {
		return false
	}
	r.ids, r.items = append(r.ids, id), r.items+items
	return true
}

// remove removes the windows that lock finds of them, and gives their number.
func (s *Store) remove(ctx context.Context, name string, r removal, lock Statement, args ...any) (removed int, err error) {
	if len(r.ids) == 0 {
		return 0, nil
	}
	for {
		more := false
		err := s.tx(ctx, name, func(ctx context.Context, tx *txn) error {
			more = false
			var held []any
			err := s.query(ctx, tx, lock.in(len(r.ids)), func(row *sql.Rows) error {
				var id uint64
				err := row.Scan(&id)
				held = append(held, id)
				return err
			}, append(args[:len(args):len(args)], r.ids...)...)
			if removed = len(held); err != nil || removed == 0 {
				return err
			}
			if r.items > removeItems {
				if _, err := s.exec(ctx, tx, stmtRemoveSeal, coupon.ClosedByRemoval, held[0]); err != nil {
					return err
				}
				n, err := s.exec(ctx, tx, stmtRemovePart, held[0], removeItems)
				if err != nil {
					return err
				}
				more = n == removeItems
			} else if _, err := s.exec(ctx, tx, stmtRemoveItems.in(len(held)), held...); err != nil {
				return err
			}
			if _, err := s.exec(ctx, tx, stmtRemoveNotices.in(len(held)), held...); err != nil || more {
				return err
			}
			_, err = s.exec(ctx, tx, stmtRemoveWindows.in(len(held)), held...)
			return err
		})
		if err != nil || !more {
			return removed, err
		}
	}
}
