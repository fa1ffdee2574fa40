package verify

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// soak is the verification of what a fleet takes up in the course of time.
type soak struct {
	checkout
	over    time.Duration
	samples io.Writer // as CSV; nil: nowhere
}

// Bounds of a soak.
const (
	leastSoak   = time.Minute
	mostSoak    = 7 * 24 * time.Hour
	soakProves  = 30 * time.Minute // a shorter one shows that the measuring works
	soakEvery   = 10 * time.Second
	soakWarming = 20 * time.Second // until coupons end as fast as they are granted
	soakSettle  = 2 * time.Minute
	perTen      = 10 * time.Minute
	onePercent  = 0.01
)

// sections in the order in which they run.
func (w *soak) sections() []section {
	return []section{{"steady", "half of what the machine can do, for long: nothing grows", w.steady}}
}

// SoakSections names the sections, in order.
func SoakSections() []string {
	var names []string
	for _, s := range (&soak{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Soak verifies that nothing grows with time under half of the load that the machine can bear. Every sample goes to samples as CSV, unless that is
// nil. Its error and its result are as those of Walk.
func Soak(ctx context.Context, cfg Config, over time.Duration, samples io.Writer) (Result, error) {
	err := cfg.validateOnly(SoakSections())
	if over < leastSoak || over > mostSoak {
		err = errors.Join(err, fmt.Errorf("for: must be between %s and %s, got %s", leastSoak, mostSoak, over))
	}
	if err != nil {
		return cfg.result("soak"), err
	}
	w := &soak{checkout: checkout{cfg: cfg}, over: over, samples: samples}
	return cfg.verify(ctx, "soak", w.sections(), func(i int) { w.index = uint64(i) })
}

func (w *soak) steady(ctx context.Context, t *tally) error {
	return w.fleetOfAll(ctx, t, opening{deaf: true}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		w.cfg.View.Step("what this machine can do")
		can, err := s.measure(ctx, template)
		if err != nil {
			return err
		}
		rate := int(can.lives() / 2)
		told(t, "lives_per_s", int(can.lives()))
		if w.over < soakProves {
			w.cfg.View.Step(fmt.Sprintf("a soak of %s shows that the measuring works, and is no evidence: that takes %s", w.over, soakProves))
		}
		w.cfg.View.Step(fmt.Sprintf("%d coupons a second are granted, and end, for %s", rate, w.over))
		feed, err := s.feeding(ctx, template, rate, false)
		if err != nil {
			return err
		}
		defer func() { _ = feed.stop() }() // after the first time it has nothing to say
		if err := lifecycle.Sleep(ctx, soakWarming); err != nil {
			return err
		}
		c, err := w.sample(ctx, s)
		if err != nil {
			return err
		}
		if err := feed.stop(); err != nil {
			return err
		}
		told(t, "fed_per_s", int(feed.rate()))
		told(t, "evidence", evidence(w.over))
		c.wants(t, w.over >= soakProves)
		return w.settle(ctx, s, feed)
	})
}

func evidence(over time.Duration) int {
	if over < soakProves {
		return 0
	}
	return 1
}

// sample reads every figure again and again until the time is over.
func (w *soak) sample(ctx context.Context, s *shop) (*course, error) {
	c := &course{values: make(map[string][]float64)}
	var out *csv.Writer
	if w.samples != nil {
		out = csv.NewWriter(w.samples)
	}
	began := time.Now()
	for n := 0; ; n++ {
		at := time.Since(began)
		figures, err := s.figures(ctx, w.cfg.Stack)
		if err != nil {
			return c, err
		}
		c.add(at, figures)
		if out != nil {
			if err := c.write(out); err != nil {
				return c, err
			}
		}
		next := time.Duration(n+1) * soakEvery
		if next > w.over {
			return c, nil
		}
		if err := lifecycle.Sleep(ctx, time.Until(began.Add(next))); err != nil {
			return c, err
		}
	}
}

// settle waits for the last ends, and holds what was asked for against what became of it.
func (w *soak) settle(ctx context.Context, s *shop, f *feed) error {
	w.cfg.View.Step(fmt.Sprintf("%d coupons were asked for; waiting for the last", f.asked))
	const fed = "FROM grant_key k JOIN coupon c ON c.id = k.coupon_id WHERE k.issuer = '' AND k.grant_key LIKE 'roll-%'"
	limit, cancel := context.WithTimeout(ctx, max(0, f.last.Sub(s.Now()))+soakSettle)
	defer cancel()
	err := until(limit, func() (bool, error) {
		n, err := countIn(limit, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at <= UTC_TIMESTAMP(3)")
		return n == 0 && !s.Now().Before(f.last), err
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	expired, err := countIn(ctx, s.DB(), "SELECT COUNT(*) "+fed+" AND c.status = 4")
	if err != nil {
		return err
	}
	early, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon_history WHERE to_status = 4 AND at < expires_at")
	if err != nil {
		return err
	}
	twice, err := countIn(ctx, s.DB(), "SELECT COUNT(*) - COUNT(DISTINCT coupon_id) FROM coupon_history WHERE to_status = 4")
	if err != nil {
		return err
	}
	t := s.t
	told(t, "coupons", f.asked)
	want(t, "lost", f.asked-expired, Equal, 0)
	want(t, "early", early, Equal, 0)
	want(t, "doubled", twice, Equal, 0)
	return nil
}

// course is how figures went with time.
type course struct {
	names  []string
	at     []time.Duration
	values map[string][]float64
}

func (c *course) add(at time.Duration, figures map[string]float64) {
	if c.names == nil {
		for name := range figures {
			c.names = append(c.names, name)
		}
		slices.Sort(c.names)
	}
	c.at = append(c.at, at)
	for _, name := range c.names {
		c.values[name] = append(c.values[name], figures[name])
	}
}

// write writes the last sample, before the first one the names.
func (c *course) write(out *csv.Writer) error {
	last := len(c.at) - 1
	if last == 0 {
		if err := out.Write(append([]string{"seconds"}, c.names...)); err != nil {
			return fmt.Errorf("csv: %w", err)
		}
	}
	row := []string{strconv.FormatFloat(c.at[last].Seconds(), 'f', 1, 64)}
	for _, name := range c.names {
		row = append(row, strconv.FormatFloat(c.values[name][last], 'f', -1, 64))
	}
	err := out.Write(row)
	out.Flush()
	if err := errors.Join(err, out.Error()); err != nil {
		return fmt.Errorf("csv: %w", err)
	}
	return nil
}

// wants holds the growth of each figure in the last two thirds against a hundredth of it in ten minutes, or what is noise; what is no
// evidence is told.
func (c *course) wants(t *tally, evidence bool) {
	from := len(c.at) / 3
	told(t, "samples", len(c.at))
	for _, name := range c.names {
		values := c.values[name][from:]
		grows := slope(c.at[from:], values) * perTen.Seconds()
		usual := medianOf(values)
		most := rounded(max(onePercent*usual, noise(name)))
		if !evidence {
			most = math.MaxInt32
		}
		want(t, name+"_grows_in_10_min", rounded(grows), AtMost, most)
		told(t, name+"_median", int(usual))
	}
}
