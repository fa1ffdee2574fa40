package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const settleColumns = `id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, lock_until, order_id, locked_at, observed, UTC_TIMESTAMP(3)`

//nolint:gochecknoglobals // statements are constants
var (
	stmtSettleLock = define("expire.lock", `SELECT `+settleColumns+` FROM coupon WHERE id IN (?) ORDER BY id FOR UPDATE SKIP LOCKED`)
	stmtExists     = define("expire.exists", `SELECT id FROM coupon WHERE id IN (?)`)

	stmtExpireUnused = define("expire.unused", `UPDATE coupon SET status = 4, version = version + 1, expired_at = ?, expire_cause = ?
		WHERE status = 1 AND expires_at <= ? AND id IN (?)`)
	stmtExpireLocked = define("expire.locked", `UPDATE coupon SET status = 4, version = version + 1, expired_at = ?, expire_cause = ?,
		locked_at = NULL, lock_until = NULL, order_id = NULL, late_pay_policy = NULL, late_pay_window = NULL
		WHERE status = 2 AND lock_until <= ? AND expires_at <= ? AND id IN (?)`)
	stmtUnlock = define("expire.unlock", `UPDATE coupon SET status = 1, version = version + 1,
		locked_at = NULL, lock_until = NULL, order_id = NULL, late_pay_policy = NULL, late_pay_window = NULL
		WHERE status = 2 AND lock_until <= ? AND expires_at > ? AND id IN (?)`)
)

// maxIDs bounds an IN list: from about a thousand members on, MariaDB turns it into a subquery and rows are no
// longer locked in id order.
const maxIDs = 900

// ErrBatch: a batch larger than one IN list may hold.
var ErrBatch = errors.New("batch too large")

// settleRow is a locked row of a batch with what its transition will say.
type settleRow struct {
	coupon.Row
	userID   string
	batchID  string
	template uint64
	revision uint32
	lockedAt time.Time // zero unless locked
}

// ExpireBatch settles up to 900 triggers in one transaction: it locks the rows that nobody else holds, lets
// coupon.Decide answer each trigger in order, changes the rows by compare-and-set and records history, events and
// new triggers. It gives one settlement per trigger and the database's clock of the decision. allow is asked, inside
// the transaction, whether that instant may decide; its error rolls everything back (the clock guard). What an operator has
// paused does not expire: its settlement is a drop, coupon.DropPaused.
//
// Errors: coupon.ErrUnavailable and coupon.ErrContention (nothing was done; come again), coupon.ErrIntegrity (one
// of the rows cannot be changed; bisect), or what allow answered.
func (s *Store) ExpireBatch(ctx context.Context, triggers []coupon.Trigger, allow func(now time.Time) error) (now time.Time, out []coupon.Settlement, err error) {
	if len(triggers) > maxIDs {
		return time.Time{}, nil, fmt.Errorf("expire: %w: %d triggers, at most %d", ErrBatch, len(triggers), maxIDs)
	}
	if len(triggers) == 0 {
		return time.Time{}, nil, nil
	}
	brakes, err := s.Brakes(ctx)
	if err != nil {
		return time.Time{}, nil, err
	}
	err = s.tx(ctx, "expire", func(ctx context.Context, tx *txn) error {
		ids := distinct(triggers)
		rows, at, err := s.lockRows(ctx, tx, stmtSettleLock.in(len(ids)), ids...)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			if err := s.queryRow(ctx, tx, stmtNow, []any{&at}); err != nil {
				return err
			}
		}
		if err := allow(at); err != nil {
			return err
		}
		busy, err := s.busyRows(ctx, tx, ids, rows)
		if err != nil {
			return err
		}
		now = at
		out, err = s.settle(ctx, tx, at, triggers, rows, busy, brakes)
		return err
	})
	if err != nil {
		return time.Time{}, nil, err
	}
	return now, out, nil
}

