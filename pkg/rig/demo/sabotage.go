package demo

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/rig"
)

// damage hurts one coupon while it waits for its end, if that was asked for: the one that ends last.
func (r *run) damage(ctx context.Context) error {
	switch r.cfg.Sabotage {
	case SabotageEarly:
		return r.damaging(ctx, func(db *sql.DB, id uint64) error { return r.expireEarly(ctx, db, id) })
	case SabotageLose:
		return r.damaging(ctx, func(db *sql.DB, id uint64) error {
			_, err := db.ExecContext(ctx, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 HOUR, due_at = due_at + INTERVAL 1 HOUR WHERE id = ?`, id)
			return err
		})
	default:
		return nil
	}
}

// damageAfterwards does what can only be done to a coupon that has expired.
func (r *run) damageAfterwards(ctx context.Context) error {
	if r.cfg.Sabotage != SabotageDouble {
		return nil
	}
	return r.damaging(ctx, func(db *sql.DB, id uint64) error {
		if _, err := db.ExecContext(ctx, `INSERT INTO coupon_history
			(coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
			SELECT coupon_id, version + 1, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace
			FROM coupon_history WHERE coupon_id = ? AND to_status = 4`, id); err != nil {
			return err
		}
		heard := r.audit.Heard()
		if err := r.publishExpired(ctx, db, id); err != nil {
			return err
		}
		return rig.Until(ctx, answerPoll, func() (bool, error) { return r.audit.Heard() > heard, nil })
	})
}

func (r *run) damaging(ctx context.Context, do func(db *sql.DB, id uint64) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	var id uint64
	err := r.db.QueryRowContext(ctx, `SELECT id FROM coupon WHERE user_id NOT LIKE 'demo-waiting-%' ORDER BY expires_at DESC, id LIMIT 1`).Scan(&id)
	if err == nil {
		err = do(r.db, id)
	}
	if err != nil {
		return fmt.Errorf("sabotage: %w", err)
	}
	return nil
}

// expireEarly makes row, history and event as they should be, only too soon.
func (r *run) expireEarly(ctx context.Context, db *sql.DB, id uint64) error {
	for _, statement := range []string{
		`UPDATE coupon SET status = 4, version = version + 1, expired_at = UTC_TIMESTAMP(3), expire_cause = 'ladder' WHERE id = ? AND status = 1`,
		`INSERT INTO coupon_history (coupon_id, version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace)
			SELECT id, version, 1, 4, 'ladder', expired_at, expires_at, due_at, '', '', '', '', 'ladder', '' FROM coupon WHERE id = ? AND status = 4`,
	} {
		if _, err := db.ExecContext(ctx, statement, id); err != nil {
			return err
		}
	}
	return r.publishExpired(ctx, db, id)
}

// publishExpired sends the event of an expired coupon, as the relay would.
func (r *run) publishExpired(ctx context.Context, db *sql.DB, id uint64) error {
	t := coupon.Transition{
		CouponID: id, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder,
		Terms: coupon.Terms{TemplateID: r.template, Revision: 1, Value: 1000, Currency: "CNY", Precision: coupon.Exact},
	}
	err := db.QueryRowContext(ctx, `SELECT version, user_id, batch_id, valid_from, expires_at, due_at, expired_at FROM coupon WHERE id = ?`, id).
		Scan(&t.Version, &t.UserID, &t.BatchID, &t.ValidFrom, &t.ExpiresAt, &t.DueAt, &t.At)
	if err != nil {
		return err
	}
	key, eventID, body, err := r.codec.Transition(t)
	if err != nil {
		return err
	}
	return r.publish(ctx, broker.Message{Exchange: r.ladder.Events(), Key: key, ID: eventID, Body: body})
}
