package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtParkedList = define("parked.list", `SELECT id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at
		FROM outbox_parked WHERE id > ? ORDER BY id LIMIT ?`)
	stmtParkedReplay = define("parked.replay", `INSERT INTO outbox
		(lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		SELECT lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, 0, UTC_TIMESTAMP(3)
		FROM outbox_parked WHERE id IN (?) ORDER BY id`)
	stmtParkedDelete = define("parked.delete", `DELETE FROM outbox_parked WHERE id IN (?)`)
)

// ErrParkedMoved: somebody else replayed or discarded some of the rows meanwhile; nothing was done.
var ErrParkedMoved = errors.New("parked rows were dealt with meanwhile")

// ParkedRow is an outbox row that the broker refused too often.
type ParkedRow struct {
	coupon.Outgoing
	Reason   string
	ParkedAt time.Time
}

// ParkedOutbox lists parked outbox rows with ids above after, in order.
func (s *Store) ParkedOutbox(ctx context.Context, after uint64, limit int) ([]ParkedRow, error) {
	var out []ParkedRow
	err := s.query(ctx, s.sql, stmtParkedList, func(r *sql.Rows) error {
		var p ParkedRow
		var class, id []byte
		var at sql.NullTime
		if err := r.Scan(&p.ID, &p.Lane, &p.Part, &p.CouponID, &id, &p.Key, &class, &at, &p.Body, &p.Trace, &p.Reason, &p.ParkedAt); err != nil {
			return err
		}
		p.MsgID, p.DeliverAt = string(id), at.Time
		if len(class) > 0 {
			p.Class = class[0]
		}
		out = append(out, p)
		return nil
	}, after, limit)
	return out, err
}

// ReplayParked puts parked rows back into the outbox, whose relay sends them as new, and keeps the deed; all or nothing.
func (s *Store) ReplayParked(ctx context.Context, ids []uint64, d Deed) error {
	return s.settleParked(ctx, ids, d, true)
}

// DiscardParked deletes parked rows and keeps the deed; all or nothing.
func (s *Store) DiscardParked(ctx context.Context, ids []uint64, d Deed) error {
	return s.settleParked(ctx, ids, d, false)
}

func (s *Store) settleParked(ctx context.Context, ids []uint64, d Deed, replay bool) error {
	if len(ids) == 0 || len(ids) > insertRows {
		return fmt.Errorf("parked rows: want 1 to %d at once, got %d", insertRows, len(ids))
	}
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return s.tx(ctx, "parked rows", func(ctx context.Context, tx *txn) error {
		if replay {
			n, err := s.exec(ctx, tx, stmtParkedReplay.in(len(ids)), args...)
			if err != nil {
				return err
			}
			if n != int64(len(ids)) {
				return ErrParkedMoved
			}
			tx.wrote = true
		}
		n, err := s.exec(ctx, tx, stmtParkedDelete.in(len(ids)), args...)
		if err != nil {
			return err
		}
		if n != int64(len(ids)) {
			return ErrParkedMoved
		}
		return s.recordDeed(ctx, tx, d)
	})
}
