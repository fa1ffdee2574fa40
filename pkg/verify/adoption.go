package verify

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// adoptionSizes are how much there is to do.
type adoptionSizes struct {
	imported int           // rows of each shape
	observed int           // rows that are observed
	pace     int           // ends a second
	lead     time.Duration // before the first end: the import takes less
	looked   int           // coupons behind the console's page
	braked   int           // ends a second, while expiry is paused
	extended int           // coupons whose ends are moved in the last moment
}

func adoptionSizesOf(scale string) (adoptionSizes, error) {
	switch scale {
	case ScaleSmall:
		return adoptionSizes{imported: 20_000, observed: 2000, pace: 500, lead: 90 * time.Second, looked: 60_000, braked: 200, extended: 5000}, nil
	case ScaleFull:
		return adoptionSizes{imported: 1_000_000, observed: 20_000, pace: 1000, lead: 6 * time.Minute, looked: 5_000_000, braked: 2000, extended: 200_000}, nil
	default:
		return adoptionSizes{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

// adoption is the verification of the way in, and of what operators do to many coupons.
type adoption struct {
	backstops
	adopt adoptionSizes
}

// sections in the order in which they run.
func (w *adoption) sections() []section {
	return []section{
		{"import-yudao", "a table of yudao's: a killed import goes on; states, ends and orders are the source's; a second one changes nothing; all end on time", w.imports(yudao)},
		{"import-litemall", "the same of litemall's", w.imports(litemall)},
		{"import-onecoupon", "the same of onecoupon's sixteen tables, with locks and orders from its settlements", w.imports(onecoupon)},
		{"observe", "coupons are observed beside an old job, held against it, and cut over", w.observe},
		{"pause", "expiry is paused while coupons end, and goes on: none lost, none early", w.pause},
		{"extend", "many coupons are extended in the last ten seconds: extended in time, or reported as ended", w.extend},
		{"console", "what the console asks among millions of coupons is answered in time, and its figures are SQL's", w.console},
	}
}

// AdoptionSections names the sections of the adoption, in order.
func AdoptionSections() []string {
	var names []string
	for _, s := range (&adoption{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Adoption verifies the way in. Its error and its result are as those of Walk.
func Adoption(ctx context.Context, cfg Config, scale string) (Result, error) {
	size, err := adoptionSizesOf(scale)
	if err := errors.Join(err, cfg.validateOnly(AdoptionSections())); err != nil {
		return cfg.result("adoption"), err
	}
	w := &adoption{adopt: size}
	w.cfg = cfg
	return cfg.verify(ctx, "adoption", w.sections(), func(i int) { w.index = uint64(i) })
}
