package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	rowColumns = `id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
		locked_at, lock_until, order_id, late_pay_policy, late_pay_window, used_at, expired_at, expire_cause, observed`
	pastColumns = `coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin,
		trace, lock_until, previous`
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtArchiveRead = define("archive.read", `SELECT `+actColumns+` FROM coupon_archive c
		LEFT JOIN order_tombstone t ON t.coupon_id = c.id AND t.order_id = ? WHERE c.id IN (?)`)
	stmtArchiveLock = define("archive.lock", `SELECT id FROM coupon_archive FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtArchiveLive = define("archive.live", `SELECT COUNT(*) FROM coupon WHERE id IN (?)`)

	stmtUnarchive        = define("archive.back", `INSERT INTO coupon (`+rowColumns+`) SELECT `+rowColumns+` FROM coupon_archive WHERE id = ?`)
	stmtUnarchiveHistory = define("archive.back_history", `INSERT INTO coupon_history (`+pastColumns+`)
		SELECT `+pastColumns+` FROM coupon_history_archive WHERE coupon_id = ?`)
	stmtArchiveDrop        = define("archive.drop", `DELETE FROM coupon_archive WHERE id = ?`)
	stmtArchiveDropHistory = define("archive.drop_history", `DELETE FROM coupon_history_archive WHERE coupon_id = ?`)
)

// actArchived looks in the archive for the coupons that the table does not have, and holds their rows there: a coupon
// is in one of the two, and whoever moves one holds its row. Whoever waited for that looks again.
func (s *Store) actArchived(ctx context.Context, tx *txn, a *act, ids []any) error {
	missing := make([]any, 0, len(ids))
	for _, id := range a.CouponIDs {
		if a.rows[id] == nil {
			missing = append(missing, id)
		}
	}
	held := 0
	err := s.query(ctx, tx, stmtArchiveLock.in(len(missing)), func(r *sql.Rows) error {
		held++
		var id uint64
		return r.Scan(&id)
	}, missing...)
	if err != nil {
		return err
	}
	if held > 0 {
		if err := s.actRead(ctx, tx, a, stmtArchiveRead, true, missing); err != nil {
			return err
		}
	}
	if held < len(missing) {
		live := 0
		if err := s.queryRow(ctx, tx, stmtArchiveLive.in(len(missing)), []any{&live}, missing...); err != nil {
			return err
		}
		if live > 0 {
			return fmt.Errorf("%d coupons came from the archive meanwhile: %w", live, coupon.ErrContention)
		}
	}
	if a.now.IsZero() {
		return s.queryRow(ctx, tx, stmtNow, []any{&a.now})
	}
	return nil
}

// unarchive brings a coupon that is about to change back into the table, with its history. Its row is held.
func (s *Store) unarchive(ctx context.Context, tx *txn, id uint64) error {
	if err := s.seedArchived(ctx, tx, id); err != nil {
		return err
	}
	for _, st := range []Statement{stmtUnarchive, stmtUnarchiveHistory, stmtArchiveDropHistory, stmtArchiveDrop} {
		n, err := s.exec(ctx, tx, st, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%s: %w: nothing of coupon %d is there", st.Name, coupon.ErrIntegrity, id)
		}
	}
	return nil
}
