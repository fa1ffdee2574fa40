package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	turns      = 5
	warmups    = 2 // connections are made, plans are read, what was granted is counted
	turnFor    = 4 * time.Second
	turnSettle = 300 * time.Millisecond
	patience   = time.Minute
	p99Times   = 1.5
)

// company is something that goes on beside a checkout, and can stand still.
type company struct {
	pause, resume func() error
	done          func() (int, error) // how much of it is done
}

// beside is how a checkout fares alone and in company.
type beside struct {
	calm, busy load
	least      int           // that was done of the company's work in one of the busy turns
	paused     time.Duration // for how long the company stood still
}

// beside lets orders lock and redeem at a shop's pace while something else goes on and stands still in turns: whatever the machine
// does of its own then weighs on both.
func (s *shop) beside(ctx context.Context, w *backstops, template string, with company) (b beside, err error) {
	each := int(w.size.pace * turnFor.Seconds())
	stopped := time.Time{}
	stop := func() error {
		stopped = time.Now()
		if err := with.pause(); err != nil {
			return err
		}
		// Others relay what the stopped ones had taken on: else a turn without them would have less to do, and the next one more.
		return drained(ctx, s.DB())
	}
	start := func() error {
		b.paused += time.Since(stopped)
		before, err := with.done()
		if err := errors.Join(err, with.resume()); err != nil {
			return err
		}
		return s.stirring(ctx, with, before)
	}
	stands := true
	defer func() {
		if stands {
			err = errors.Join(err, with.resume())
		}
	}()
	if err := stop(); err != nil {
		return b, err
	}
	stock, err := s.fill(ctx, template, "beside", (warmups+2*turns)*each)
	if err != nil {
		return b, err
	}
	turn := func(i int, into *load) error {
		if err := settle(ctx); err != nil {
			return err
		}
		l := s.pairsAt(ctx, stock.ids[i*each:(i+1)*each], w.size.pace)
		into.took, into.failed = append(into.took, l.took...), into.failed+l.failed
		return ctx.Err()
	}
	var warm load
	for i := range warmups {
		err := drained(ctx, s.DB())
		if err == nil {
			err = turn(2*turns+i, &warm)
		}
		if err != nil {
			return b, err
		}
	}
	if err := drained(ctx, s.DB()); err != nil {
		return b, err
	}
	for i := range turns {
		if i > 0 {
			stands = true // perhaps in part
			if err := stop(); err != nil {
				return b, err
			}
		}
		if err := turn(2*i, &b.calm); err != nil {
			return b, err
		}
		if err := start(); err != nil {
			return b, err
		}
		stands = false
		before, err := with.done()
		if err := errors.Join(err, turn(2*i+1, &b.busy)); err != nil {
			return b, err
		}
		after, err := with.done()
		if err != nil {
			return b, err
		}
		if i == 0 || after-before < b.least {
			b.least = after - before
		}
	}
	return b, nil
}

// stirring waits until the company is at work again: a process that stood still first looks at its clock.
func (s *shop) stirring(ctx context.Context, with company, before int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := until(ctx, func() (bool, error) {
		n, err := with.done()
		return n > before, err
	})
	if err != nil {
		return fmt.Errorf("waiting for what goes on beside: %w", err)
	}
	return nil
}

func settle(ctx context.Context) error { return lifecycle.Sleep(ctx, turnSettle) }

// wants holds the one against the other.
func (b beside) wants(t *tally) {
	calm, busy := late(b.calm.took, 99), late(b.busy.took, 99)
	told(t, "checkout_calls", len(b.busy.took))
	want(t, "done_in_the_least_busy_turn", b.least, AtLeast, 1)
	want(t, "checkout_failed", b.calm.failed+b.busy.failed, Equal, 0)
	want(t, "checkout_p99_ms", busy, AtMost, p99Times*calm)
	want(t, "checkout_calm_p99_ms", calm, AtLeast, 0)
	want(t, "checkout_p50_ms", late(b.busy.took, 50), AtLeast, 0)
	want(t, "checkout_calm_p50_ms", late(b.calm.took, 50), AtLeast, 0)
}
