package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// statsPage is how many rows of the statistics one statement reads.
const statsPage = 5000

// counters are what the counters said at one time: the quota of each template in one snapshot, the days as they were read.
type counters struct {
	books map[uint64]coupon.Book
	days  map[dayKey]coupon.DayStats
}

func (r *run) counters(ctx context.Context) (counters, error) {
	c := counters{books: make(map[uint64]coupon.Book), days: make(map[dayKey]coupon.DayStats)}
	books, err := r.books.Books(ctx, r.fence.Settled)
	if err != nil {
		return c, err
	}
	for _, b := range books {
		c.books[b.Template] = b
	}
	if !r.fence.Seeded {
		return c, nil
	}
	var template uint64
	var day time.Time
	for more := true; more; {
		rows, err := r.books.Statistics(ctx, template, day, statsPage)
		if err != nil {
			return c, err
		}
		for _, d := range rows {
			template, day = d.Template, d.Day
			c.days[dayKey{template, day.UTC().Format(time.DateOnly)}] = d.DayStats
		}
		more = len(rows) == statsPage
	}
	return c, nil
}

// sums are what the coupons of a template say.
type sums struct {
	Balance
	returned int64 // of the quota, by settled coupons
}

func (r *run) sums(ctx context.Context) (map[uint64]*sums, error) {
	out := make(map[uint64]*sums)
	for k, n := range r.tallies {
		s := out[k.template]
		if s == nil {
			s = &sums{Balance: Balance{Template: k.template}}
			out[k.template] = s
		}
		s.count(k.status, k.archived, n)
		back, err := r.returns(ctx, k.template, k.revision, k.status)
		if err != nil {
			return nil, err
		}
		if back {
			s.returned += n
		}
	}
	return out, nil
}

func (b *Balance) count(status coupon.Status, archived bool, n int64) {
	b.Granted += n
	if archived {
		b.Archived += n
		return
	}
	switch status {
	case coupon.Unused:
		b.Unused += n
	case coupon.Locked:
		b.Locked += n
	case coupon.Used:
		b.Used += n
	case coupon.Expired:
		b.Expired += n
	case coupon.Voided:
		b.Voided += n
	}
}

// returns reports whether a coupon in that state has given its piece of the quota back.
func (r *run) returns(ctx context.Context, template uint64, revision uint32, status coupon.Status) (bool, error) {
	if status != coupon.Expired && status != coupon.Voided {
		return false, nil
	}
	terms, err := r.books.TermsOf(ctx, template, revision)
	return terms.QuotaBack == coupon.QuotaBackTotal || terms.QuotaBack == coupon.QuotaBackTotalAndUser, err
}

// owed is how many returns by settled coupons a counter tells of: those that it lacks of all that were granted, and those
// still to be folded, without those of late coupons.
func (r *run) owed(ctx context.Context, b coupon.Book, settled int64) (int64, error) {
	n := settled - b.Taken + b.Pending
	for _, t := range b.Late {
		n += t.Coupons
		back, err := r.returns(ctx, t.Template, t.Revision, t.Status)
		if err != nil {
			return 0, err
		}
		if back {
			n -= t.Coupons
		}
	}
	return n, nil
}

// outside is how far a value lies outside of two bounds: below the lower one negative, above the upper one positive. The
// bounds are readings of something that only grows.
func outside(value, low, high int64) int64 {
	switch {
	case value < low:
		return value - low
	case value > max(low, high):
		return value - max(low, high)
	default:
		return 0
	}
}

// compare holds quota and statistics of every template against the coupons, and tells which of them is wrong. If both tell
// of the same surplus, or lack, coupons are missing, or are there for which nobody asked: that is no matter of recounting.
func (r *run) compare(ctx context.Context, before, after counters) ([]Balance, error) {
	all, err := r.sums(ctx)
	if err != nil {
		return nil, err
	}
	for template := range after.books {
		if all[template] == nil {
			all[template] = &sums{Balance: Balance{Template: template}}
		}
	}
	granted := r.grantedApart(before, after)
	var out []Balance
	for _, template := range slices.Sorted(maps.Keys(all)) {
		if !r.about(template) {
			continue
		}
		s := all[template]
		apart, known := int64(0), false // by how much the counter tells of more than there are
		if b, ok := before.books[template]; ok {
			if apart, err = r.quotaApart(ctx, s, b, after.books[template]); err != nil {
				return nil, err
			}
			known = true
		}
		s.Taken, s.Statistics = after.books[template].Taken, granted[template].total
		g := granted[template].apart
		switch {
		case known && apart != 0 && g != 0 && (apart > 0) == (g > 0):
			r.damaged[template] = true
			r.found.add(coupon.Finding{
				Kind: coupon.FindBalance, Subject: fmt.Sprintf("template %d", template),
				Expected: fmt.Sprintf("%d coupons by the quota, %d by the statistics, beside those granted meanwhile", s.Granted+apart, s.Granted+g),
				Found: fmt.Sprintf("%d: %d unused, %d locked, %d used, %d expired, %d voided, %d archived",
					s.Granted, s.Unused, s.Locked, s.Used, s.Expired, s.Voided, s.Archived),
			})
		case apart != 0:
			if err := r.quota(ctx, template, s.Taken, -apart); err != nil {
				return nil, err
			}
		}
		out = append(out, s.Balance)
	}
	return out, r.statistics(ctx, before, after)
}

