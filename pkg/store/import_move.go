package store

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtImportTouched = define("import.touched", `SELECT DISTINCT coupon_id FROM coupon_history FORCE INDEX (PRIMARY)
		WHERE coupon_id IN (?) AND cause <> 'import'`)
	stmtImportTouchedArchive = define("import.touched_archived", `SELECT DISTINCT coupon_id FROM coupon_history_archive FORCE INDEX (PRIMARY)
		WHERE coupon_id IN (?) AND cause <> 'import'`)
	stmtImportMove = define("import.move", `UPDATE coupon FORCE INDEX (PRIMARY) SET status = ?, version = ?, valid_from = ?, expires_at = ?, due_at = ?,
		granted_at = ?, locked_at = ?, lock_until = ?, order_id = ?, late_pay_policy = ?, late_pay_window = ?, used_at = ?, expired_at = ?, expire_cause = ?,
		observed = ? WHERE id = ? AND status = ? AND version = ?`)
	stmtImportHash = define("import.hash", `UPDATE grant_key SET content_hash = ? WHERE issuer = ? AND grant_key = ?`)
	stmtImportKeys = define("import.keys", `SELECT grant_key, coupon_id FROM grant_key WHERE issuer = ? AND grant_key > ? ORDER BY grant_key LIMIT ?`)
)

func (im *importing) movedIDs() []uint64 {
	ids := make([]uint64, len(im.moved))
	for n, i := range im.moved {
		ids[n] = im.keys[im.rows[i].Key].id
	}
	slices.Sort(ids)
	return ids
}

// importTouched says which coupons something else than an import has moved, ever.
func (s *Store) importTouched(ctx context.Context, q querier, ids []uint64) (map[uint64]bool, error) {
	touched := make(map[uint64]bool)
	for part := range slices.Chunk(ids, maxIDs) {
		args := make([]any, len(part))
		for i, id := range part {
			args[i] = id
		}
		for _, st := range []Statement{stmtImportTouched, stmtImportTouchedArchive} {
			err := s.query(ctx, q, st.in(len(args)), func(r *sql.Rows) error {
				var id uint64
				err := r.Scan(&id)
				touched[id] = true
				return err
			}, args...)
			if err != nil {
				return nil, err
			}
		}
	}
	return touched, nil
}

// judge says what becomes of a row that is known and has changed, and of its coupon c, nil if somebody holds it. True: it is to be moved.
func (im *importing) judge(i int, c *coupon.Coupon, touched map[uint64]bool) bool {
	r, o := &im.rows[i], &im.out[i]
	switch {
	case c == nil:
		o.What = coupon.ImportBusy
		return false
	case c.UserID != r.UserID || c.Terms.TemplateID != r.Template:
		o.What, o.Detail = coupon.ImportRefused, "user_id, template: are not those of its coupon, which keeps them"
		return false
	case touched[c.ID] && agrees(c, r):
		o.What = coupon.ImportSame
		return false
	case touched[c.ID]:
		o.What, o.Detail = coupon.ImportHere, fmt.Sprintf("%s there, %s here", stateOf(r.Status, r.OrderID, r.ExpiresAt), stateOf(c.Status, c.OrderID, c.ExpiresAt))
		return false
	case c.Status == coupon.Voided && r.Status != coupon.Voided:
		o.What, o.Detail = coupon.ImportRefused, "state: was voided, and nothing leads back from there"
		return false
	default:
		o.What = coupon.ImportUpdated
		return true
	}
}

func stateOf(status coupon.Status, order string, ends time.Time) string {
	text := status.String()
	if order != "" {
		text += " by order " + order
	}
	if coupon.IsNever(ends) {
		return text + " without end"
	}
	return text + " with the end " + ends.UTC().Format(time.RFC3339)
}

// agrees reports whether the coupon is what the row says.
func agrees(c *coupon.Coupon, r *coupon.ImportRow) bool {
	order := ""
	if r.Status == coupon.Locked || r.Status == coupon.Used {
		order = r.OrderID
	}
	return c.Status == r.Status && c.ExpiresAt.Equal(r.ExpiresAt) && c.OrderID == order
}

