// Package bulk makes one change to many coupons: it looks for those that are meant, then changes them nearest end first, in batches,
// at a rate, and keeps how far it has come.
//
// # Invariants
//
//   - What a coupon gets is decided by coupon.Apply on its locked row, whatever the look saw: a coupon that ended meanwhile is reported
//     as ended, and one that was extended in time is not expired at its old end.
//   - A batch and the count of it are one transaction, and history says which operation changed a coupon: whoever goes on after a kill
//     changes and counts none twice, also where an end is moved by so much.
//   - Rows that somebody holds are not waited for; they are tried again, and in the end reported as busy.
//   - Coupons that are granted while it works are not part of it.
package bulk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Config tunes a bulk change.
type Config struct {
	Page  int           // coupons looked at by one statement; default 2000
	Batch int           // coupons changed by one transaction; default 200
	Rate  float64       // coupons changed a second at most; 0 is unbounded; default 2000
	Lease time.Duration // how long a dead process keeps others out; default 15s
	Most  int           // coupons at most that one operation may be about; default 5 000 000: they are held in memory
	Tries int           // how often a row that somebody holds is tried; default 10, a second apart
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Page: 2000, Batch: 200, Rate: 2000, Lease: 15 * time.Second, Most: 5_000_000, Tries: 10}
}

// MaxRate is the highest rate, in coupons a second.
const MaxRate = 1_000_000

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	between := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %d and %d, got %d", field, low, high, v))
		}
	}
	between("page", c.Page, 1, 10_000)
	between("batch", c.Batch, 1, 500)
	between("most", c.Most, 1, 20_000_000)
	between("tries", c.Tries, 1, 1000)
	if c.Rate != 0 && !(c.Rate >= 1 && c.Rate <= MaxRate) {
		errs = append(errs, fmt.Errorf("rate: must be between 1 and %d coupons a second, or 0 for no bound, got %g", MaxRate, c.Rate))
	}
	if c.Lease < time.Second || c.Lease > time.Hour {
		errs = append(errs, fmt.Errorf("lease: must be between 1s and 1h, got %s", c.Lease))
	}
	return errors.Join(errs...)
}

// Rows is what a bulk change asks of the database.
type Rows interface {
	BulkPage(ctx context.Context, a *coupon.BulkAsk, from coupon.BulkPlace, limit int) (cs []coupon.Coupon, now time.Time, next coupon.BulkPlace, err error)
	BulkBatch(ctx context.Context, h coupon.OperationHold, a *coupon.BulkAsk, ids []uint64, again bool) (
		out []coupon.BulkOutcome, p coupon.BulkProgress, err error)
	ClaimOperation(ctx context.Context, owner, kind string, hash [32]byte, ask []byte, fresh bool, lease time.Duration) (coupon.Operation, error)
	MoveOperation(ctx context.Context, h coupon.OperationHold, progress []byte, done bool) error
}

// ErrRunning: another process is at the same change.
var ErrRunning = errors.New("the same change is being made by another process")

// ErrTooMany: the ask is about more coupons than one operation may be.
var ErrTooMany = errors.New("too many coupons")

// Found is what a look over the coupons gave.
type Found struct {
	Now   time.Time           // the database's clock of the last page
	Sums  coupon.BulkProgress // what would become of each, as it is now
	items []item
}

// Changes is how many coupons would be changed.
func (f *Found) Changes() int { return len(f.items) }

type item struct {
	due time.Time
	id  uint64
}

// callLimit bounds one call to the database.
const callLimit = 30 * time.Second

// Bulk is one process's work on one change.
type Bulk struct {
	config Config
	owner  string
	rows   Rows
	limit  *rate.Limiter
}

// New makes one; owner names this process and no other, past or present.
func New(c Config, owner string, rows Rows) (*Bulk, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("bulk config: %w", err)
	}
	b := &Bulk{config: c, owner: owner, rows: rows, limit: rate.NewLimiter(rate.Inf, 0)}
	if c.Rate > 0 {
		b.config.Batch = max(1, min(c.Batch, int(c.Rate))) // a batch a second at least, or the lease would run out
		b.limit = rate.NewLimiter(rate.Limit(c.Rate), b.config.Batch)
	}
	return b, nil
}

// Look reads the coupons that are meant and says what would become of each. Nothing is locked. tell is told of each page.
func (b *Bulk) Look(ctx context.Context, a *coupon.BulkAsk, tell func(seen int)) (*Found, error) {
	f := &Found{Sums: coupon.BulkProgress{}}
	seen := 0
	there := map[uint64]bool{}
	for place := (coupon.BulkPlace{}); !place.Done; {
		cs, now, next, err := b.page(ctx, a, place)
		if err != nil {
			return nil, err
		}
		if !now.IsZero() {
			f.Now = now
		}
		place = next
		for i := range cs {
			c := &cs[i]
			if there[c.ID] { // it was archived between two pages
				continue
			}
			if a.Verb == coupon.VerbReinstate {
				there[c.ID] = true
			}
			what := answer(a, c, now)
			f.Sums.Add(what, &c.Terms)
			if what == coupon.BulkChange {
				f.items = append(f.items, item{c.DueAt, c.ID})
			}
		}
		if seen += len(cs); seen > b.config.Most {
			return nil, fmt.Errorf("%w: more than %d; say more narrowly which", ErrTooMany, b.config.Most)
		}
		tell(seen)
	}
	if a.IDs != nil {
		for range len(a.IDs) - seen {
			f.Sums.Add(string(coupon.CodeNotFound), &coupon.Terms{})
		}
	}
	slices.SortFunc(f.items, func(x, y item) int { return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.id, y.id)) })
	return f, nil
}

