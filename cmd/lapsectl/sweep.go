package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/store"
)

type sweepCommand struct {
	Once  bool   `required:"" help:"One pass, then end: the scheduler says when the next one is."`
	Shard string `placeholder:"I/N" help:"Only the I-th of N shares, from 1 on: coupons whose id modulo N is I−1."`
	JSON  bool   `name:"json" help:"Print one JSON line."`
}

// Help says what it is for.
func (c *sweepCommand) Help() string {
	return `For an outside scheduler (XXL-JOB, a CronJob): settles what is overdue by the sweep's grace, and the locks that have run out, in the
same transactions as the expirers do. Any number of them may run at once, beside expirers too: they share the work without
waiting for each other, so --shard is only needed by a scheduler that insists on it. Exit code 0: done; 1: rows could not be changed, or
the time (expiry.sweep.budget) was up before the end; 2: it could not run, the clock guard's refusal included.`
}

// sweepJSON is the one line.
type sweepJSON struct {
	Settled  int    `json:"settled"`
	Expired  int    `json:"expired"`
	Unlocked int    `json:"unlocked"`
	Failed   int    `json:"failed"` // rows that cannot be changed
	Paused   int    `json:"paused"` // rows of which an operator has paused the expiry
	More     bool   `json:"more"`   // the time was up before the end
	Cutoff   string `json:"cutoff"` // what was due before it was looked at
	Shard    string `json:"shard"`
	TookMS   int64  `json:"took_ms"`
}

const mostShards = 1024

// parseShard reads I/N; nothing is 1/1.
func parseShard(text string) (of, rest uint64, err error) {
	if text == "" {
		return 1, 0, nil
	}
	left, right, ok := strings.Cut(text, "/")
	i, err1 := strconv.ParseUint(left, 10, 32)
	n, err2 := strconv.ParseUint(right, 10, 32)
	if !ok || err1 != nil || err2 != nil || n > mostShards || i < 1 || i > n {
		return 0, 0, fmt.Errorf("--shard: must be I/N with 1 ≤ I ≤ N ≤ %d, such as 2/3, got %q", mostShards, clipped(text))
	}
	return n, i - 1, nil
}

// Run sweeps once.
func (c *sweepCommand) Run(ctx context.Context, s *system) error {
	of, rest, err := parseShard(c.Shard)
	if err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		began := time.Now()
		done, err := sweepOnce(ctx, db, cfg, of, rest)
		if err != nil {
			return err
		}
		x := sweepJSON{
			Settled: done.Settled(), Expired: done.Expired, Unlocked: done.Unlocked, Failed: done.Failed, Paused: done.Paused, More: done.More,
			Cutoff: instant(done.Cutoff), Shard: fmt.Sprintf("%d/%d", rest+1, of), TookMS: time.Since(began).Milliseconds(),
		}
		if c.JSON {
			err = s.printLine(x)
		} else {
			err = s.print(fmt.Sprintf("expired %s, unlocked %s, failed %s, in %s\n", grouped(x.Expired), grouped(x.Unlocked), grouped(x.Failed), ms(float64(x.TookMS))))
		}
		switch {
		case err != nil:
			return err
		case x.Failed > 0:
			return s.miss("%d rows cannot be changed; the sweep went past them", x.Failed)
		case x.More:
			return s.miss("the time was up (expiry.sweep.budget %s); the next pass goes on", cfg.Expiry.Sweep.Budget)
		}
		return nil
	})
}

// sweepOnce goes once through the one core.
func sweepOnce(ctx context.Context, db *store.Store, cfg settings, of, rest uint64) (expiry.Swept, error) {
	sweep := cfg.Expiry.Sweep
	if cfg.Delay.Mechanism == config.MechanismSweep {
		sweep = sweep.Alone()
	}
	sweep.QuietWindows = nil // whoever calls has chosen the hour
	guard := clock.NewGuard(cfg.Expiry.ClockAhead, time.Now)
	if err := believe(ctx, db, guard, cfg.Expiry.ClockAhead); err != nil {
		return expiry.Swept{}, err
	}
	core := expiry.NewCore(db, guard, prometheus.NewRegistry())
	core.Heed(db)
	var rows expiry.Overdue = db
	if of > 1 {
		rows = store.Share{Store: db, Of: of, Rest: rest}
	}
	done, err := expiry.NewSweeper(sweep, rows, core, nil, rate.NewLimiter(rate.Inf, 0), zap.NewNop()).Once(ctx)
	return done, err //nolint:wrapcheck // says what it does
}

// believe refuses a database's clock that nobody vouches for. This process is too young to know a jump by its own
// monotonic clock: while the fleet has stopped for the clock it does not sweep either, and where no fleet runs, the
// database must not be ahead of this machine's own clock.
func believe(ctx context.Context, db *store.Store, guard *clock.Guard, tolerance time.Duration) error {
	reports, err := db.ClockReports(ctx)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	stopped := stoppedPods(reports)
	going := 0
	for _, r := range reports {
		if !r.Tripped && !r.Anchored.IsZero() {
			going++
		}
	}
	before := time.Now()
	now, err := db.Now(ctx)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	switch ahead := now.Sub(before.Round(0)) - time.Since(before); {
	case going > 0:
		return nil
	case len(stopped) > 0:
		guard.Hold()
		return fmt.Errorf("nothing is settled: %w: the fleet has stopped for it (lapsectl clock status)", clock.ErrAhead)
	case ahead > tolerance:
		return fmt.Errorf("nothing is settled: %w: by %s of this machine's own, and no worker runs that could tell which is right; at most %s (expiry.clock_ahead) is believed",
			clock.ErrAhead, ahead.Round(time.Millisecond), tolerance)
	}
	return nil
}
