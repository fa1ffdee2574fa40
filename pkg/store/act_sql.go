package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const actColumns = `c.id, c.template_id, c.revision, c.batch_id, c.user_id, c.status, c.version, c.valid_from, c.expires_at, c.due_at,
		c.granted_at, c.locked_at, c.lock_until, c.order_id, c.late_pay_policy, c.late_pay_window, c.used_at, c.expired_at, c.expire_cause,
		c.observed, t.closed, t.refunded, UTC_TIMESTAMP(3)`

// Without FORCE INDEX a server may read a small table from its beginning, and wait for rows that nobody asked for.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtActLock = define("act.lock", `SELECT id FROM coupon FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtActRead = define("act.read", `SELECT `+actColumns+` FROM coupon c
		LEFT JOIN order_tombstone t ON t.coupon_id = c.id AND t.order_id = ? WHERE c.id IN (?)`)
	stmtActPast = define("act.past", `SELECT coupon_id, from_status, to_status, cause FROM coupon_history
		WHERE order_id = ? AND coupon_id IN (?) ORDER BY coupon_id, version`)
	stmtActPastArchive = define("act.past_archive", `SELECT coupon_id, from_status, to_status, cause FROM coupon_history_archive
		WHERE order_id = ? AND coupon_id IN (?) ORDER BY coupon_id, version`)

	// The compare-and-set of every verb: it repeats all that the decision rests on.
	stmtActMove = define("act.move", `UPDATE coupon FORCE INDEX (PRIMARY) SET status = ?, version = ?, expires_at = ?, due_at = ?, locked_at = ?, lock_until = ?,
		order_id = ?, late_pay_policy = ?, late_pay_window = ?, used_at = ?, expired_at = ?, expire_cause = ?
		WHERE id = ? AND status = ? AND version = ? AND user_id = ? AND expires_at = ? AND COALESCE(order_id,'') = ? AND lock_until <=> ?`)
)

// actRows locks the rows, waiting, and then reads them with the clock.
func (s *Store) actRows(ctx context.Context, tx *txn, a *act) error {
	ids := make([]any, len(a.CouponIDs))
	for i, id := range a.CouponIDs {
		ids[i] = id
	}
	held := 0
	err := s.query(ctx, tx, stmtActLock.in(len(ids)), func(r *sql.Rows) error {
		held++
		var id uint64
		return r.Scan(&id)
	}, ids...)
	if err != nil {
		return err
	}
	if held > 0 {
		if err := s.actRead(ctx, tx, a, stmtActRead, false, ids); err != nil {
			return err
		}
	}
	if held < len(ids) {
		return s.actArchived(ctx, tx, a, ids)
	}
	return nil
}

// actRead reads rows of the table, or of the archive.
func (s *Store) actRead(ctx context.Context, tx *txn, a *act, st Statement, archived bool, ids []any) error {
	args := append([]any{[]byte(a.OrderID)}, ids...)
	var read []*actRow
	believe := s.beginClock()
	err := s.query(ctx, tx, st.in(len(ids)), func(r *sql.Rows) error {
		row := &actRow{}
		row.Archived = archived
		if err := row.scan(r, &a.now); err != nil {
			return err
		}
		read = append(read, row)
		return nil
	}, args...)
	if err != nil {
		return err
	}
	doubt := len(read) > 0 && believe(a.now) != nil
	for _, row := range read {
		terms, err := s.termsOf(ctx, tx, row.Terms.TemplateID, row.Terms.Revision)
		if err != nil {
			return err
		}
		row.Terms = terms
		if row.LatePay == "" {
			row.LatePay, row.LateWindow = terms.LatePay, terms.LateWindow
		}
		row.ask = a.Ask()
		row.ask.Closed, row.ask.Refunded = row.closed, row.refunded
		row.ask.Doubt = doubt || a.brakes.Coupon(coupon.BrakeExpiry, row.Terms.TemplateID, row.BatchID)
		a.rows[row.ID] = row
	}
	return nil
}

func (r *actRow) scan(rows *sql.Rows, now *time.Time) error {
	var lockedAt, lockUntil, usedAt, expiredAt sql.NullTime
	var order []byte
	var late, cause sql.NullString
	var window sql.NullInt64
	var closed, refunded sql.NullBool
	if err := rows.Scan(&r.ID, &r.Terms.TemplateID, &r.Terms.Revision, &r.BatchID, &r.UserID, &r.Status, &r.Version, &r.ValidFrom, &r.ExpiresAt,
		&r.DueAt, &r.GrantedAt, &lockedAt, &lockUntil, &order, &late, &window, &usedAt, &expiredAt, &cause,
		&r.Observed, &closed, &refunded, now); err != nil {
		return err
	}
	r.LockedAt, r.LockUntil, r.UsedAt, r.ExpiredAt = lockedAt.Time, lockUntil.Time, usedAt.Time, expiredAt.Time
	r.OrderID, r.Cause = string(order), coupon.Cause(cause.String)
	if r.Status == coupon.Locked && late.Valid && window.Valid {
		r.LatePay, r.LateWindow = coupon.LatePay(late.String), time.Duration(window.Int64)*time.Second
	}
	r.closed, r.refunded = closed.Bool, refunded.Bool
	return nil
}

// actPast asks history about those coupons alone whose answer may depend on it.
func (s *Store) actPast(ctx context.Context, tx *txn, a *act) error {
	var live, archived []any
	for _, id := range a.CouponIDs {
		switch row := a.rows[id]; {
		case row == nil || !row.ask.AsksPast(&row.Row):
		case row.Archived:
			archived = append(archived, id)
		default:
			live = append(live, id)
		}
	}
	for st, ids := range map[*Statement][]any{&stmtActPast: live, &stmtActPastArchive: archived} {
		if len(ids) == 0 {
			continue
		}
		err := s.query(ctx, tx, st.in(len(ids)), func(r *sql.Rows) error {
			var id uint64
			var from, to coupon.Status
			var cause coupon.Cause
			if err := r.Scan(&id, &from, &to, &cause); err != nil {
				return err
			}
			a.rows[id].ask.Remember(from, to, cause)
			return nil
		}, slices.Concat([]any{[]byte(a.OrderID)}, ids)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// actMove changes a row from what it was to what it is. It is locked, so that it does not match means that decision and
// condition disagree: everything is rolled back and decided again.
func (s *Store) actMove(ctx context.Context, tx *txn, was, is *coupon.Coupon) error {
	var late, window, order, cause any
	if is.Status == coupon.Locked {
		late, window = string(is.LatePay), int64(is.LateWindow/time.Second)
	}
	if is.OrderID != "" {
		order = []byte(is.OrderID)
	}
	if is.Cause != "" {
		cause = string(is.Cause)
	}
	n, err := s.exec(ctx, tx, stmtActMove,
		uint8(is.Status), is.Version, is.ExpiresAt, is.DueAt, instantOrNull(is.LockedAt), instantOrNull(is.LockUntil),
		order, late, window, instantOrNull(is.UsedAt), instantOrNull(is.ExpiredAt), cause,
		was.ID, uint8(was.Status), was.Version, []byte(was.UserID), was.ExpiresAt, []byte(was.OrderID), instantOrNull(was.LockUntil))
	if err != nil {
		return err
	}
	if n != 1 {
		return fmt.Errorf("%s: %w: 1 row decided, %d changed", stmtActMove.Name, coupon.ErrContention, n)
	}
	return nil
}
