package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtBulkLock        = define("bulk.lock", `SELECT id FROM coupon FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE SKIP LOCKED`)
	stmtBulkLockArchive = define("bulk.lock_archived", `SELECT id FROM coupon_archive FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE SKIP LOCKED`)
	stmtBulkExists      = define("bulk.exists", `SELECT id FROM coupon_archive WHERE id IN (?)`)
	stmtBulkMarked      = define("bulk.marked", `SELECT DISTINCT coupon_id FROM coupon_history FORCE INDEX (PRIMARY) WHERE coupon_id IN (?) AND trigger_id = ?`)

	// The offset from the end to the due instant stays, and is written before the end that it is computed from.
	stmtBulkExtend = define("bulk.extend", `UPDATE coupon FORCE INDEX (PRIMARY) SET
		due_at = TIMESTAMPADD(MICROSECOND, TIMESTAMPDIFF(MICROSECOND, expires_at, due_at), CAST(? AS DATETIME(3))), expires_at = ?, version = version + 1
		WHERE status = 1 AND expires_at > ? AND expires_at < '9999-12-31' AND id IN (?)`)
	stmtBulkVoid = define("bulk.void", `UPDATE coupon FORCE INDEX (PRIMARY) SET status = 5, version = version + 1
		WHERE status = 1 AND expires_at > ? AND id IN (?)`)
	stmtBulkReinstate = define("bulk.reinstate", `UPDATE coupon FORCE INDEX (PRIMARY) SET
		due_at = TIMESTAMPADD(MICROSECOND, TIMESTAMPDIFF(MICROSECOND, expires_at, due_at), CAST(? AS DATETIME(3))), expires_at = ?,
		status = 1, version = version + 1, expired_at = NULL, expire_cause = NULL WHERE status = 4 AND expires_at < ? AND id IN (?)`)
)

// mark is what the history of a change says instead of a trigger: the operation that made it.
func mark(operation uint64) string { return "operation." + strconv.FormatUint(operation, 10) }

// BulkBatch does what is asked to up to 900 coupons, in one transaction with the progress of the operation, and gives what became of each, and
// the progress. Rows that somebody else holds are not waited for (coupon.BulkBusy, which counts nowhere). With again, coupons that the operation has changed
// before are left alone and not counted.
//
// Errors: coupon.ErrUnavailable, ErrContention and ErrIntegrity, after which nothing has moved; coupon.ErrConflict when another process has
// taken the operation over.
func (s *Store) BulkBatch(ctx context.Context, h coupon.OperationHold, ask *coupon.BulkAsk, ids []uint64, again bool) (
	out []coupon.BulkOutcome, p coupon.BulkProgress, err error,
) {
	if len(ids) == 0 || len(ids) > maxIDs {
		return nil, nil, fmt.Errorf("bulk: %w: %d coupons, 1 to %d", ErrBatch, len(ids), maxIDs)
	}
	brakes, err := s.Brakes(ctx)
	if err != nil {
		return nil, nil, err
	}
	ids = slices.Sorted(slices.Values(ids))
	err = s.tx(ctx, "bulk", func(ctx context.Context, tx *txn) error {
		b := &bulk{ask: ask, mark: mark(h.ID), act: act{
			Order:  coupon.Order{Verb: ask.Verb, BreakLock: ask.BreakLocks, Actor: ask.Actor, Reason: ask.Reason},
			brakes: brakes, rows: make(map[uint64]*actRow, len(ids)),
		}}
		var err error
		if p, err = s.bulkProgress(ctx, tx, h); err != nil {
			return err
		}
		if err := s.bulkIn(ctx, tx, b, ids, again); err != nil {
			return err
		}
		out = b.results
		for _, o := range b.results {
			if o.What != coupon.BulkBusy && o.What != "" {
				p.Add(o.What, &o.Terms)
			}
		}
		progress, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("bulk: progress: %w", err)
		}
		return s.moveOperation(ctx, tx, h, progress, false)
	})
	if err != nil {
		return nil, nil, err
	}
	return out, p, nil
}

// bulkProgress reads how far the operation has come, and keeps whoever would take it over out until the transaction ends.
func (s *Store) bulkProgress(ctx context.Context, tx *txn, h coupon.OperationHold) (coupon.BulkProgress, error) {
	p := coupon.BulkProgress{}
	var text []byte
	err := s.queryRow(ctx, tx, stmtOperationHold, []any{&text}, h.ID, []byte(h.Owner), h.Epoch)
	switch {
	case errors.Is(err, coupon.ErrNotFound):
		return p, errOperationLost
	case err != nil || len(text) == 0:
		return p, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("bulk: progress: %w", err)
	}
	return p, nil
}

// bulk is the work of one transaction.
type bulk struct {
	act
	ask     *coupon.BulkAsk
	mark    string
	results []coupon.BulkOutcome
}

func (s *Store) bulkIn(ctx context.Context, tx *txn, b *bulk, ids []uint64, again bool) error {
	busy, err := s.bulkRows(ctx, tx, b, ids)
	if err != nil {
		return err
	}
	before := map[uint64]bool{}
	if again {
		if before, err = s.bulkMarked(ctx, tx, b, ids); err != nil {
			return err
		}
	}
	moves := map[bulkMove][]any{}
	for _, id := range ids {
		row := b.rows[id]
		switch {
		case busy[id]:
			b.results = append(b.results, coupon.BulkOutcome{ID: id, What: coupon.BulkBusy})
		case row == nil:
			b.results = append(b.results, coupon.BulkOutcome{ID: id, What: string(coupon.CodeNotFound)})
		case before[id]:
			b.results = append(b.results, coupon.BulkOutcome{ID: id})
		default:
			if err := s.bulkOne(ctx, tx, b, row, moves); err != nil {
				return err
			}
		}
	}
	for m, ids := range moves {
		if err := s.bulkMoves(ctx, tx, b, m, ids); err != nil {
			return err
		}
	}
	return s.record(ctx, tx, b.now, b.ts)
}

