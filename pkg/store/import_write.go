package store

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtImportCoupon = define("import.coupon", `INSERT INTO coupon
		(template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, locked_at, lock_until, order_id,
		late_pay_policy, late_pay_window, used_at, expired_at, expire_cause, observed) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`)
	stmtImportIDs   = define("import.ids", `SELECT id, user_id FROM coupon FORCE INDEX (PRIMARY) WHERE id >= ? AND id <= ? ORDER BY id`)
	stmtImportTaken = define("import.taken", `UPDATE template_stock SET taken = taken + ? WHERE template_id = ?`)
)

const importColumns = 19

// importArgs are the columns of a coupon from status on, in the order of stmtImportCoupon.
func importArgs(c *coupon.Coupon) []any {
	var late, window, order, cause any
	if c.Status == coupon.Locked {
		late, window = string(c.Terms.LatePay), int64(c.Terms.LateWindow/time.Second)
	}
	if c.OrderID != "" {
		order = []byte(c.OrderID)
	}
	if c.Cause != "" {
		cause = string(c.Cause)
	}
	return []any{
		uint8(c.Status), c.Version, c.ValidFrom, c.ExpiresAt, c.DueAt, c.GrantedAt, instantOrNull(c.LockedAt), instantOrNull(c.LockUntil), order,
		late, window, instantOrNull(c.UsedAt), instantOrNull(c.ExpiredAt), cause, c.Observed,
	}
}

// importMade makes the coupons of rows that are new, with their keys, and gives their steps.
func (s *Store) importMade(ctx context.Context, tx *txn, im *importing) ([]coupon.Transition, error) {
	var ts []coupon.Transition
	for part := range slices.Chunk(im.fresh, insertRows) {
		cs := make([]coupon.Coupon, len(part))
		args := make([]any, 0, importColumns*len(part))
		for n, i := range part {
			r, c := &im.rows[i], &cs[n]
			c.Terms, c.UserID, c.BatchID = im.stock[r.Template].Terms, r.UserID, im.ask.Batch
			im.take(r, c)
			if c.Version = 1; c.Status != coupon.Unused {
				c.Version = 2
			}
			args = append(args, c.Terms.TemplateID, c.Terms.Revision, []byte(c.BatchID), []byte(c.UserID))
			args = append(args, importArgs(c)...)
		}
		first, err := s.insertID(ctx, tx, stmtImportCoupon.rows(len(part)), args...)
		if err != nil {
			return nil, err
		}
		for n, i := range part {
			cs[n].ID = first + uint64(n)*im.step
			im.out[i].CouponID = cs[n].ID
		}
		if err := s.importProve(ctx, tx, cs, im.step); err != nil {
			return nil, err
		}
		if err := s.importNames(ctx, tx, im, part); err != nil {
			return nil, err
		}
		for n, i := range part {
			ts = append(ts, im.history(&cs[n], im.rows[i].Key)...)
		}
	}
	return ts, nil
}

// importProve proves that the ids are those that the server gave: a wrong one would give a user's coupon to another. See insertCoupons.
func (s *Store) importProve(ctx context.Context, tx *txn, cs []coupon.Coupon, step uint64) error {
	n := 0
	err := s.query(ctx, tx, stmtImportIDs, func(r *sql.Rows) error {
		var id uint64
		var user []byte
		if err := r.Scan(&id, &user); err != nil {
			return err
		}
		if n < len(cs) && cs[n].ID == id && cs[n].UserID == string(user) {
			n++
		}
		return nil
	}, cs[0].ID, cs[len(cs)-1].ID)
	if err == nil && n < len(cs) {
		err = fmt.Errorf("ids of an INSERT of %d rows from %d on by %d: %d found; the server does not number rows consecutively", len(cs), cs[0].ID, step, n)
	}
	return err
}

// importNames writes the keys of new coupons, in order.
func (s *Store) importNames(ctx context.Context, tx *txn, im *importing, part []int) error {
	order := slices.SortedFunc(slices.Values(part), func(a, b int) int { return bytes.Compare([]byte(im.rows[a].Key), []byte(im.rows[b].Key)) })
	args := make([]any, 0, 4*len(order))
	for _, i := range order {
		args = append(args, []byte(im.issuer), []byte(im.rows[i].Key), im.out[i].CouponID, bytes.Clone(im.hashes[i][:]))
	}
	_, err := s.exec(ctx, tx, stmtIssueKey.rows(len(order)), args...)
	return err
}

