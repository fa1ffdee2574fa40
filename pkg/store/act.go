package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Act does what an order, or an operator, asks of its coupons, in one transaction, and gives one answer for each
// coupon, in order, with the database's clock of the decision. A refusal is an answer, not an error: with one of them
// nothing moves at all, unless o.Each lets every coupon stand by itself. What it asks for and is done already is
// answered as the first time (Repeated). A coupon of another user than o.UserID is answered as if it did not exist.
// With o.Tombstone the order's end is remembered whatever becomes of the coupons, even of those that do not exist.
//
// The rows are locked first, waiting for whoever holds them, and read by a second statement, since a statement's clock
// is its start and the wait may have been long. coupon.Apply decides, and the rows change by compare-and-set.
//
// Errors: those of o.Validate; coupon.ErrUnavailable; coupon.ErrContention when somebody held one of the rows for longer
// than Config.LockWait, or when deadlocks persisted; coupon.ErrIntegrity. After an error nothing has moved, except that a
// lost connection may hide a commit, and that with o.Each other coupons may have moved; ask again: what is done is a
// repeat then.
func (s *Store) Act(ctx context.Context, o coupon.Order) (now time.Time, out []coupon.Acted, err error) {
	if err := o.Validate(); err != nil {
		return time.Time{}, nil, err
	}
	now, out, err = s.actOnce(ctx, o)
	if o.Each && len(o.CouponIDs) > 1 && (errors.Is(err, coupon.ErrContention) || errors.Is(err, coupon.ErrIntegrity)) {
		return s.actEach(ctx, o) // one that cannot be had does not keep the others
	}
	return now, out, err
}

// actEach gives every coupon a transaction of its own. Its clock is the last one's.
func (s *Store) actEach(ctx context.Context, o coupon.Order) (now time.Time, out []coupon.Acted, err error) {
	var errs []error
	for _, id := range o.CouponIDs {
		one := o
		one.CouponIDs = []uint64{id}
		at, acted, err := s.actOnce(ctx, one)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		now, out = at, append(out, acted...)
	}
	if len(errs) > 0 {
		return time.Time{}, nil, errors.Join(errs...)
	}
	return now, out, nil
}

// actOnce is Act in one transaction.
func (s *Store) actOnce(ctx context.Context, o coupon.Order) (now time.Time, out []coupon.Acted, err error) {
	return s.actAs(ctx, o, s.actIn)
}

// actAs takes the coupons' turns and lets in decide and move them in one transaction, which may be tried again.
func (s *Store) actAs(ctx context.Context, o coupon.Order, in func(ctx context.Context, tx *txn, a *act) error) (now time.Time, out []coupon.Acted, err error) {
	turn := slices.Sorted(slices.Values(o.CouponIDs))
	if err := s.turns.take(ctx, turn, s.limit); err != nil {
		return time.Time{}, nil, fmt.Errorf("%s: %w", o.Verb, err)
	}
	held := (*heldError)(nil)
	defer func() { s.turns.give(turn, held != nil && len(turn) == 1) }()
	brakes, err := s.Brakes(ctx)
	if err != nil {
		return time.Time{}, nil, err
	}
	var a *act
	err = s.tx(ctx, string(o.Verb), func(ctx context.Context, tx *txn) error {
		a = &act{Order: o, brakes: brakes, rows: make(map[uint64]*actRow, len(o.CouponIDs)), out: make([]coupon.Acted, len(o.CouponIDs))}
		err := in(ctx, tx, a)
		if isLockWait(err) {
			return &heldError{err} // waited long enough: not once more
		}
		return err
	})
	if errors.As(err, &held) {
		return time.Time{}, nil, fmt.Errorf("%s: %w", o.Verb, held.err)
	}
	if err != nil {
		return time.Time{}, nil, err
	}
	return a.now, a.out, nil
}

// heldError keeps the class of a lock wait from the retries of Store.tx.
type heldError struct{ err error }

func (e *heldError) Error() string { return e.err.Error() }

func isLockWait(err error) bool {
	var my *mysql.MySQLError
	return errors.As(err, &my) && my.Number == erLockWait
}

// act is the work of one transaction, built anew for each try.
type act struct {
	coupon.Order
	brakes *coupon.Pauses
	now    time.Time
	rows   map[uint64]*actRow
	out    []coupon.Acted
	ts     []coupon.Transition
}

// actRow is a coupon in hand.
type actRow struct {
	coupon.Coupon
	closed, refunded bool // what is remembered of the order
	ask              coupon.Ask
}

func (s *Store) actIn(ctx context.Context, tx *txn, a *act) error {
	if err := s.actRows(ctx, tx, a); err != nil {
		return err
	}
	if err := s.actPast(ctx, tx, a); err != nil {
		return err
	}
	if err := s.actMoves(ctx, tx, a, a.decide()); err != nil {
		return err
	}
	if a.Tombstone && !a.Partial {
		return s.buryOrder(ctx, tx, a.Order)
	}
	return nil
}

// actMoves takes the steps that were decided, of every coupon, and fills in how each is then.
func (s *Store) actMoves(ctx context.Context, tx *txn, a *act, verdicts []coupon.Verdict) error {
	for i, id := range a.CouponIDs {
		row, out := a.rows[id], &a.out[i]
		if out.Refused == coupon.CodeNotFound {
			continue
		}
		if steps := verdicts[i].Steps; len(steps) > 0 { //nolint:gosec // one for each id
			if row.Archived {
				if err := s.unarchive(ctx, tx, id); err != nil {
					return err
				}
				row.Archived = false
			}
			before := row.Coupon
			a.ts = append(a.ts, row.Take(steps, &a.Order, a.now)...)
			if err := s.actMove(ctx, tx, &before, &row.Coupon); err != nil {
				return err
			}
		}
		out.Coupon = row.Coupon
	}
	return s.record(ctx, tx, a.now, a.ts)
}

// decide asks the table about every coupon.
func (a *act) decide() (verdicts []coupon.Verdict) {
	cs, asks := make([]*coupon.Coupon, len(a.CouponIDs)), make([]coupon.Ask, len(a.CouponIDs))
	for i, id := range a.CouponIDs {
		if row := a.rows[id]; row != nil {
			cs[i], asks[i] = &row.Coupon, row.ask
		}
	}
	verdicts, a.out = a.Decide(cs, asks, a.now)
	return verdicts
}