// importMoves moves the coupons of rows that have changed, if only the import has touched them, and gives the steps.
func (s *Store) importMoves(ctx context.Context, tx *txn, im *importing) ([]coupon.Transition, error) {
	if len(im.moved) == 0 {
		return nil, nil
	}
	ids := im.movedIDs()
	touched, err := s.importTouched(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	held, err := s.importHeld(ctx, tx, ids, touched)
	if err != nil {
		return nil, err
	}
	// What moved a coupon while its row was waited for is seen now.
	if touched, err = s.importTouched(ctx, tx, ids); err != nil {
		return nil, err
	}
	var ts []coupon.Transition
	for _, i := range im.moved {
		r := &im.rows[i]
		c := held[im.keys[r.Key].id]
		if im.judge(i, c, touched) {
			steps := im.move(r, c)
			if err := s.importMove(ctx, tx, c, steps); err != nil {
				return nil, err
			}
			ts = append(ts, steps...)
		}
		if what := im.out[i].What; what == coupon.ImportUpdated || what == coupon.ImportSame {
			if _, err := s.exec(ctx, tx, stmtImportHash, bytes.Clone(im.hashes[i][:]), []byte(im.issuer), []byte(r.Key)); err != nil {
				return nil, err
			}
		}
	}
	return ts, nil
}

// importHeld locks those that nobody else holds and reads them; what is archived, and is to be moved, comes back first.
func (s *Store) importHeld(ctx context.Context, tx *txn, ids []uint64, touched map[uint64]bool) (map[uint64]*coupon.Coupon, error) {
	all := make([]any, len(ids))
	for i, id := range ids {
		all[i] = id
	}
	held, err := s.bulkLock(ctx, tx, stmtBulkLock, all)
	if err != nil {
		return nil, err
	}
	out := make(map[uint64]*coupon.Coupon, len(ids))
	if len(held) < len(all) {
		missing := slices.DeleteFunc(slices.Clone(all), func(id any) bool { return slices.Contains(held, id) })
		archived, err := s.bulkLock(ctx, tx, stmtBulkLockArchive, missing)
		if err != nil {
			return nil, err
		}
		for _, id := range archived {
			n, _ := id.(uint64)
			if touched[n] {
				cs, _, err := s.couponsIn(ctx, tx, []uint64{n})
				if err != nil {
					return nil, err
				}
				for i := range cs {
					out[n] = &cs[i]
				}
				continue
			}
			if err := s.unarchive(ctx, tx, n); err != nil {
				return nil, err
			}
			held = append(held, id)
		}
	}
	if len(held) == 0 {
		return out, nil
	}
	cs, _, err := s.coupons(ctx, tx, stmtReadCoupons.in(len(held)), held...)
	if err != nil {
		return nil, err
	}
	for i := range cs {
		out[cs[i].ID] = &cs[i]
	}
	return out, nil
}

// move makes the coupon what the row says, and gives the steps there: what was over becomes unused before an order has it.
func (im *importing) move(r *coupon.ImportRow, c *coupon.Coupon) []coupon.Transition {
	from, ended, lock := c.Status, c.ExpiresAt, c.LockUntil
	since := c.LockedAt
	if from == coupon.Used {
		since = c.UsedAt
	}
	im.take(r, c)
	way := []coupon.Status{c.Status}
	if (from == coupon.Used || from == coupon.Expired) && (c.Status == coupon.Locked || c.Status == coupon.Used && from == coupon.Expired) {
		way = []coupon.Status{coupon.Unused, c.Status}
	}
	ts := make([]coupon.Transition, 0, len(way))
	for n, to := range way {
		c.Version++
		t := im.stepTo(c, to)
		t.From, t.Version = from, c.Version
		if n == 0 {
			t.Since = since
		}
		moved := n == 0 && !ended.Equal(c.ExpiresAt)
		if moved && (to != coupon.Locked || from != coupon.Locked || lock.Equal(c.LockUntil)) { // a lock that moves has a trigger of its own
			t.Previous = ended
		}
		ts = append(ts, t)
		from = to
	}
	return ts
}

// importMove writes a coupon that is held.
func (s *Store) importMove(ctx context.Context, tx *txn, c *coupon.Coupon, steps []coupon.Transition) error {
	n, err := s.exec(ctx, tx, stmtImportMove, append(importArgs(c), c.ID, uint8(steps[0].From), steps[0].Version-1)...)
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: %w: 1 row decided, %d changed", stmtImportMove.Name, coupon.ErrContention, n)
	}
	return err
}