// history is how a coupon came to be what it is: granted, and then what it was there.
func (im *importing) history(c *coupon.Coupon, key string) []coupon.Transition {
	grant := im.stepTo(c, coupon.Unused)
	grant.From, grant.Version, grant.OrderID, grant.LockUntil, grant.GrantKey, grant.Issuer = 0, 1, "", time.Time{}, key, im.issuer
	if c.Status == coupon.Unused {
		return []coupon.Transition{grant}
	}
	then := im.stepTo(c, c.Status)
	then.From, then.Version = coupon.Unused, 2
	return []coupon.Transition{grant, then}
}

// stepTo is a step of the import that leads to the state.
func (im *importing) stepTo(c *coupon.Coupon, to coupon.Status) coupon.Transition {
	return coupon.Transition{
		CouponID: c.ID, To: to, Cause: coupon.CauseImport, UserID: c.UserID, BatchID: c.BatchID, Terms: c.Terms, ValidFrom: c.ValidFrom,
		ExpiresAt: c.ExpiresAt, DueAt: c.DueAt, At: im.now, OrderID: c.OrderID, LockUntil: c.LockUntil, Actor: im.ask.Actor, Reason: im.ask.Reason,
	}
}

// importRecord writes what the steps leave behind: as record does, but that nothing is told of unless that was asked for. They are counted
// here, since no event tells the statistics of them.
func (s *Store) importRecord(ctx context.Context, tx *txn, im *importing, moved, made []coupon.Transition) error {
	ts := slices.Concat(moved, made)
	if len(ts) == 0 {
		return nil
	}
	rows, reminders, err := s.aheadRows(ctx, tx, im.now, ts)
	if err != nil {
		return err
	}
	if im.ask.Notices {
		rows = append(rows, reminders...)
	}
	if im.ask.Events {
		if rows, err = s.importTold(rows, made); err != nil {
			return err
		}
	}
	if err := s.writeHistory(ctx, tx, ts); err != nil {
		return err
	}
	// What was over before has given its piece of the quota back.
	ended := slices.DeleteFunc(slices.Clone(ts), func(t coupon.Transition) bool { return t.From == coupon.Expired || t.From == coupon.Voided })
	if err := s.writeQuotaReturns(ctx, tx, ended); err != nil {
		return err
	}
	if err := s.writeOutbox(ctx, tx, rows); err != nil {
		return err
	}
	if err := s.takeQuotaAgain(ctx, tx, ts); err != nil {
		return err
	}
	counted := make([]coupon.Counted, len(ts))
	for i := range ts {
		t := &ts[i]
		counted[i] = coupon.Counted{CouponID: t.CouponID, Version: t.Version, TemplateID: t.Terms.TemplateID, From: t.From, To: t.To, At: t.At, Value: t.Terms.Value}
	}
	_, err = s.countIn(ctx, tx, counted)
	return err
}

// importTold adds the events of new coupons that can still be used. What is over is not told of as if it had just happened.
func (s *Store) importTold(rows []outboxRow, made []coupon.Transition) ([]outboxRow, error) {
	for i := range made {
		last := &made[i]
		if i+1 < len(made) && made[i+1].CouponID == last.CouponID {
			last = &made[i+1]
		}
		if last.To != coupon.Unused && last.To != coupon.Locked {
			continue
		}
		key, id, body, err := s.codec.Transition(made[i])
		if err != nil {
			return nil, fmt.Errorf("encode event of a transition to %s: %w", made[i].To, err)
		}
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: coupon.Partition(made[i].CouponID), couponID: made[i].CouponID, msgID: id, key: key, class: ' ', body: body,
		})
	}
	return rows, nil
}

// importTaken counts new coupons against their templates and users, whatever the quotas say: they were granted already. Stocks come last,
// since all pods want them.
func (s *Store) importTaken(ctx context.Context, tx *txn, im *importing) error {
	users := make(map[userKey]*userQuota)
	for _, i := range im.fresh {
		r := &im.rows[i]
		st := im.stock[r.Template]
		st.added++
		if !st.CountsUsers() {
			continue
		}
		k := userKey{r.Template, r.UserID}
		if users[k] == nil {
			users[k] = &userQuota{}
		}
		users[k].added++
	}
	im.users = users
	if err := s.addUserQuota(ctx, tx, &im.issue); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(im.stock)) {
		st := im.stock[id]
		if st == nil || st.added == 0 {
			continue
		}
		if _, err := s.exec(ctx, tx, stmtImportTaken, st.added, id); err != nil {
			return err
		}
	}
	return nil
}
