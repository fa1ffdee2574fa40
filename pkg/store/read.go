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

// couponColumns are what scanCoupon reads, of coupon and coupon_archive alike: a row with the clock that judges it.
const couponColumns = `id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
	locked_at, lock_until, order_id, late_pay_policy, late_pay_window, used_at, expired_at, expire_cause, observed, UTC_TIMESTAMP(3)`

const stepColumns = `version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace, lock_until, previous`

// Readers take no lock. What finished long ago is in the archive: they look there after the table, since that is the way
// that rows move. A refund alone brings one back, so what is in neither is looked for in the table once more.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtReadCoupons  = define("read.coupons", `SELECT `+couponColumns+` FROM coupon FORCE INDEX (PRIMARY) WHERE id IN (?)`)
	stmtReadArchived = define("read.archived", `SELECT `+couponColumns+` FROM coupon_archive FORCE INDEX (PRIMARY) WHERE id IN (?)`)
	stmtReadKey      = define("read.key", `SELECT coupon_id FROM grant_key WHERE issuer = ? AND grant_key = ?`)
	stmtReadKeyOf    = define("read.key_of", `SELECT issuer, grant_key FROM grant_key WHERE coupon_id = ? ORDER BY issuer, grant_key LIMIT 1`)
	// The latest steps, newest first.
	stmtReadSteps         = define("read.steps", `SELECT `+stepColumns+` FROM coupon_history WHERE coupon_id = ? ORDER BY version DESC LIMIT ?`)
	stmtReadStepsArchived = define("read.steps_archived", `SELECT `+stepColumns+` FROM coupon_history_archive WHERE coupon_id = ? ORDER BY version DESC LIMIT ?`)
)

// maxSteps bounds a timeline: a coupon may be locked and released without end.
const maxSteps = 1000

// Coupon reads one coupon, archived or not, with the database's clock of the reading; its state as seen then is
// Row.Seen. coupon.ErrNotFound when there is none.
func (s *Store) Coupon(ctx context.Context, id uint64) (coupon.Coupon, time.Time, error) {
	cs, now, err := s.couponsIn(ctx, s.sql, []uint64{id})
	switch {
	case err != nil:
		return coupon.Coupon{}, now, fmt.Errorf("coupon: %w", err)
	case len(cs) == 0:
		return coupon.Coupon{}, now, fmt.Errorf("coupon %d: %w", id, coupon.ErrNotFound)
	}
	return cs[0], now, nil
}

// Coupons reads those of up to coupon.MaxPage ids that exist, archived or not, in the order asked for, a repeated id
// once; and the database's clock, by which each is judged.
func (s *Store) Coupons(ctx context.Context, ids []uint64) ([]coupon.Coupon, time.Time, error) {
	if len(ids) > coupon.MaxPage {
		return nil, time.Time{}, fmt.Errorf("coupons: %w: %d ids, at most %d", ErrBatch, len(ids), coupon.MaxPage)
	}
	cs, now, err := s.couponsIn(ctx, s.sql, ids)
	if err != nil {
		return nil, now, fmt.Errorf("coupons: %w", err)
	}
	return cs, now, nil
}

// CouponByGrantKey reads the coupon that an issuer's key yielded, archived or not.
func (s *Store) CouponByGrantKey(ctx context.Context, issuer, key string) (coupon.Coupon, time.Time, error) {
	var id uint64
	if err := s.queryRow(ctx, s.sql, stmtReadKey, []any{&id}, []byte(issuer), []byte(key)); err != nil {
		return coupon.Coupon{}, time.Time{}, fmt.Errorf("coupon by grant key: %w", err)
	}
	return s.Coupon(ctx, id)
}

// Timeline reads the steps of a coupon's life, archived or not, in order; of more than a thousand the latest. Each
// carries what its event does. coupon.ErrNotFound when there is no such coupon.
func (s *Store) Timeline(ctx context.Context, id uint64) ([]coupon.Transition, error) {
	var steps []coupon.Transition
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		cs, _, err := s.couponsIn(ctx, q, []uint64{id})
		if err == nil && len(cs) == 0 {
			err = coupon.ErrNotFound
		}
		if err != nil {
			return err
		}
		steps, err = s.steps(ctx, q, &cs[0])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("timeline of coupon %d: %w", id, err)
	}
	return steps, nil
}

// snapshot runs fn on one consistent view of the database, without a lock.
func (s *Store) snapshot(ctx context.Context, fn func(ctx context.Context, q querier) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	tx, err := s.sql.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return fmt.Errorf("begin: %w", classify(err))
	}
	err = fn(ctx, tx)
	// There is nothing to commit.
	if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
		err = errors.Join(err, rerr)
	}
	return err
}

