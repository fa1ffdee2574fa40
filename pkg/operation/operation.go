// Package operation is what long works of operators have in common: a rebuild, a bulk change, a replay of events, an import.
//
// Each is a row with a lease, so that two processes do not work on it at once, and the same command goes on with one that stopped. How
// far it came is stored after the work is done and before the next begins: whoever goes on after a kill repeats a step at most.
package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	// CallLimit bounds one call to the database.
	CallLimit = 30 * time.Second
	// MaxRate is the highest rate, a second.
	MaxRate = 1_000_000
)

// Config tunes an operation.
type Config struct {
	Rate  float64       // things done a second at most; 0 is unbounded
	Lease time.Duration // how long a dead process keeps others out; default 15s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config { return Config{Lease: 15 * time.Second} }

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Rate != 0 && !(c.Rate >= 1 && c.Rate <= MaxRate) {
		errs = append(errs, fmt.Errorf("rate: must be between 1 and %d a second, or 0 for no bound, got %g", MaxRate, c.Rate))
	}
	return errors.Join(append(errs, Between("lease", c.Lease, time.Second, time.Hour))...)
}

// Between says that a field is out of its bounds, or nothing.
func Between[T time.Duration | int](field string, v, low, high T) error {
	if v < low || v > high {
		return fmt.Errorf("%s: must be between %v and %v, got %v", field, low, high, v)
	}
	return nil
}

// Pace is the limiter of the rate, and how many are done at once under it: a batch a second at least, or the lease would run out over it.
func (c Config) Pace(batch int) (*rate.Limiter, int) {
	if c.Rate == 0 {
		return rate.NewLimiter(rate.Inf, 0), batch
	}
	batch = max(1, min(batch, int(c.Rate)))
	return rate.NewLimiter(rate.Limit(c.Rate), batch), batch
}

// Rows is what an operation asks of the database.
type Rows interface {
	PeekOperation(ctx context.Context, kind string, hash [32]byte) (coupon.Operation, bool, error)
	ClaimOperation(ctx context.Context, owner, kind string, hash [32]byte, ask []byte, fresh bool, lease time.Duration) (coupon.Operation, error)
	MoveOperation(ctx context.Context, h coupon.OperationHold, progress []byte, done bool) error
}

// ErrRunning: another process is at it.
var ErrRunning = errors.New("the same is being done by another process")

// Ask names an operation.
type Ask struct {
	Kind  string
	Hash  [32]byte // tells asks of a kind apart; of equal ones one runs at a time, and an unfinished one is gone on with
	Terms any      // kept as JSON for whoever looks, and for GoesOn
	Fresh bool     // do not go on where an unfinished one stands
	// GoesOn says whether an unfinished one may be gone on with; nil: always.
	GoesOn func(coupon.Operation) bool
}

func (a *Ask) goesOn(op coupon.Operation) bool {
	return !a.Fresh && (a.GoesOn == nil || a.GoesOn(op))
}

// Peek says how an unfinished one stands that Claim would go on with, and reads its progress; false: there is none.
func Peek(ctx context.Context, rows Rows, a Ask, progress any) (coupon.Operation, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, CallLimit)
	defer cancel()
	op, open, err := rows.PeekOperation(ctx, a.Kind, a.Hash)
	if err != nil || !open || !a.goesOn(op) {
		return coupon.Operation{}, false, err //nolint:wrapcheck // says what it does
	}
	return op, true, read(op, progress)
}

// Work is one process's hold of an operation. For one goroutine.
type Work struct {
	coupon.Operation

	rows Rows
	hold coupon.OperationHold
}

// Claim takes the operation for owner, which names this process and no other, past or present: an unfinished one is gone on with, and
// its progress read. The lease of a process that was killed is waited for; ErrRunning if its holder lives.
func Claim(ctx context.Context, rows Rows, c Config, owner string, a Ask, progress any) (*Work, error) {
	terms, err := json.Marshal(a.Terms)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Kind, err)
	}
	var moved time.Time
	for {
		op, err := claim(ctx, rows, c.Lease, owner, a, terms)
		if err != nil {
			return nil, err
		}
		if op.Held {
			return &Work{Operation: op, rows: rows, hold: coupon.OperationHold{Owner: owner, ID: op.ID, Epoch: op.Epoch, Lease: c.Lease}}, read(op, progress)
		}
		if !moved.IsZero() && !op.Moved.Equal(moved) {
			return nil, ErrRunning
		}
		moved = op.Moved
		// Short, so that a living holder is seen to move.
		if err := lifecycle.Sleep(ctx, min(op.Left+time.Millisecond, time.Second)); err != nil {
			return nil, err //nolint:wrapcheck // ctx's
		}
	}
}

func claim(ctx context.Context, rows Rows, lease time.Duration, owner string, a Ask, terms []byte) (coupon.Operation, error) {
	ctx, cancel := context.WithTimeout(ctx, CallLimit)
	defer cancel()
	op, open, err := rows.PeekOperation(ctx, a.Kind, a.Hash)
	if err != nil {
		return op, err //nolint:wrapcheck // says what it does
	}
	return rows.ClaimOperation(ctx, owner, a.Kind, a.Hash, terms, open && !a.goesOn(op), lease) //nolint:wrapcheck // says what it does
}

func read(op coupon.Operation, progress any) error {
	if len(op.Progress) == 0 {
		return nil
	}
	if err := json.Unmarshal(op.Progress, progress); err != nil {
		return fmt.Errorf("progress of operation %d: %w", op.ID, err)
	}
	return nil
}

// Hold is what the holder shows for a step that is a transaction with the operation's row.
func (w *Work) Hold() coupon.OperationHold { return w.hold }

// Keep stores how far it came and prolongs the lease. coupon.ErrConflict when another process has taken over. It is done also when ctx
// has ended.
func (w *Work) Keep(ctx context.Context, progress any) error {
	return w.move(ctx, w.hold, progress, false)
}

// End stores how far it came and lets go; failed is why the work ended, or nil, and is given back. A hold that was lost is another's,
// and left alone.
func (w *Work) End(ctx context.Context, progress any, done bool, failed error) error {
	if errors.Is(failed, coupon.ErrConflict) {
		return failed
	}
	h := w.hold
	h.Lease = 0
	return errors.Join(failed, w.move(ctx, h, progress, done && failed == nil))
}

func (w *Work) move(ctx context.Context, h coupon.OperationHold, progress any, done bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CallLimit)
	defer cancel()
	text, err := json.Marshal(progress)
	if err != nil {
		return fmt.Errorf("progress of operation %d: %w", w.ID, err)
	}
	if err := w.rows.MoveOperation(ctx, h, text, done); err != nil {
		return fmt.Errorf("store how far it came: %w", err)
	}
	return nil
}