// bulkOne decides about a coupon and takes its steps: at once, or with the others that take the same.
func (s *Store) bulkOne(ctx context.Context, tx *txn, b *bulk, row *actRow, moves map[bulkMove][]any) error {
	asked := b.ask.Of(&row.Row)
	v := coupon.Apply(row.Row, asked, b.now)
	o := coupon.BulkOutcome{ID: row.ID, What: coupon.BulkChange, Terms: row.Terms}
	switch {
	case v.Refused != "":
		o.What = string(v.Refused)
	case v.Repeat:
		o.What = coupon.BulkRepeat
	}
	b.results = append(b.results, o)
	if len(v.Steps) == 0 {
		return nil
	}
	if row.Archived {
		if err := s.unarchive(ctx, tx, row.ID); err != nil {
			return err
		}
		row.Archived = false
	}
	before := row.Coupon
	ts := row.Take(v.Steps, &b.Order, b.now)
	for i := range ts {
		ts[i].TriggerID = b.mark
	}
	b.ts = append(b.ts, ts...)
	m := bulkMove{from: before.Status, to: row.Status, ends: row.ExpiresAt}
	if len(ts) == 1 && m.plain(&before) {
		moves[m] = append(moves[m], row.ID)
		return nil
	}
	return s.actMove(ctx, tx, &before, &row.Coupon)
}

// bulkMove is one UPDATE: rows that take the same step, to the same end.
type bulkMove struct {
	from, to coupon.Status
	ends     time.Time
}

// plain reports whether an UPDATE of many can do it.
func (m bulkMove) plain(before *coupon.Coupon) bool {
	if m.to == coupon.Voided {
		return m.from == coupon.Unused
	}
	return m.to == coupon.Unused && (m.from == coupon.Unused || m.from == coupon.Expired) && !coupon.IsNever(m.ends) && !coupon.IsNever(before.ExpiresAt)
}

func (s *Store) bulkMoves(ctx context.Context, tx *txn, b *bulk, m bulkMove, ids []any) error {
	var st Statement
	var args []any
	switch {
	case m.to == coupon.Voided:
		st, args = stmtBulkVoid, []any{b.now}
	case m.from == coupon.Expired:
		st, args = stmtBulkReinstate, []any{m.ends, m.ends, m.ends}
	default:
		st, args = stmtBulkExtend, []any{m.ends, m.ends, b.now}
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

// bulkRows locks what nobody else holds, reads it, and says what is held.
func (s *Store) bulkRows(ctx context.Context, tx *txn, b *bulk, ids []uint64) (busy map[uint64]bool, err error) {
	all := make([]any, len(ids))
	for i, id := range ids {
		all[i] = id
	}
	held, err := s.bulkLock(ctx, tx, stmtBulkLock, all)
	if err != nil {
		return nil, err
	}
	if len(held) > 0 {
		if err := s.actRead(ctx, tx, &b.act, stmtActRead, false, held); err != nil {
			return nil, err
		}
	}
	found := func(id any) bool {
		n, ok := id.(uint64)
		return ok && b.rows[n] != nil
	}
	missing := slices.DeleteFunc(slices.Clone(all), found)
	if b.now.IsZero() {
		if err := s.queryRow(ctx, tx, stmtNow, []any{&b.now}); err != nil {
			return nil, err
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	if held, err = s.bulkLock(ctx, tx, stmtBulkLockArchive, missing); err != nil {
		return nil, err
	}
	if len(held) > 0 {
		if err := s.actRead(ctx, tx, &b.act, stmtArchiveRead, true, held); err != nil {
			return nil, err
		}
	}
	// What moves between the two is held in the meantime, so it is found in one of them, or the batch meets it again.
	missing = slices.DeleteFunc(missing, found)
	busy = map[uint64]bool{}
	if len(missing) == 0 {
		return busy, nil
	}
	for _, st := range []Statement{stmtExists, stmtBulkExists} {
		there, err := s.bulkLock(ctx, tx, st, missing)
		if err != nil {
			return nil, err
		}
		for _, id := range there {
			if n, ok := id.(uint64); ok {
				busy[n] = true
			}
		}
	}
	return busy, nil
}

// bulkLock gives the ids that a statement gives of some.
func (s *Store) bulkLock(ctx context.Context, tx *txn, st Statement, ids []any) ([]any, error) {
	var held []any
	err := s.query(ctx, tx, st.in(len(ids)), func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		held = append(held, id)
		return err
	}, ids...)
	return held, err
}

// bulkMarked says which coupons the operation has changed before.
func (s *Store) bulkMarked(ctx context.Context, tx *txn, b *bulk, ids []uint64) (map[uint64]bool, error) {
	args := make([]any, len(ids), len(ids)+1)
	for i, id := range ids {
		args[i] = id
	}
	before := map[uint64]bool{}
	err := s.query(ctx, tx, stmtBulkMarked.in(len(ids)), func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		before[id] = true
		return err
	}, append(args, b.mark)...)
	return before, err
}
