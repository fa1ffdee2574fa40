package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Scales of the backstops.
const (
	ScaleSmall = "small" // tens of thousands of rows, some minutes: for every change
	ScaleFull  = "full"  // the numbers of the promise: millions of rows, most of an hour
)

// sizes are how much there is to do.
type sizes struct {
	pending  int // coupons whose triggers are lost with the broker
	bucket   int // coupons in the bucket that is deleted
	rows     int // of the table that is swept, reconciled and archived
	overdue  int // of them
	spike    int // coupons that end in one instant
	planned  int // coupons that the planner finds in one instant
	archived int
	pace     float64 // lock + redeem a second, while something else goes on
}

func sizesOf(scale string) (sizes, error) {
	switch scale {
	case ScaleSmall:
		return sizes{pending: 10_000, bucket: 500, rows: 60_000, overdue: 25_000, spike: 10_000, planned: 20_000, archived: 40_000, pace: 50}, nil
	case ScaleFull:
		return sizes{
			pending: 200_000, bucket: 5000, rows: 5_000_000, overdue: 200_000, spike: 300_000, planned: 1_000_000, archived: 200_000, pace: 100,
		}, nil
	default:
		return sizes{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

// backstops is the verification of what stands behind the ladder.
type backstops struct {
	checkout
	size  sizes
	shelf shelf
}

// sections in the order in which they run.
func (w *backstops) sections() []section {
	return []section{
		{"rebuild", "every queue is deleted; a rebuild brings every trigger back, and the sweep what came due meanwhile", w.rebuild},
		{"bucket", "one bucket is deleted; that is found, mended, and its coupons are swept", w.bucket},
		{"sweep-shared", "three sweeps at once share what is overdue; nothing is read twice", w.sweepShared},
		{"sweep-bad-rows", "500 rows that cannot be changed stand at its head; a checkout goes on beside it", w.sweepBadRows},
		{"spike", "many coupons end in one instant, and the sweep takes none of them from the ladder", w.spike},
		{"planner", "very many coupons in one instant, a killed planner, a horizon that is raised and lowered", w.planner},
		{"reconcile", "the books of a large table, healthy and then damaged in ten ways", w.reconcile},
		{"archive", "finished coupons move while a checkout goes on", w.archive},
		{"clock", "the database's clock is set ahead: nothing expires for it, until it is right again", w.clock},
		{"status", "the broker is slowed, then the database; status says which", w.status},
	}
}

// BackstopsSections names the sections of the backstops, in order.
func BackstopsSections() []string {
	var names []string
	for _, s := range (&backstops{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Backstops verifies what stands behind the ladder, and the operator's commands. Its error and its result are as those of
// Walk.
func Backstops(ctx context.Context, cfg Config, scale string) (Result, error) {
	size, err := sizesOf(scale)
	if err := errors.Join(err, cfg.validateOnly(BackstopsSections())); err != nil {
		return cfg.result("backstops"), err
	}
	w := &backstops{checkout: checkout{cfg: cfg}, size: size, shelf: shelf{database: fmt.Sprintf("lapse_verify_%d", os.Getpid())}}
	result, err := cfg.verify(ctx, "backstops", w.sections(), func(i int) { w.index = uint64(i) })
	return result, errors.Join(err, w.shelf.drop(ctx, cfg))
}
