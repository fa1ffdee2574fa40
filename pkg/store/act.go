package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
		err := s.actIn(ctx, tx, a)
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
		row := a.rows[id]
		if a.out[i].Refused == coupon.CodeNotFound {
			continue
		}
		if steps := verdicts[i].Steps; len(steps) > 0 {
			if row.Archived {
				if err := s.unarchive(ctx, tx, id); err != nil {
					return err
				}
				row.Archived = false
			}
			before := row.Coupon
			a.ts = append(a.ts, row.take(steps, &a.Order, a.now)...)
			if err := s.actMove(ctx, tx, &before, &row.Coupon); err != nil {
				return err
			}
		}
		a.out[i].Coupon = row.Coupon
	}
	return s.record(ctx, tx, a.now, a.ts)
}

// decide asks the table about every coupon. All or none: a refusal takes the steps of the others away, unless each
// coupon stands by itself.
func (a *act) decide() []coupon.Verdict {
	verdicts := make([]coupon.Verdict, len(a.CouponIDs))
	refused := false
	for i, id := range a.CouponIDs {
		row := a.rows[id]
		if row == nil || (a.UserID != "" && row.UserID != a.UserID) {
			a.out[i] = coupon.Acted{Coupon: coupon.Coupon{Row: coupon.Row{ID: id}}, Refused: coupon.CodeNotFound, Detail: "no such coupon"}
			refused = true
			continue
		}
		v := coupon.Apply(row.Row, row.ask, a.now)
		a.out[i].Repeated = v.Repeat
		if v.Refused != "" {
			a.out[i].Refused, a.out[i].Detail = v.Refused, detail(v.Refused, &row.Coupon, &a.Order)
			refused = true
		}
		verdicts[i] = v
	}
	if refused && !a.Each {
		clear(verdicts)
	}
	return verdicts
}

// detail tells a person what the coupon's state has against the verb.
func detail(code coupon.Code, c *coupon.Coupon, o *coupon.Order) string {
	at := func(what string, t time.Time) string { return what + " " + t.UTC().Format(time.RFC3339) }
	switch code {
	case coupon.CodeLockedByOther, coupon.CodeLocked:
		return at("locked until", c.LockUntil)
	case coupon.CodeNotYetValid:
		return at("valid from", c.ValidFrom)
	case coupon.CodeExpired:
		return at("ended at", c.ExpiresAt)
	case coupon.CodeAlreadyUsed, coupon.CodeUsedByOther:
		return at("used at", c.UsedAt)
	case coupon.CodeNotLocked:
		return "the order holds no lock on it"
	case coupon.CodeNotUsed:
		return "the order has not redeemed it"
	case coupon.CodeVoided:
		return "withdrawn"
	case coupon.CodeOrderClosed:
		return "the order was closed before"
	case coupon.CodeOrderRefunded:
		return "the order was refunded before"
	case coupon.CodeNotExpired:
		return at("ends at", c.ExpiresAt)
	case coupon.CodeInvalid:
		if o.Verb == coupon.VerbReinstate {
			return at("expires_at: must be after now and after the end that it had,", c.ExpiresAt) + ", got " + o.EndsAt.UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("expires_at: must be after now and after %s, got %s",
			c.ValidFrom.UTC().Format(time.RFC3339), o.EndsAt.UTC().Format(time.RFC3339))
	default:
		return string(code)
	}
}

// take takes the steps on the row in hand and describes them.
func (r *actRow) take(steps []coupon.Step, o *coupon.Order, now time.Time) []coupon.Transition {
	ts := make([]coupon.Transition, 0, len(steps))
	for _, step := range steps {
		r.Version++
		t := coupon.Transition{
			CouponID: r.ID, Version: r.Version, From: step.From, To: step.To, Cause: step.Cause, UserID: r.UserID, BatchID: r.BatchID,
			Terms: r.Terms, ValidFrom: r.ValidFrom, At: now, OrderID: step.OrderID, LockUntil: step.LockUntil,
			Actor: o.Actor, Reason: o.Reason, Trace: o.Trace,
		}
		if step.From == coupon.Locked && step.To == coupon.Unused && step.Cause == coupon.CauseLock {
			t.Actor, t.Reason = "lapse", "" // settled in passing: nobody's act
		}
		if !step.ExpiresAt.Equal(r.ExpiresAt) {
			t.Previous = r.ExpiresAt
			r.moveEnd(step.ExpiresAt)
		}
		t.ExpiresAt, t.DueAt = r.ExpiresAt, r.DueAt
		switch step.From {
		case coupon.Locked:
			t.Since = r.LockedAt
		case coupon.Used:
			t.Since = r.UsedAt
		case coupon.Unused, coupon.Expired, coupon.Voided:
		default:
		}
		r.enter(step, now)
		ts = append(ts, t)
	}
	return ts
}

// moveEnd moves the end, and the due instant with it: the offset of a coupon stays. One that had no end has none yet.
func (r *actRow) moveEnd(end time.Time) {
	switch {
	case coupon.IsNever(end):
		r.DueAt = end
	case coupon.IsNever(r.ExpiresAt):
		r.DueAt = coupon.DueAt(end, r.Terms.Precision, strconv.FormatUint(r.ID, 10))
	default:
		r.DueAt = end.Add(r.DueAt.Sub(r.ExpiresAt))
	}
	r.ExpiresAt = end
}

// enter sets what the state after a step says of a coupon, and nothing of the one before stays.
func (r *actRow) enter(step coupon.Step, now time.Time) {
	r.Status = step.To
	if step.To == coupon.Locked {
		r.OrderID, r.LockUntil = step.OrderID, step.LockUntil
		if step.From != coupon.Locked {
			r.LockedAt = now
		}
		return
	}
	r.OrderID, r.LockUntil, r.LockedAt = "", time.Time{}, time.Time{}
	r.LatePay, r.LateWindow = r.Terms.LatePay, r.Terms.LateWindow
	r.UsedAt = time.Time{}
	if step.From == coupon.Expired {
		r.ExpiredAt, r.Cause = time.Time{}, ""
	}
	switch step.To {
	case coupon.Used:
		r.OrderID, r.UsedAt = step.OrderID, now
	case coupon.Expired:
		r.ExpiredAt, r.Cause = now, step.Cause
	case coupon.Unused, coupon.Locked, coupon.Voided:
	default:
	}
}