// couponsIn reads coupons by id, and the archive for those that are gone. The clock is that of the first statement.
func (s *Store) couponsIn(ctx context.Context, q querier, ids []uint64) ([]coupon.Coupon, time.Time, error) {
	found := make(map[uint64]coupon.Coupon, len(ids))
	var now time.Time
	read := func(st Statement, ids []uint64) error {
		for part := range slices.Chunk(ids, maxIDs) {
			args := make([]any, len(part))
			for i, id := range part {
				args[i] = id
			}
			cs, at, err := s.coupons(ctx, q, st.in(len(args)), args...)
			if err != nil {
				return err
			}
			if now.IsZero() {
				now = at
			}
			for _, c := range cs {
				c.Archived = st.Name == stmtReadArchived.Name
				found[c.ID] = c
			}
		}
		return nil
	}
	if err := read(stmtReadCoupons, ids); err != nil {
		return nil, now, err
	}
	for _, st := range []Statement{stmtReadArchived, stmtReadCoupons} {
		var gone []uint64
		for _, id := range ids {
			if _, ok := found[id]; !ok {
				gone = append(gone, id)
			}
		}
		if err := read(st, gone); err != nil {
			return nil, now, err
		}
	}
	if now.IsZero() {
		err := s.queryRow(ctx, q, stmtNow, []any{&now})
		return nil, now, err
	}
	out := make([]coupon.Coupon, 0, len(found))
	for _, id := range ids {
		if c, ok := found[id]; ok {
			out = append(out, c)
			delete(found, id)
		}
	}
	return out, now, nil
}

// coupons reads the rows of a statement that selects couponColumns, with their terms; and the clock of the statement,
// zero when it gave no row.
func (s *Store) coupons(ctx context.Context, q querier, st Statement, args ...any) ([]coupon.Coupon, time.Time, error) {
	var cs []coupon.Coupon
	var now time.Time
	err := s.query(ctx, q, st, func(r *sql.Rows) error {
		c, err := scanCoupon(r, &now)
		if err == nil {
			cs = append(cs, c)
		}
		return err
	}, args...)
	if err != nil {
		return nil, now, err
	}
	for i := range cs {
		if err := s.addTerms(ctx, q, &cs[i]); err != nil {
			return nil, now, err
		}
	}
	return cs, now, nil
}

// addTerms completes a scanned coupon. A lock keeps the late-pay terms that it was taken under.
func (s *Store) addTerms(ctx context.Context, q querier, c *coupon.Coupon) error {
	terms, err := s.termsOf(ctx, q, c.Terms.TemplateID, c.Terms.Revision)
	if err != nil {
		return err
	}
	c.Terms = terms
	if c.LatePay == "" {
		c.LatePay, c.LateWindow = terms.LatePay, terms.LateWindow
	}
	return nil
}

func scanCoupon(r *sql.Rows, now *time.Time) (coupon.Coupon, error) {
	var (
		c                                coupon.Coupon
		batch, user, order               []byte
		locked, lockUntil, used, expired sql.NullTime
		policy, cause                    sql.NullString
		window                           sql.NullInt64
	)
	err := r.Scan(&c.ID, &c.Terms.TemplateID, &c.Terms.Revision, &batch, &user, &c.Status, &c.Version, &c.ValidFrom, &c.ExpiresAt,
		&c.DueAt, &c.GrantedAt, &locked, &lockUntil, &order, &policy, &window, &used, &expired, &cause, &c.Observed, now)
	if err != nil {
		return c, err //nolint:wrapcheck // query wraps it
	}
	c.BatchID, c.UserID, c.OrderID = string(batch), string(user), string(order)
	c.LockedAt, c.LockUntil, c.UsedAt, c.ExpiredAt = locked.Time, lockUntil.Time, used.Time, expired.Time
	c.Cause = coupon.Cause(cause.String)
	if c.Status == coupon.Locked && policy.Valid {
		c.LatePay, c.LateWindow = coupon.LatePay(policy.String), time.Duration(window.Int64)*time.Second
	}
	return c, nil
}

// steps reads the history of a coupon, oldest first.
func (s *Store) steps(ctx context.Context, q querier, c *coupon.Coupon) ([]coupon.Transition, error) {
	st := stmtReadSteps
	if c.Archived {
		st = stmtReadStepsArchived
	}
	var steps []coupon.Transition
	err := s.query(ctx, q, st, func(r *sql.Rows) error {
		t := coupon.Transition{CouponID: c.ID, UserID: c.UserID, BatchID: c.BatchID, Terms: c.Terms, ValidFrom: c.ValidFrom}
		var cause, origin string
		var order []byte
		var until, previous sql.NullTime
		if err := r.Scan(&t.Version, &t.From, &t.To, &cause, &t.At, &t.ExpiresAt, &t.DueAt, &order, &t.Actor, &t.Reason,
			&t.TriggerID, &origin, &t.Trace, &until, &previous); err != nil {
			return err
		}
		t.Cause, t.Origin, t.OrderID = coupon.Cause(cause), coupon.Origin(origin), string(order)
		t.LockUntil, t.Previous = until.Time, previous.Time
		steps = append(steps, t)
		return nil
	}, c.ID, maxSteps)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	slices.Reverse(steps)
	if steps[0].Version == 1 {
		steps[0].Issuer, steps[0].GrantKey, err = s.keyOf(ctx, q, c.ID)
	}
	return steps, err
}

// keyOf gives the grant key of a coupon, empty when it has none.
func (s *Store) keyOf(ctx context.Context, q querier, id uint64) (issuer, key string, err error) {
	var i, k []byte
	err = s.queryRow(ctx, q, stmtReadKeyOf, []any{&i, &k}, id)
	if err != nil && !errors.Is(err, coupon.ErrNotFound) {
		return "", "", err
	}
	return string(i), string(k), nil
}
