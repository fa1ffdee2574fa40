package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtOperationLast = define("operation.last", `SELECT id, ask, progress, epoch, created_at, updated_at, owner,
		TIMESTAMPDIFF(MICROSECOND, updated_at, UTC_TIMESTAMP(3)), TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), lease_until) FROM operation
		WHERE kind = ? AND ask_hash = ? AND done = 0 ORDER BY id DESC LIMIT 1`)
	stmtOperationAdd = define("operation.add", `INSERT INTO operation (kind, ask_hash, ask, progress, done, owner, lease_until, epoch, created_at, updated_at)
		VALUES (?,?,?,'',0,?,UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND,1,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3))`)
	stmtOperationTake = define("operation.take", `UPDATE operation SET owner = ?, lease_until = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND, epoch = epoch + 1
		WHERE id = ? AND epoch = ? AND done = 0`)
	stmtOperationMove = define("operation.move", `UPDATE operation SET progress = ?, done = ?, lease_until = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND,
		updated_at = UTC_TIMESTAMP(3) WHERE id = ? AND owner = ? AND epoch = ? AND done = 0`)
	stmtOperationHold = define("operation.hold", `SELECT progress FROM operation WHERE id = ? AND owner = ? AND epoch = ? AND done = 0 FOR UPDATE`)
	stmtOperationDrop = define("operation.drop", `UPDATE operation SET done = 1, updated_at = UTC_TIMESTAMP(3) WHERE id = ? AND epoch = ?`)
)

// errOperationLost: another process has taken the work over.
var errOperationLost = fmt.Errorf("another process has taken it over: %w", coupon.ErrConflict)

// PeekOperation looks for the unfinished work of that kind and ask; false: there is none.
func (s *Store) PeekOperation(ctx context.Context, kind string, hash [sha256.Size]byte) (coupon.Operation, bool, error) {
	op, _, err := s.lastOperation(ctx, s.sql, kind, hash)
	if errors.Is(err, coupon.ErrNotFound) {
		return op, false, nil
	}
	return op, err == nil, err
}

func (s *Store) lastOperation(ctx context.Context, q querier, kind string, hash [sha256.Size]byte) (op coupon.Operation, owner string, err error) {
	op.Kind = kind
	var name []byte
	var idle, left int64
	err = s.queryRow(ctx, q, stmtOperationLast,
		[]any{&op.ID, &op.Ask, &op.Progress, &op.Epoch, &op.Created, &op.Moved, &name, &idle, &left}, kind, hash[:])
	op.Idle, op.Left = time.Duration(idle)*time.Microsecond, max(0, time.Duration(left)*time.Microsecond)
	return op, string(name), err
}

// ClaimOperation takes the unfinished work of that kind and ask, or begins it; ask is kept for whoever looks. With fresh what was
// unfinished is left as it is. Not Held: another process works on it.
func (s *Store) ClaimOperation(ctx context.Context, owner, kind string, hash [sha256.Size]byte, ask []byte, fresh bool, lease time.Duration) (coupon.Operation, error) {
	var op coupon.Operation
	err := s.tx(ctx, "claim "+kind, func(ctx context.Context, tx *txn) error {
		last, holder, err := s.lastOperation(ctx, tx, kind, hash)
		op = last
		switch {
		case errors.Is(err, coupon.ErrNotFound):
		case err != nil:
			return err
		case last.Left > 0 && holder != owner:
			return nil
		case fresh:
			if _, err := s.exec(ctx, tx, stmtOperationDrop, last.ID, last.Epoch); err != nil {
				return err
			}
		default:
			n, err := s.exec(ctx, tx, stmtOperationTake, []byte(owner), lease.Microseconds(), last.ID, last.Epoch)
			if err == nil && n == 0 {
				err = fmt.Errorf("%s: taken meanwhile: %w", stmtOperationTake.Name, coupon.ErrContention)
			}
			op.Epoch, op.Resumed, op.Held = last.Epoch+1, true, true
			return err
		}
		op = coupon.Operation{Kind: kind, Epoch: 1, Held: true}
		op.ID, err = s.insertID(ctx, tx, stmtOperationAdd, kind, hash[:], ask, []byte(owner), lease.Microseconds())
		return err
	})
	return op, err
}

// MoveOperation stores how far the work has come and prolongs the lease; a lease of 0 lets go. coupon.ErrConflict when another
// process has taken it over.
func (s *Store) MoveOperation(ctx context.Context, h coupon.OperationHold, progress []byte, done bool) error {
	return s.tx(ctx, "move operation", func(ctx context.Context, tx *txn) error { return s.moveOperation(ctx, tx, h, progress, done) })
}

// moveOperation is the same in the transaction of a step, which it fails if the work is another's.
func (s *Store) moveOperation(ctx context.Context, tx *txn, h coupon.OperationHold, progress []byte, done bool) error {
	n, err := s.exec(ctx, tx, stmtOperationMove, progress, done, h.Lease.Microseconds(), h.ID, []byte(h.Owner), h.Epoch)
	if err == nil && n == 0 {
		return errOperationLost
	}
	return err
}
