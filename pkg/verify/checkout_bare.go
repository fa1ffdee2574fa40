package verify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// bare is lock and redeem as two transactions and nothing else: the statements that the product sends, on plain database/sql, with
// the same history and messages, so that what HTTP and the rest of it cost is seen.
type bare struct {
	shop *shop
	db   *sql.DB
}

func newBare(ctx context.Context, s *shop) (*bare, error) {
	c, err := mysql.ParseDSN(s.DSN())
	if err != nil {
		return nil, errors.New("TEST_MYSQL_DSN is malformed")
	}
	c.ParseTime, c.InterpolateParams, c.ClientFoundRows = true, true, true
	c.Params = map[string]string{"time_zone": "'+00:00'", "transaction_isolation": "'READ-COMMITTED'"}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("database address: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(speedConns)
	db.SetMaxIdleConns(speedConns)
	b := &bare{shop: s, db: db}
	if err := db.PingContext(ctx); err != nil {
		c.Params = map[string]string{"time_zone": "'+00:00'", "tx_isolation": "'READ-COMMITTED'"} // MariaDB before 11.1
		if connector, err = mysql.NewConnector(c); err != nil {
			return nil, errors.Join(fmt.Errorf("database address: %w", err), db.Close())
		}
		if err := db.Close(); err != nil {
			return nil, fmt.Errorf("database: %w", err)
		}
		b.db = sql.OpenDB(connector)
		b.db.SetMaxOpenConns(speedConns)
		b.db.SetMaxIdleConns(speedConns)
	}
	return b, nil
}

func (b *bare) close() { _ = b.db.Close() } // what it committed is what counts

const (
	bareLock = `SELECT id FROM coupon FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`
	bareRead = `SELECT c.id, c.template_id, c.revision, c.batch_id, c.user_id, c.status, c.version, c.valid_from, c.expires_at, c.due_at,
		c.granted_at, c.locked_at, c.lock_until, c.order_id, c.late_pay_policy, c.late_pay_window, c.used_at, c.expired_at, c.expire_cause,
		t.closed, t.refunded, UTC_TIMESTAMP(3) FROM coupon c
		LEFT JOIN order_tombstone t ON t.coupon_id = c.id AND t.order_id = ? WHERE c.id IN (?)`
	bareMove = `UPDATE coupon SET status = ?, version = ?, expires_at = ?, due_at = ?, locked_at = ?, lock_until = ?,
		order_id = ?, late_pay_policy = ?, late_pay_window = ?, used_at = ?, expired_at = ?, expire_cause = ?
		WHERE id = ? AND status = ? AND version = ? AND user_id = ? AND expires_at = ? AND COALESCE(order_id,'') = ? AND lock_until <=> ?`
	bareHistory = `INSERT INTO coupon_history
		(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace,
		lock_until, previous) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`
	bareOutbox = `INSERT INTO outbox
		(lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		VALUES (?,?,?,?,?,?,?,?,?,0,UTC_TIMESTAMP(3))`
)

// bareRow is what the statements need of a coupon.
type bareRow struct {
	coupon.Transition
	status    int
	lockedAt  sql.NullTime
	lockUntil sql.NullTime
	order     []byte
}

// pair locks and redeems one coupon.
func (b *bare) pair(ctx context.Context, id string) error {
	n, err := strconv.ParseUint(id, 10, 64)
	if err != nil {
		return fmt.Errorf("a coupon's id: %w", err)
	}
	if err := b.move(ctx, n, coupon.Unused, coupon.Locked); err != nil {
		return fmt.Errorf("bare lock: %w", err)
	}
	if err := b.move(ctx, n, coupon.Locked, coupon.Used); err != nil {
		return fmt.Errorf("bare redeem: %w", err)
	}
	return nil
}

func (b *bare) move(ctx context.Context, id uint64, from, to coupon.Status) error {
	tx, err := b.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // committed, or not wanted
	order := "bare-" + strconv.FormatUint(id, 10)
	r, err := bareRead1(ctx, tx, id, order)
	if err != nil {
		return err
	}
	if r.status != int(from) {
		return fmt.Errorf("coupon %d is in state %d, not %d", id, r.status, from)
	}
	t := &r.Transition
	version := t.Version
	t.From, t.To, t.Cause, t.OrderID, t.Actor = from, to, coupon.CauseOrder, order, "verify"
	t.Version++
	var locked, until, used, policy, window any
	t.LockUntil = r.lockUntil.Time
	if to == coupon.Locked {
		t.LockUntil = t.At.Truncate(time.Second).Add(time.Hour)
		locked, until, policy, window = t.At, t.LockUntil, string(coupon.HonourLock), int64(coupon.DefaultLateWindow/time.Second)
	} else {
		used = t.At
	}
	result, err := tx.ExecContext(ctx, bareMove, int(to), t.Version, t.ExpiresAt, t.DueAt, locked, until, []byte(order), policy, window, used, nil, nil,
		id, int(from), version, []byte(t.UserID), t.ExpiresAt, append([]byte{}, r.order...), r.lockUntil)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n != 1 {
		return fmt.Errorf("%d rows changed", n)
	}
	if err := b.leave(ctx, tx, t); err != nil {
		return err
	}
	return tx.Commit()
}

func bareRead1(ctx context.Context, tx *sql.Tx, id uint64, order string) (*bareRow, error) {
	var got uint64
	if err := tx.QueryRowContext(ctx, bareLock, id).Scan(&got); err != nil {
		return nil, err
	}
	r := &bareRow{}
	t := &r.Transition
	var granted time.Time
	var policy, cause sql.NullString
	var window sql.NullInt64
	var used, expired sql.NullTime
	var closed, refunded sql.NullBool
	err := tx.QueryRowContext(ctx, bareRead, []byte(order), id).Scan(&t.CouponID, &t.Terms.TemplateID, &t.Terms.Revision, &t.BatchID, &t.UserID,
		&r.status, &t.Version, &t.ValidFrom, &t.ExpiresAt, &t.DueAt, &granted, &r.lockedAt, &r.lockUntil, &r.order, &policy, &window, &used, &expired,
		&cause, &closed, &refunded, &t.At)
	t.Terms.Value, t.Terms.Currency, t.Terms.Precision = 500, "CNY", coupon.Exact
	return r, err
}

// leave writes history and messages.
func (b *bare) leave(ctx context.Context, tx *sql.Tx, t *coupon.Transition) error {
	var until any
	if !t.LockUntil.IsZero() {
		until = t.LockUntil
	}
	_, err := tx.ExecContext(ctx, bareHistory, t.CouponID, t.Version, int(t.From), int(t.To), string(t.Cause), t.At, t.ExpiresAt, t.DueAt,
		[]byte(t.OrderID), t.Actor, "", "", "", "", until, nil)
	if err != nil {
		return err
	}
	key, id, body, err := b.shop.Codec().Transition(*t)
	if err != nil {
		return err
	}
	part := coupon.Partition(t.CouponID)
	const values = `, (?,?,?,?,?,?,?,?,?,0,UTC_TIMESTAMP(3))`
	event := []any{1, part, t.CouponID, []byte(id), key, " ", nil, body, ""}
	if t.To != coupon.Locked {
		_, err = tx.ExecContext(ctx, bareOutbox, event...)
		return err
	}
	trigger := coupon.Trigger{
		Kind: coupon.KindUnlock, CouponID: t.CouponID, At: t.LockUntil, ID: coupon.TriggerID(coupon.SentByVerb, t.CouponID, t.Version),
		Origin: coupon.OriginLadder,
	}
	rows := append([]any{
		0, part, t.CouponID, []byte(trigger.ID), string(trigger.Kind), "x", t.LockUntil, b.shop.Codec().Trigger(trigger), "",
	}, event...)
	_, err = tx.ExecContext(ctx, bareOutbox+values, rows...)
	return err
}