// answer is what would become of the coupon.
func answer(a *coupon.BulkAsk, c *coupon.Coupon, now time.Time) string {
	switch v := coupon.Apply(c.Row, a.Of(&c.Row), now); {
	case v.Refused != "":
		return string(v.Refused)
	case v.Repeat:
		return coupon.BulkRepeat
	default:
		return coupon.BulkChange
	}
}

func (b *Bulk) page(ctx context.Context, a *coupon.BulkAsk, place coupon.BulkPlace) ([]coupon.Coupon, time.Time, coupon.BulkPlace, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return b.rows.BulkPage(ctx, a, place, b.config.Page)
}

// Kind is the name of the operation in the database.
func Kind(v coupon.Verb) string { return "bulk." + string(v) }

// Claim takes the change: one that was begun and not finished is gone on with, unless fresh. ErrRunning if another process is at it;
// the lease of one that was killed must run out first.
func (b *Bulk) Claim(ctx context.Context, a *coupon.BulkAsk, fresh bool) (coupon.Operation, coupon.BulkProgress, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	p := coupon.BulkProgress{}
	kept := *a
	kept.IDs = nil // the hash tells lists apart
	ask, err := json.Marshal(kept)
	if err != nil {
		return coupon.Operation{}, p, fmt.Errorf("bulk: %w", err)
	}
	op, err := b.rows.ClaimOperation(ctx, b.owner, Kind(a.Verb), a.Hash(), ask, fresh, b.config.Lease)
	switch {
	case err != nil:
		return op, p, err
	case !op.Held:
		return op, p, ErrRunning
	case !op.Resumed || len(op.Progress) == 0:
		return op, p, nil
	}
	if err := json.Unmarshal(op.Progress, &p); err != nil {
		return op, p, fmt.Errorf("bulk: progress: %w", err)
	}
	for what := range p { // what was not changed is met again, and counted then
		if what != coupon.BulkChange {
			delete(p, what)
		}
	}
	return op, p, b.move(ctx, b.hold(op), p, false)
}

// Run changes what was found, nearest end first, and tells of each batch. However it ends, the database says how far it came. When ctx
// ends, the batch in hand is seen to its end.
func (b *Bulk) Run(ctx context.Context, a *coupon.BulkAsk, op coupon.Operation, p coupon.BulkProgress, f *Found, tell func(coupon.BulkProgress)) (coupon.BulkProgress, error) {
	h := b.hold(op)
	ids := make([]uint64, len(f.items))
	for i := range f.items {
		ids[i] = f.items[i].id
	}
	var err error
	for try := 1; len(ids) > 0 && err == nil; try++ {
		var busy []uint64
		if p, busy, err = b.round(ctx, h, a, ids, p, op.Resumed || try > 1, tell); err != nil {
			break
		}
		ids = busy
		if len(ids) > 0 && try >= b.config.Tries {
			p = p.Clone()
			for range ids {
				p.Add(coupon.BulkBusy, &coupon.Terms{})
			}
			break
		}
		if len(ids) > 0 {
			err = lifecycle.Sleep(ctx, time.Second)
		}
	}
	if errors.Is(err, coupon.ErrConflict) {
		return p, err // it is another's now
	}
	h.Lease = 0
	return p, errors.Join(err, b.move(context.WithoutCancel(ctx), h, p, err == nil))
}

func (b *Bulk) hold(op coupon.Operation) coupon.OperationHold {
	return coupon.OperationHold{Owner: b.owner, ID: op.ID, Epoch: op.Epoch, Lease: b.config.Lease}
}

// round takes every coupon once, and gives those that somebody held.
func (b *Bulk) round(ctx context.Context, h coupon.OperationHold, a *coupon.BulkAsk, ids []uint64, p coupon.BulkProgress, again bool,
	tell func(coupon.BulkProgress),
) (coupon.BulkProgress, []uint64, error) {
	var busy []uint64
	for part := range slices.Chunk(ids, b.config.Batch) {
		if err := b.limit.WaitN(ctx, len(part)); err != nil {
			return p, nil, fmt.Errorf("wait for the rate: %w", err)
		}
		out, next, err := b.batch(context.WithoutCancel(ctx), h, a, part, again)
		if err != nil {
			return p, nil, err
		}
		p = next
		for i := range out {
			if out[i].What == coupon.BulkBusy {
				busy = append(busy, out[i].ID)
			}
		}
		tell(p)
		if ctx.Err() != nil {
			return p, nil, context.Cause(ctx)
		}
	}
	return p, busy, nil
}

// batch does one; what the database cannot do now is tried again for as long as the lease lasts.
func (b *Bulk) batch(ctx context.Context, h coupon.OperationHold, a *coupon.BulkAsk, ids []uint64, again bool) (
	out []coupon.BulkOutcome, p coupon.BulkProgress, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for began := time.Now(); ; {
		out, p, err = b.rows.BulkBatch(ctx, h, a, ids, again)
		retry := errors.Is(err, coupon.ErrUnavailable) || errors.Is(err, coupon.ErrContention)
		if err == nil || !retry || time.Since(began) > b.config.Lease/2 {
			return out, p, err //nolint:wrapcheck // says what it does
		}
		again = true // a commit whose answer was lost
		if err := lifecycle.Sleep(ctx, time.Second); err != nil {
			return nil, nil, err //nolint:wrapcheck // ctx's
		}
	}
}

func (b *Bulk) move(ctx context.Context, h coupon.OperationHold, p coupon.BulkProgress, done bool) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	progress, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("bulk: progress: %w", err)
	}
	if err := b.rows.MoveOperation(ctx, h, progress, done); err != nil {
		return fmt.Errorf("store how far it came: %w", err)
	}
	return nil
}
