package verify

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	turns      = 5
	turnFor    = 4 * time.Second
	turnSettle = 300 * time.Millisecond
	p99Times   = 1.5
)

// beside is how a checkout fares alone and beside something else.
type beside struct {
	calm, busy load
	paused     time.Duration // for how long the something else stood still
}

// beside lets orders lock and redeem at a shop's pace while something else goes on and stands still in turns: whatever the machine
// does of its own then weighs on both.
func (s *shop) beside(ctx context.Context, w *backstops, template string, pause, resume func() error) (b beside, err error) {
	each := int(w.size.pace * turnFor.Seconds())
	stopped := time.Time{}
	stop := func() error {
		stopped = time.Now()
		return pause()
	}
	start := func() error {
		b.paused += time.Since(stopped)
		return resume()
	}
	stands := true
	defer func() {
		if stands {
			err = errors.Join(err, resume())
		}
	}()
	if err := stop(); err != nil {
		return b, err
	}
	stock, err := s.fill(ctx, template, "beside", 2*turns*each)
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
		if err := turn(2*i+1, &b.busy); err != nil {
			return b, err
		}
	}
	return b, nil
}

func settle(ctx context.Context) error { return lifecycle.Sleep(ctx, turnSettle) }

// wants holds the one against the other.
func (b beside) wants(t *tally) {
	calm, busy := late(b.calm.took, 99), late(b.busy.took, 99)
	told(t, "checkout_calls", len(b.busy.took))
	want(t, "checkout_failed", b.calm.failed+b.busy.failed, Equal, 0)
	want(t, "checkout_p99_ms", busy, AtMost, p99Times*calm)
	want(t, "checkout_calm_p99_ms", calm, AtLeast, 0)
	want(t, "checkout_p50_ms", late(b.busy.took, 50), AtLeast, 0)
	want(t, "checkout_calm_p50_ms", late(b.calm.took, 50), AtLeast, 0)
}