func distinct(triggers []coupon.Trigger) []any {
	ids := make([]uint64, len(triggers))
	for i := range triggers {
		ids[i] = triggers[i].CouponID
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return args
}

// lockRows reads rows that this transaction now holds, by id, and the clock at the statement's start: since it never
// waits for a lock, that is the present.
func (s *Store) lockRows(ctx context.Context, tx *txn, st Statement, args ...any) (map[uint64]*settleRow, time.Time, error) {
	rows := make(map[uint64]*settleRow, len(args))
	var now time.Time
	err := s.query(ctx, tx, st, func(r *sql.Rows) error {
		var row settleRow
		var until, locked sql.NullTime
		var order []byte
		if err := r.Scan(&row.ID, &row.template, &row.revision, &row.batchID, &row.userID, &row.Status, &row.Version,
			&row.ValidFrom, &row.ExpiresAt, &row.DueAt, &until, &order, &locked, &row.Observed, &now); err != nil {
			return err
		}
		row.LockUntil, row.OrderID, row.lockedAt = until.Time, string(order), locked.Time
		rows[row.ID] = &row
		return nil
	}, args...)
	return rows, now, err
}

// busyRows tells the rows that somebody else holds from those that do not exist.
func (s *Store) busyRows(ctx context.Context, tx *txn, ids []any, rows map[uint64]*settleRow) (map[uint64]bool, error) {
	if len(rows) == len(ids) {
		return nil, nil
	}
	missing := make([]any, 0, len(ids)-len(rows))
	for _, id := range ids {
		if _, ok := rows[id.(uint64)]; !ok {
			missing = append(missing, id)
		}
	}
	busy := make(map[uint64]bool, len(missing))
	err := s.query(ctx, tx, stmtExists.in(len(missing)), func(r *sql.Rows) error {
		var id uint64
		if err := r.Scan(&id); err != nil {
			return err
		}
		busy[id] = true
		return nil
	}, missing...)
	return busy, err
}

// change is one UPDATE: the rows that leave one state in one way.
type change struct {
	action coupon.Action
	from   coupon.Status
	cause  coupon.Cause
}

// settle decides, changes and records. The rows are this transaction's; a second trigger of the same coupon meets
// the row as the first one left it.
func (s *Store) settle(ctx context.Context, tx *txn, now time.Time, triggers []coupon.Trigger, rows map[uint64]*settleRow,
	busy map[uint64]bool, brakes *coupon.Pauses,
) ([]coupon.Settlement, error) {
	out := make([]coupon.Settlement, len(triggers))
	changes := make(map[change][]any, 3)
	var ts []coupon.Transition
	var seen []observed
	for i, t := range triggers {
		row := rows[t.CouponID]
		if row == nil && busy[t.CouponID] {
			out[i] = coupon.Settlement{Busy: true}
			continue
		}
		if row == nil {
			out[i] = coupon.Settlement{Decision: coupon.Decide(nil, t, now)}
			continue
		}
		d := coupon.Decide(&row.Row, t, now)
		if d.Action == coupon.Expire && brakes.Coupon(coupon.BrakeExpiry, row.template, row.batchID) {
			d = coupon.Decision{Action: coupon.Drop, Reason: coupon.DropPaused}
		}
		if row.Observed && (d.Action == coupon.Expire || d.Action == coupon.Unlock) {
			seen = append(seen, row.observe(d))
			d = coupon.Decision{Action: coupon.Drop, Reason: coupon.DropObserved}
		}
		out[i] = coupon.Settlement{Decision: d, Ends: row.ExpiresAt}
		if d.Action == coupon.Drop {
			continue
		}
		terms, err := s.termsOf(ctx, tx, row.template, row.revision)
		if err != nil {
			return nil, err
		}
		out[i].Class, out[i].Terms = terms.Precision.Class(), terms
		if d.Action == coupon.Reschedule {
			continue
		}
		key := change{d.Action, row.Status, d.Cause}
		changes[key] = append(changes[key], row.ID)
		out[i].DueAt = row.LockUntil
		if d.Action == coupon.Expire {
			out[i].DueAt = row.Owed()
		}
		ts = append(ts, row.move(d, t, terms, now))
	}
	for key, ids := range changes {
		if err := s.change(ctx, tx, key, now, ids); err != nil {
			return nil, err
		}
	}
	if err := s.observe(ctx, tx, now, seen); err != nil {
		return nil, err
	}
	return out, s.record(ctx, tx, now, ts)
}

// move takes the decided step on the row in hand and describes it.
func (row *settleRow) move(d coupon.Decision, t coupon.Trigger, terms coupon.Terms, now time.Time) coupon.Transition {
	from, until, order := row.Status, row.LockUntil, row.OrderID
	row.Status = coupon.Expired
	if d.Action == coupon.Unlock {
		row.Status = coupon.Unused
	}
	row.Version++
	row.LockUntil, row.OrderID = time.Time{}, ""
	actor, reason := "lapse", ""
	if d.Cause == coupon.CauseAdmin {
		actor, reason = t.Actor, t.Reason
	}
	return coupon.Transition{
		CouponID: row.ID, Version: row.Version, From: from, To: row.Status, Cause: d.Cause, UserID: row.userID, BatchID: row.batchID,
		Terms: terms, ValidFrom: row.ValidFrom, ExpiresAt: row.ExpiresAt, DueAt: row.DueAt, At: now, Actor: actor, Reason: reason,
		OrderID: order, LockUntil: until, Since: row.lockedAt, TriggerID: t.ID, Origin: t.Origin, Trace: t.Trace,
	}
}

// change runs one compare-and-set over many rows. They are locked, so a differing count means that the decision
// and the condition disagree: everything is rolled back and decided again.
func (s *Store) change(ctx context.Context, tx *txn, c change, now time.Time, ids []any) error {
	var st Statement
	var args []any
	switch {
	case c.action == coupon.Unlock:
		st, args = stmtUnlock, []any{now, now}
	case c.from == coupon.Locked:
		st, args = stmtExpireLocked, []any{now, string(c.cause), now, now}
	default:
		st, args = stmtExpireUnused, []any{now, string(c.cause), now}
	}
	n, err := s.exec(ctx, tx, st.in(len(ids)), append(args, ids...)...)
	if err != nil {
		return err
	}
	if n != int64(len(ids)) {
		return fmt.Errorf("%s: %w: %d rows decided, %d changed", st.Name, coupon.ErrContention, len(ids), n)
	}
	return nil
}
