package reconcile

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Report is what a reconciliation found.
type Report struct {
	Began     time.Time // the database's clock
	Coupons   int64     // counted
	Templates []Balance
	Orders    int    // lines of the export that were compared
	Young     int    // lines left out, since what they say may be on its way
	Unseeded  bool   // the statistics are still being seeded from history, and were not compared
	Kinds     []Kind // those with findings, in the order of coupon.FindingKinds
}

// Kind is what was found of a kind.
type Kind struct {
	Kind     coupon.FindingKind
	Count    int64
	Repaired int64
	Shown    []coupon.Finding // the first ones
}

// Balance is a template's line: all that was granted is in one of the states, or archived.
type Balance struct {
	Template                              uint64
	Granted                               int64 // by the coupons
	Unused, Locked, Used, Expired, Voided int64
	Archived                              int64 // in the archive; not counted by state
	Taken                                 int64 // of the quota, what was given back taken off
	Statistics                            int64 // granted by the statistics
}

// Left is how many findings are there still.
func (r *Report) Left() int64 {
	var n int64
	for _, k := range r.Kinds {
		n += k.Count - k.Repaired
	}
	return n
}

// findings gathers them, from several goroutines.
type findings struct {
	mu   sync.Mutex
	show int
	by   map[coupon.FindingKind]*Kind
}

func newFindings(show int) *findings {
	return &findings{show: show, by: make(map[coupon.FindingKind]*Kind)}
}

func (f *findings) kind(k coupon.FindingKind) *Kind {
	if f.by[k] == nil {
		f.by[k] = &Kind{Kind: k}
	}
	return f.by[k]
}

func (f *findings) add(x coupon.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.kind(x.Kind)
	k.Count++
	if len(k.Shown) < f.show {
		k.Shown = append(k.Shown, x)
	}
}

func (f *findings) repaired(k coupon.FindingKind, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kind(k).Repaired += int64(n)
}

// kinds gives those that were found, in order.
func (f *findings) kinds() []Kind {
	var out []Kind
	for _, k := range coupon.FindingKinds() {
		if x := f.by[k]; x != nil {
			slices.SortStableFunc(x.Shown, func(a, b coupon.Finding) int {
				return cmp.Or(cmp.Compare(len(a.Subject), len(b.Subject)), cmp.Compare(a.Subject, b.Subject))
			})
			out = append(out, *x)
		}
	}
	return out
}
