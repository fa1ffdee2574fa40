package reconcile

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Books is what is read of the database. Each call is one statement, or one short snapshot.
type Books interface {
	Fence(ctx context.Context, settled time.Duration) (coupon.Fence, error)
	NextCoupon(ctx context.Context, after uint64) (id uint64, ok bool, err error)
	TallyRange(ctx context.Context, low, high uint64) ([]coupon.Tally, error)
	StepTallies(ctx context.Context, low, high uint64, uncountedBefore time.Time) ([]coupon.StepTally, error)
	Suspects(ctx context.Context, low, high uint64, limit int) ([]uint64, error)
	LostCoupons(ctx context.Context, low, high uint64, limit int) ([]uint64, error)
	TwiceThere(ctx context.Context, low, high uint64, limit int) ([]uint64, error)
	ExplainSuspect(ctx context.Context, id uint64) (template uint64, found []coupon.Finding, err error)
	Books(ctx context.Context, settled uint64) ([]coupon.Book, error)
	Statistics(ctx context.Context, template uint64, day time.Time, limit int) ([]coupon.TemplateDay, error)
	UserCounts(ctx context.Context, template uint64, user string, limit int) (differ []coupon.UserCount, last coupon.UserCount, seen int, err error)
	TermsOf(ctx context.Context, template uint64, revision uint32) (coupon.Terms, error)
	SweepKeys(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error)
	Backlogs(ctx context.Context, before time.Time) ([]coupon.Backlog, error)
	Untold(ctx context.Context, before time.Time) ([]coupon.Backlog, error)
	Coupons(ctx context.Context, ids []uint64) ([]coupon.Coupon, time.Time, error)
	Timeline(ctx context.Context, id uint64) ([]coupon.Transition, error)
}

// Mender mends what can be mended without a person's judgement.
type Mender interface {
	ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(now time.Time) error) (time.Time, []coupon.Settlement, error)
	RepairStock(ctx context.Context, template uint64, by int64) (bool, error)
	RepairUserCount(ctx context.Context, template uint64, user string) (was, is int64, err error)
	RepairStatistics(ctx context.Context, d coupon.TemplateDay) error
}

// Ask says what to reconcile.
type Ask struct {
	Template uint64    // 0: all; the reading is the same, other templates' findings are left out
	Export   io.Reader // an export of orders as JSON lines; nil: none
	Part, Of int       // Of > 1: one of so many parts; part 0 has the counters, and all share the coupons
	Slow     bool      // pause after each range
	Repair   *Repair   // nil: nothing is changed
}

// Repair says in whose name to mend, and whether the database's clock may decide that a coupon has ended.
type Repair struct {
	Actor, Reason string
	Mender        Mender
	Allow         func(now time.Time) error
}

// run is one reconciliation.
type run struct {
	Config
	Ask
	books Books
	fence coupon.Fence
	found *findings

	mu      sync.Mutex
	tallies map[tallyKey]int64
	steps   map[dayKey]*coupon.DayStats
	late    map[uint64]int64 // uncounted steps of templates
	damaged map[uint64]bool  // templates whose coupons or histories are not whole: recounting them would lose what is known
}

type tallyKey struct {
	template uint64
	revision uint32
	status   coupon.Status
	archived bool
}

type dayKey struct {
	template uint64
	day      string
}

// Reconcile reads everything once and reports what disagrees. It stops at the first error of the database; a finding is
// no error.
func Reconcile(ctx context.Context, c Config, books Books, a Ask) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("reconcile config: %w", err)
	}
	r := &run{
		Config: c, Ask: a, books: books, found: newFindings(c.Show),
		tallies: make(map[tallyKey]int64), steps: make(map[dayKey]*coupon.DayStats), late: make(map[uint64]int64),
		damaged: make(map[uint64]bool),
	}
	rep, err := r.all(ctx)
	if err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	return rep, nil
}