// quotaApart is by how much a template's counter tells of more coupons than there are.
func (r *run) quotaApart(ctx context.Context, s *sums, before, after coupon.Book) (int64, error) {
	low, err := r.owed(ctx, before, s.Granted)
	if err != nil {
		return 0, err
	}
	high, err := r.owed(ctx, after, s.Granted)
	if err != nil {
		return 0, err
	}
	// What had been returned and was taken again meanwhile may have been seen before that, or after: returns as such only grow.
	again := after.Reinstated - before.Reinstated
	return outside(s.returned, low-again, max(low, high)+again), nil
}

// quota reports a counter that must move by so much, and moves it.
func (r *run) quota(ctx context.Context, template uint64, taken, by int64) error {
	r.found.add(coupon.Finding{
		Kind: coupon.FindQuota, Subject: fmt.Sprintf("template %d", template), Expected: fmt.Sprintf("%d taken", taken+by), Found: fmt.Sprintf("%d taken", taken),
	})
	if !r.mends(template) {
		return nil
	}
	ok, err := r.Repair.Mender.RepairStock(ctx, template, by)
	if ok {
		r.found.repaired(coupon.FindQuota, 1)
	}
	return err
}

type grantedApart struct{ total, apart int64 }

// grantedApart gives, for each template, what its statistics say was granted, and by how much that is more than history says.
func (r *run) grantedApart(before, after counters) map[uint64]grantedApart {
	out := make(map[uint64]grantedApart)
	for k := range r.days(before, after) {
		g := out[k.template]
		g.total += after.days[k].Granted
		if h := r.steps[k]; h != nil {
			g.apart -= outside(h.Granted, before.days[k].Granted, after.days[k].Granted)
		} else {
			g.apart -= outside(0, before.days[k].Granted, after.days[k].Granted)
		}
		out[k.template] = g
	}
	return out
}

// days are all that somebody says anything of.
func (r *run) days(before, after counters) map[dayKey]bool {
	all := make(map[dayKey]bool)
	for k := range before.days {
		all[k] = true
	}
	for k := range after.days {
		all[k] = true
	}
	for k := range r.steps {
		all[k] = true
	}
	return all
}

// figures are the fields of a day, by the names that people know.
func figures(d *coupon.DayStats) []struct {
	name string
	n    *int64
} {
	return []struct {
		name string
		n    *int64
	}{
		{"granted", &d.Granted},
		{"locked", &d.Locked},
		{"released", &d.Released},
		{"used", &d.Used},
		{"refunded", &d.Refunded},
		{"expired", &d.Expired},
		{"voided", &d.Voided},
		{"granted_value", &d.GrantedValue},
		{"used_value", &d.UsedValue},
		{"refunded_value", &d.RefundedValue},
		{"expired_value", &d.ExpiredValue},
		{"voided_value", &d.VoidedValue},
		{"reinstated", &d.Reinstated},
		{"reinstated_value", &d.ReinstatedValue},
	}
}

// statistics holds every day against history. Those of damaged templates are reported and stay as they are.
func (r *run) statistics(ctx context.Context, before, after counters) error {
	keys := slices.SortedFunc(maps.Keys(r.days(before, after)), func(a, b dayKey) int {
		return cmp.Or(cmp.Compare(a.template, b.template), cmp.Compare(a.day, b.day))
	})
	for _, k := range keys {
		if !r.about(k.template) {
			continue
		}
		low, high, steps := before.days[k], after.days[k], r.steps[k]
		if steps == nil {
			steps = &coupon.DayStats{}
		}
		var by coupon.DayStats
		lows, highs, history, bys := figures(&low), figures(&high), figures(steps), figures(&by)
		text := [2]string{}
		for i, f := range history {
			d := outside(*f.n, *lows[i].n, *highs[i].n)
			if *bys[i].n = d; d == 0 {
				continue
			}
			text[0] += fmt.Sprintf(" %s %d", f.name, *highs[i].n+d)
			text[1] += fmt.Sprintf(" %s %d", f.name, *highs[i].n)
		}
		if text[0] == "" {
			continue
		}
		r.found.add(coupon.Finding{Kind: coupon.FindStatistics, Subject: fmt.Sprintf("template %d %s", k.template, k.day), Expected: text[0][1:], Found: text[1][1:]})
		if !r.mends(k.template) {
			continue
		}
		day, err := time.Parse(time.DateOnly, k.day)
		if err != nil {
			return fmt.Errorf("day of the statistics: %w", err)
		}
		by.Day = day
		if err := r.Repair.Mender.RepairStatistics(ctx, coupon.TemplateDay{Template: k.template, DayStats: by}); err != nil {
			return err
		}
		r.found.repaired(coupon.FindStatistics, 1)
	}
	for _, template := range slices.Sorted(maps.Keys(r.late)) {
		if n := r.late[template]; n > 0 && r.about(template) {
			r.found.add(coupon.Finding{
				Kind: coupon.FindUncount, Subject: fmt.Sprintf("template %d", template),
				Expected: fmt.Sprintf("every step older than %s counted", r.Uncounted), Found: fmt.Sprintf("%d are not", n),
			})
		}
	}
	return nil
}
