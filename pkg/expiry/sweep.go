package expiry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Overdue finds rows past their due instant (or locks past theirs) and settles them in the core's own transaction.
type Overdue interface {
	SweepBatch(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error) (coupon.Swept, error)
	SweepKeys(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error)
	Mark(ctx context.Context) (mark, now time.Time, err error)
	Overdue(ctx context.Context, grace time.Duration) (n int64, oldest time.Duration, err error)
	PrunePods(ctx context.Context) error
}

// Sweeper is the core's second driver: it finds by the row what the ladder missed. It needs no broker.
type Sweeper struct {
	config SweepConfig
	rows   Overdue
	core   *Core
	limit  *rate.Limiter
	log    *zap.Logger
	heard  func() error // nil: the ladder can be heard; may be nil itself
	away   time.Time    // since when it cannot; zero: it can
}

// NewSweeper makes the sweep; c is SweepConfig.Alone when it is the only mechanism. heard tells whether the broker is
// there to be heard.
func NewSweeper(c SweepConfig, rows Overdue, core *Core, heard func() error, limit *rate.Limiter, log *zap.Logger) *Sweeper {
	return &Sweeper{config: c, rows: rows, core: core, heard: heard, limit: limit, log: log}
}

// grace is how long a due coupon is left to the ladder now.
func (s *Sweeper) grace(now time.Time) time.Duration {
	if s.heard == nil || s.heard() == nil {
		s.away = time.Time{}
		return s.config.Grace
	}
	if s.away.IsZero() {
		s.away = now
	}
	if now.Sub(s.away) < s.config.OutageGrace {
		return s.config.Grace
	}
	return s.config.OutageGrace
}

const (
	gaugeEvery = 10 * time.Second // how long the overdue gauges are kept
	pruneEvery = time.Hour        // how often what pods left behind is cleared away
)

// Run sweeps until ctx ends. The database being away is reported once, until a round succeeds again.
func (s *Sweeper) Run(ctx context.Context) error {
	failing := ""
	var gauged, pruned time.Time
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		now := time.Now()
		err := s.round(ctx)
		if err == nil && now.Sub(gauged) >= gaugeEvery {
			err, gauged = s.gauge(ctx), now
		}
		if err == nil && now.Sub(pruned) >= pruneEvery {
			err, pruned = s.prune(ctx), now
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failing = ""
		case err.Error() != failing:
			failing = err.Error()
			s.log.Warn("sweep stopped early", zap.Error(err))
		}
		pause.Reset(s.config.Interval)
	}
}

// round goes once over everything overdue, within the budget.
func (s *Sweeper) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Budget)
	defer cancel()
	allow := s.core.guard.Begin()
	mark, now, err := s.rows.Mark(ctx)
	if err != nil {
		return fmt.Errorf("ladder mark: %w", err)
	}
	if err := allow(now); err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	cutoff := now
	if mark.Before(now) {
		cutoff = mark
	}
	cutoff = cutoff.Add(-s.grace(time.Now()))
	for _, locks := range []bool{false, true} {
		if err := s.pass(ctx, locks, cutoff); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sweeper) pass(ctx context.Context, locks bool, cutoff time.Time) error {
	var at coupon.Cursor
	for more := true; more; {
		// What was settled is paid for afterwards, as a debt that is waited for here: a look that finds nothing must not
		// take the rate from the ladder.
		if err := s.limit.WaitN(ctx, 0); err != nil {
			return fmt.Errorf("wait for max_rate: %w", err)
		}
		started := time.Now()
		batch, err := s.rows.SweepBatch(ctx, locks, cutoff, at, s.config.Batch, s.core.guard.Begin())
		if errors.Is(err, coupon.ErrIntegrity) {
			if at, more, err = s.past(ctx, locks, cutoff, at); err != nil {
				return err
			}
			s.limit.ReserveN(time.Now(), s.config.Batch)
			continue
		}
		if err != nil {
			return fmt.Errorf("sweep: %w", err)
		}
		for _, r := range batch.Settled {
			s.core.settled(coupon.Trigger{Origin: coupon.OriginSweep}, r, batch.Now, time.Since(started))
		}
		at, more = batch.Next, batch.More
		s.limit.ReserveN(time.Now(), len(batch.Settled))
	}
	return nil
}

// past settles a batch that holds a row which cannot be changed, through the core's bisection, and goes on behind it.
func (s *Sweeper) past(ctx context.Context, locks bool, cutoff time.Time, at coupon.Cursor) (coupon.Cursor, bool, error) {
	keys, err := s.rows.SweepKeys(ctx, locks, cutoff, at, s.config.Batch)
	if err != nil || len(keys) == 0 {
		return at, false, err
	}
	ts := make([]coupon.Trigger, len(keys))
	for i, k := range keys {
		ts[i] = coupon.Trigger{Kind: coupon.KindExpire, CouponID: k.ID, At: k.At, Origin: coupon.OriginSweep}
	}
	results, err := s.core.Settle(ctx, ts)
	if err != nil {
		return at, false, err
	}
	failed := 0
	for _, r := range results {
		if r.Err != nil {
			failed++
		}
	}
	if failed > 0 {
		s.core.metrics.failed.Add(float64(failed))
		s.log.Error("sweep went past rows that cannot be changed", zap.Int("rows", failed))
	}
	return keys[len(keys)-1], len(keys) == s.config.Batch, nil
}

func (s *Sweeper) prune(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Budget)
	defer cancel()
	if err := s.rows.PrunePods(ctx); err != nil {
		return fmt.Errorf("clear away what pods left: %w", err)
	}
	return nil
}

func (s *Sweeper) gauge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Budget)
	defer cancel()
	n, oldest, err := s.rows.Overdue(ctx, max(s.config.Grace, time.Second))
	if err != nil {
		return fmt.Errorf("count overdue coupons: %w", err)
	}
	s.core.metrics.overdue.Set(float64(n))
	s.core.metrics.oldest.Set(oldest.Seconds())
	return nil
}