func (r *run) all(ctx context.Context) (*Report, error) {
	var err error
	if r.fence, err = r.books.Fence(ctx, r.Settled); err != nil {
		return nil, err
	}
	rep := &Report{Began: r.fence.Now, Unseeded: !r.fence.Seeded}
	var before, after counters
	if r.counts() {
		if before, err = r.counters(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.walk(ctx); err != nil {
		return nil, err
	}
	if r.counts() {
		if after, err = r.counters(ctx); err != nil {
			return nil, err
		}
		if rep.Templates, err = r.compare(ctx, before, after); err != nil {
			return nil, err
		}
		parts := []func(context.Context) error{r.overdue, r.backlogs}
		if r.Repair != nil { // not before it is known what is damaged; else it went on beside the walk
			parts = append(parts, r.users)
		}
		for _, part := range parts {
			if err := part(ctx); err != nil {
				return nil, err
			}
		}
	}
	for _, n := range r.tallies {
		rep.Coupons += n
	}
	if r.Export != nil && r.counts() {
		if err := r.orders(ctx, rep); err != nil {
			return nil, err
		}
	}
	rep.Kinds = r.found.kinds()
	return rep, nil
}

// counts reports whether this part holds the counters against the coupons.
func (r *run) counts() bool { return r.Of < 2 || r.Part == 0 }

// about reports whether a template is asked about.
func (r *run) about(template uint64) bool { return r.Template == 0 || r.Template == template }

// walk goes over the ranges of ids that hold coupons, a few at a time.
func (r *run) walk(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(r.Workers)
	if r.counts() && r.Repair == nil {
		g.Go(func() error { return r.users(gctx) })
	}
	at := uint64(0)
	for n := 0; gctx.Err() == nil; n++ {
		next, ok, err := r.books.NextCoupon(gctx, at)
		if err != nil {
			_ = g.Wait() // this error is the first
			return err
		}
		if !ok || next > r.fence.Last {
			break
		}
		low := next - 1
		high := low + uint64(r.Range)
		if low < r.fence.Settled { // a range is settled as a whole, or not
			high = min(high, r.fence.Settled)
		}
		mine := r.Of < 2 || n%r.Of == r.Part
		g.Go(func() error { return r.ranged(gctx, low, high, mine) })
		at = high
		if r.Slow && lifecycle.Sleep(gctx, r.Pause) != nil {
			break // Wait tells why, or the caller's context does
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err() //nolint:wrapcheck // says it all
}

// suspectsOfRange bounds what one range can give.
const suspectsOfRange = 1000

func (r *run) ranged(ctx context.Context, low, high uint64, mine bool) error {
	if r.counts() {
		if high <= r.fence.Settled {
			ts, err := r.books.TallyRange(ctx, low, high)
			if err != nil {
				return err
			}
			r.addTallies(ts)
		}
		if r.fence.Seeded {
			ss, err := r.books.StepTallies(ctx, low, high, r.fence.Now.Add(-r.Uncounted))
			if err != nil {
				return err
			}
			if err := r.addSteps(ctx, ss); err != nil {
				return err
			}
		}
	}
	if !mine {
		return nil
	}
	ids, err := r.books.Suspects(ctx, low, high, suspectsOfRange)
	if err != nil {
		return err
	}
	for _, id := range ids {
		template, fs, err := r.books.ExplainSuspect(ctx, id)
		if err != nil {
			return err
		}
		for _, f := range fs {
			r.damage(template, f)
		}
	}
	twice, err := r.books.TwiceThere(ctx, low, high, suspectsOfRange)
	if err != nil {
		return err
	}
	for at := range slices.Chunk(twice, coupon.MaxPage) {
		cs, _, err := r.books.Coupons(ctx, at)
		if err != nil {
			return err
		}
		for i := range cs {
			r.damage(cs[i].Terms.TemplateID, coupon.Finding{
				Kind: coupon.FindTwice, Subject: fmt.Sprintf("coupon %d", cs[i].ID), Expected: "in one place", Found: "in the table and in the archive",
			})
		}
	}
	if r.Template != 0 {
		return nil // of what is nowhere, the template is not known
	}
	lost, err := r.books.LostCoupons(ctx, low, high, suspectsOfRange)
	for _, id := range lost {
		r.found.add(coupon.Finding{Kind: coupon.FindLost, Subject: fmt.Sprintf("coupon %d", id), Expected: "there, since a grant was answered with it", Found: "nowhere"})
	}
	return err
}

// damage reports that a template's coupons are not whole.
func (r *run) damage(template uint64, f coupon.Finding) {
	r.mu.Lock()
	r.damaged[template] = true
	r.mu.Unlock()
	if r.about(template) {
		r.found.add(f)
	}
}

// mends reports whether a template's counters may be recounted.
func (r *run) mends(template uint64) bool { return r.Repair != nil && !r.damaged[template] }

func (r *run) addTallies(ts []coupon.Tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range ts {
		r.tallies[tallyKey{t.Template, t.Revision, t.Status, t.Archived}] += t.Coupons
	}
}

func (r *run) addSteps(ctx context.Context, ss []coupon.StepTally) error {
	for _, t := range ss {
		terms, err := r.books.TermsOf(ctx, t.Template, t.Revision)
		if err != nil {
			return err
		}
		var one coupon.DayStats
		one.Count(&coupon.Counted{From: t.From, To: t.To, Value: terms.Value})
		k := dayKey{t.Template, t.Day.UTC().Format(time.DateOnly)}
		r.mu.Lock()
		if r.steps[k] == nil {
			r.steps[k] = &coupon.DayStats{}
		}
		r.steps[k].Add(one, t.Counted)
		r.late[t.Template] += t.Uncounted
		r.mu.Unlock()
	}
	return nil
}
