package ledger

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	repeatEvery = time.Minute            // the same error again in the log
	pruneEvery  = time.Hour              // tombstones
	pruneBatch  = 1000                   // rows of one DELETE
	pruneCalls  = 100                    // of one round: what is left waits for the next
	foldCalls   = 100                    // likewise
	retryMin    = 200 * time.Millisecond // after a seeding that failed
	retryMax    = 30 * time.Second
	idleFactor  = 20               // pauses after a look at history that counted nothing: another pod may be at it
	callWithin  = 30 * time.Second // a call to the store, all its tries
)

// Run folds returned quota into the counters and clears away old tombstones, until ctx ends. The database being away is
// reported now and then, until it is back.
func (l *Ledger) Run(ctx context.Context) error {
	var pruned time.Time
	round := func(ctx context.Context) error {
		err := l.fold(ctx)
		if now := time.Now(); err == nil && now.Sub(pruned) >= pruneEvery {
			if err = l.prune(ctx); err == nil {
				pruned = now
			}
		}
		return err
	}
	tell := telemetry.NewRepeats(l.log, repeatEvery, time.Now).Tell("housekeeping of the ledger", "the ledger's housekeeping goes on")
	return lifecycle.Every(ctx, l.config.QuotaInterval, round, tell) //nolint:wrapcheck // nil
}

func (l *Ledger) fold(ctx context.Context) error {
	more := true
	for n := 0; more && n < foldCalls && ctx.Err() == nil; n++ {
		var folded int
		err := bounded(ctx, func(ctx context.Context) (err error) {
			folded, more, err = l.store.FoldQuota(ctx, l.config.QuotaBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("give quota back: %w", err)
		}
		l.metrics.returned.Add(float64(folded))
	}
	return nil
}

func (l *Ledger) prune(ctx context.Context) error {
	for range pruneCalls {
		n := 0
		err := bounded(ctx, func(ctx context.Context) (err error) {
			n, err = l.store.PruneTombstones(ctx, l.config.KeepTombstones, pruneBatch)
			return err
		})
		if err != nil {
			return fmt.Errorf("prune tombstones: %w", err)
		}
		if n < pruneBatch || ctx.Err() != nil {
			return nil
		}
	}
	return nil
}

// Seed counts what happened before the statistics were kept from events, once in the installation's life, and then
// waits for ctx to end. It begins when subscribed answers nil for the first time: the queue is there and bound, so what
// is told from now on comes by it. Several pods may run this: one works, the others wait until it is done or gone.
func (l *Ledger) Seed(ctx context.Context, subscribed func() error) error {
	for subscribed() != nil {
		if lifecycle.Sleep(ctx, retryMin) != nil {
			return nil
		}
	}
	repeats := telemetry.NewRepeats(l.log, repeatEvery, time.Now)
	total, wait := 0, retryMin
	for {
		var counted int
		var done bool
		err := bounded(ctx, func(ctx context.Context) (err error) {
			counted, done, err = l.store.SeedStats(ctx, l.config.SeedBatch)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		total += counted
		l.metrics.seeded.Add(float64(counted))
		pause := l.config.SeedPause
		if counted == 0 {
			pause *= idleFactor
		}
		switch {
		case err != nil:
			repeats.Failed("seeding of the statistics", err)
			pause, wait = wait, min(2*wait, retryMax)
		case done:
			if total > 0 {
				l.log.Info("the statistics hold what happened before they were kept", zap.Int("steps", total))
			}
			<-ctx.Done()
			return nil
		default:
			repeats.Recovered("the seeding of the statistics goes on")
			wait = retryMin
		}
		if lifecycle.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

func bounded(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callWithin)
	defer cancel()
	return f(ctx)
}
