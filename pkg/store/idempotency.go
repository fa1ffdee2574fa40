package store

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A row of idempotency_key with status 0 is a request at work until its lease ends; then whoever comes next with the same
// key takes it over. What the first one committed before it died is found again by the verbs themselves (grant keys, the
// orders in history), except for what has no key of its own: a template that was created or revised leaves a mark in the
// row's answer, in the same transaction, and who takes over finds it.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtIdemInsert = define("idempotency.insert", `INSERT INTO idempotency_key (caller, idem_key, body_hash, status, answer, lease_until, created_at)
		VALUES (?,?,?,0,'',UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND,UTC_TIMESTAMP(3))`)
	stmtIdemLock = define("idempotency.lock", `SELECT body_hash, status, answer, lease_until <= UTC_TIMESTAMP(3) FROM idempotency_key
		WHERE caller = ? AND idem_key = ? FOR UPDATE`)
	stmtIdemTake = define("idempotency.take", `UPDATE idempotency_key SET lease_until = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND
		WHERE caller = ? AND idem_key = ? AND status = 0`)
	stmtIdemMark = define("idempotency.mark", `UPDATE idempotency_key SET answer = ?
		WHERE caller = ? AND idem_key = ? AND status = 0 AND answer = ''`)
	stmtIdemFinish = define("idempotency.finish", `UPDATE idempotency_key SET status = ?, answer = ?
		WHERE caller = ? AND idem_key = ? AND status = 0 AND (answer = '' OR ? < 400)`)
	stmtIdemDelete = define("idempotency.delete", `DELETE FROM idempotency_key WHERE caller = ? AND idem_key = ? AND status = 0 AND answer = ''`)
	stmtIdemYield  = define("idempotency.yield", `UPDATE idempotency_key SET lease_until = UTC_TIMESTAMP(3)
		WHERE caller = ? AND idem_key = ? AND status = 0`)
	stmtIdemPrune = define("idempotency.prune", `DELETE FROM idempotency_key WHERE created_at < UTC_TIMESTAMP(3) - INTERVAL ? SECOND
		AND lease_until < UTC_TIMESTAMP(3) ORDER BY created_at LIMIT ?`)
)

const idemTries = 5

// BeginIdempotent says what is to be done with a request that bears a key. IdempotentFresh means that it is the caller's
// to do until the lease ends, which must be longer than the request may take; its Answer is then the mark that an
// earlier try left, if there is one. Whoever gets it must call FinishIdempotent or AbandonIdempotent.
func (s *Store) BeginIdempotent(ctx context.Context, caller, key string, body [32]byte, lease time.Duration) (coupon.Idempotent, error) {
	for range idemTries {
		_, err := s.exec(ctx, s.sql, stmtIdemInsert, caller, key, body[:], lease.Microseconds())
		switch {
		case err == nil:
			return coupon.Idempotent{State: coupon.IdempotentFresh}, nil
		case !errors.Is(err, coupon.ErrConflict):
			return coupon.Idempotent{}, fmt.Errorf("begin idempotent: %w", err)
		}
		var known coupon.Idempotent
		err = s.tx(ctx, "begin idempotent", func(ctx context.Context, tx *txn) error {
			known = coupon.Idempotent{}
			return s.meetIdempotent(ctx, tx, caller, key, body, lease, &known)
		})
		if !errors.Is(err, coupon.ErrNotFound) { // else it was given up in this moment
			return known, err
		}
	}
	return coupon.Idempotent{}, fmt.Errorf("begin idempotent: %w", coupon.ErrContention)
}

func (s *Store) meetIdempotent(ctx context.Context, tx *txn, caller, key string, body [32]byte, lease time.Duration, known *coupon.Idempotent) error {
	var hash []byte
	var free bool
	if err := s.queryRow(ctx, tx, stmtIdemLock, []any{&hash, &known.Status, &known.Answer, &free}, caller, key); err != nil {
		return err
	}
	switch {
	case subtle.ConstantTimeCompare(hash, body[:]) != 1:
		*known = coupon.Idempotent{State: coupon.IdempotentReused}
	case known.Status != 0:
		known.State = coupon.IdempotentAnswered
	case !free:
		*known = coupon.Idempotent{State: coupon.IdempotentBusy}
	default:
		known.State = coupon.IdempotentFresh
		_, err := s.exec(ctx, tx, stmtIdemTake, lease.Microseconds(), caller, key)
		return err
	}
	return nil
}

// FinishIdempotent remembers the answer. coupon.ErrConflict says that another one is remembered already, or that a failure
// was to be remembered of what another try has done: begin again to have its answer.
func (s *Store) FinishIdempotent(ctx context.Context, caller, key string, status int, answer []byte) error {
	if answer == nil {
		answer = []byte{}
	}
	n, err := s.exec(ctx, s.sql, stmtIdemFinish, status, answer, caller, key, status)
	if err == nil && n == 0 {
		err = coupon.ErrConflict
	}
	if err != nil {
		return fmt.Errorf("finish idempotent: %w", err)
	}
	return nil
}

// AbandonIdempotent gives a key back whose request came to nothing, so that the next try need not wait for the lease. A
// mark is kept.
func (s *Store) AbandonIdempotent(ctx context.Context, caller, key string) error {
	n, err := s.exec(ctx, s.sql, stmtIdemDelete, caller, key)
	if err == nil && n == 0 {
		_, err = s.exec(ctx, s.sql, stmtIdemYield, caller, key)
	}
	if err != nil {
		return fmt.Errorf("abandon idempotent: %w", err)
	}
	return nil
}

// PruneIdempotent forgets up to limit keys that are older than age (whole seconds), oldest first, and says how many.
func (s *Store) PruneIdempotent(ctx context.Context, age time.Duration, limit int) (int, error) {
	n, err := s.exec(ctx, s.sql, stmtIdemPrune, int64(age/time.Second), limit)
	if err != nil {
		return 0, fmt.Errorf("prune idempotent: %w", err)
	}
	return int(n), nil
}

// markIdempotent notes in a transaction what it makes. coupon.ErrConflict says that another try made it already, or that
// the key is not at work.
func (s *Store) markIdempotent(ctx context.Context, tx querier, caller, key, mark string) error {
	n, err := s.exec(ctx, tx, stmtIdemMark, mark, caller, key)
	if err == nil && n == 0 {
		err = fmt.Errorf("mark an idempotency key: %w", coupon.ErrConflict)
	}
	return err
}
