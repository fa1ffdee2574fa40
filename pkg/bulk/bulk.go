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
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/operation"
)

// Config tunes a bulk change.
type Config struct {
	operation.Config // default: 2000 coupons changed a second, 15s

	Page  int // coupons looked at by one statement; default 2000
	Batch int // coupons changed by one transaction; default 200
	Most  int // coupons at most that one operation may be about; default 5 000 000: they are held in memory
	Tries int // how often a row that somebody holds is tried; default 10, a second apart
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	c := Config{Config: operation.DefaultConfig(), Page: 2000, Batch: 200, Most: 5_000_000, Tries: 10}
	c.Rate = 2000
	return c
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	return errors.Join(operation.Between("page", c.Page, 1, 10_000), operation.Between("batch", c.Batch, 1, 500),
		operation.Between("most", c.Most, 1, 20_000_000), operation.Between("tries", c.Tries, 1, 1000), c.Config.Validate())
}

// Rows is what a bulk change asks of the database.
type Rows interface {
	operation.Rows
	BulkPage(ctx context.Context, a *coupon.BulkAsk, from coupon.BulkPlace, limit int) (cs []coupon.Coupon, now time.Time, next coupon.BulkPlace, err error)
	BulkBatch(ctx context.Context, h coupon.OperationHold, a *coupon.BulkAsk, ids []uint64, again bool) (
		out []coupon.BulkOutcome, p coupon.BulkProgress, err error)
}

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
	b := &Bulk{config: c, owner: owner, rows: rows}
	b.limit, b.config.Batch = c.Pace(c.Batch)
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
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
	defer cancel()
	return b.rows.BulkPage(ctx, a, place, b.config.Page)
}

// Kind is the name of the operation in the database.
func Kind(v coupon.Verb) string { return "bulk." + string(v) }

// Claim takes the change, and says what was changed: one that was begun and not finished is gone on with, unless fresh.
func (b *Bulk) Claim(ctx context.Context, a *coupon.BulkAsk, fresh bool) (*operation.Work, coupon.BulkProgress, error) {
	p := coupon.BulkProgress{}
	kept := *a
	kept.IDs = nil // the hash tells lists apart
	w, err := operation.Claim(ctx, b.rows, b.config.Config, b.owner, operation.Ask{Kind: Kind(a.Verb), Hash: a.Hash(), Terms: kept, Fresh: fresh}, &p)
	if err != nil || !w.Resumed {
		return w, p, err
	}
	for what := range p { // what was not changed is met again, and counted then
		if what != coupon.BulkChange {
			delete(p, what)
		}
	}
	return w, p, w.Keep(ctx, p)
}

// Run changes what was found, nearest end first, and tells of each batch. However it ends, the database says how far it came. When ctx
// ends, the batch in hand is seen to its end.
func (b *Bulk) Run(ctx context.Context, a *coupon.BulkAsk, w *operation.Work, p coupon.BulkProgress, f *Found, tell func(coupon.BulkProgress)) (coupon.BulkProgress, error) {
	ids := make([]uint64, len(f.items))
	for i := range f.items {
		ids[i] = f.items[i].id
	}
	var err error
	for try := 1; len(ids) > 0 && err == nil; try++ {
		var busy []uint64
		if p, busy, err = b.round(ctx, w.Hold(), a, ids, p, w.Resumed || try > 1, tell); err != nil {
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
	return p, w.End(ctx, p, true, err)
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
	ctx, cancel := context.WithTimeout(ctx, operation.CallLimit)
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
