package expiry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Overdue finds rows past their due instant (or locks past theirs) and settles them in the core's own transaction.
type Overdue interface {
	SweepBatch(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error) (coupon.Swept, error)
	SweepKeys(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error)
	Mark(ctx context.Context) (mark, now time.Time, err error)
	Overdue(ctx context.Context, grace time.Duration) (n int64, oldest time.Duration, err error)
	PrunePods(ctx context.Context) error
	Expirers(ctx context.Context) (int, error)
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
	slowly *rate.Limiter
	size   int // rows of a transaction in this round
	rests  int // of this round: for how many times as long as a batch took nothing is done after it
	known  refused
	braked braked
}

// portions is into how many transactions the work of a second is cut outside of the quiet hours: a large one holds up
// every commit behind it, and orders go on beside it.
const portions = 4

// shareOutside is which part of the time the sweeps of all expirers together take outside of the quiet hours, at most: a fifth. A
// sweep stands still after each batch for as long as that asks for, whatever the batch cost (one with rows that cannot be changed
// is many transactions), and gives way where the database has become slow. How long varies, so that several do not fall into step.
const shareOutside = 5

// singly is how many rows of a batch that holds one which cannot be changed are tried at once then, each by itself: where many
// stand together, halving takes twice as many transactions, and all of a batch are a burst.
const singly = 10

func (c SweepConfig) portion() int { return min(c.Batch, max(1, c.RateOutside/portions)) }

// How the sweep works, as it is told to lapsectl status.
const (
	modeFull    = "full"
	modeReduced = "reduced"
)

// NewSweeper makes the sweep; c is SweepConfig.Alone when it is the only mechanism. heard tells whether the broker is
// there to be heard.
func NewSweeper(c SweepConfig, rows Overdue, core *Core, heard func() error, limit *rate.Limiter, log *zap.Logger) *Sweeper {
	return &Sweeper{
		config: c, rows: rows, core: core, heard: heard, limit: limit, log: log, size: c.Batch,
		slowly: rate.NewLimiter(rate.Limit(c.RateOutside), c.portion()),
	}
}

// deaf says that the broker has been out of reach for outage_grace: the sweep is the main force then.
func (s *Sweeper) deaf(now time.Time) bool {
	if s.heard == nil || s.heard() == nil {
		s.away = time.Time{}
		return false
	}
	if s.away.IsZero() {
		s.away = now
	}
	return now.Sub(s.away) >= s.config.OutageGrace
}

const (
	gaugeEvery = 10 * time.Second // how long the overdue gauges are kept
	pruneEvery = time.Hour        // how often what pods left behind is cleared away
)

// Run sweeps until ctx ends. The database being away is reported once a minute, until a round succeeds again.
func (s *Sweeper) Run(ctx context.Context) error {
	var gauged, pruned time.Time
	round := func(ctx context.Context) error {
		now := time.Now()
		_, err := s.Once(ctx)
		if err == nil && now.Sub(gauged) >= gaugeEvery {
			err, gauged = s.gauge(ctx), now
		}
		if err == nil && now.Sub(pruned) >= pruneEvery {
			err, pruned = s.prune(ctx), now
		}
		return err
	}
	tell := telemetry.NewRepeats(s.log, 0, time.Now).Tell("sweep stopped early", "sweep goes on")
	return lifecycle.Every(ctx, s.config.Interval, round, tell) //nolint:wrapcheck // nil
}

// Once sweeps one round: once over everything overdue, each pass within the budget. More says that the time was up before
// everything was looked at.
func (s *Sweeper) Once(ctx context.Context) (Swept, error) {
	var total Swept
	s.known.clear(time.Now())
	pauses, err := s.core.pauses(ctx)
	if err != nil {
		return total, fmt.Errorf("sweep: %w", err)
	}
	ask, cancel := context.WithTimeout(ctx, s.config.Budget)
	defer cancel()
	allow := s.core.guard.Begin()
	mark, now, err := s.rows.Mark(ask)
	if err != nil {
		return total, fmt.Errorf("ladder mark: %w", err)
	}
	if err := allow(now); err != nil {
		return total, fmt.Errorf("sweep: %w", err)
	}
	total.Cutoff = now
	if mark.Before(now) {
		total.Cutoff = mark
	}
	deaf, grace := s.deaf(time.Now()), s.config.Grace
	if deaf {
		grace = s.config.OutageGrace
	}
	total.Cutoff = total.Cutoff.Add(-grace)
	s.braked.heed(pauses, grace, time.Now())
	limits, mode := []*rate.Limiter{s.limit}, modeFull
	s.size, s.rests = s.config.Batch, 0
	if !deaf && !s.config.Quiet(now) && !s.braked.owing() {
		pods, err := s.rows.Expirers(ask)
		if err != nil {
			return total, fmt.Errorf("count the expirers: %w", err)
		}
		s.slowly.SetLimit(rate.Limit(float64(s.config.RateOutside) / float64(pods)))
		limits, mode = append(limits, s.slowly), modeReduced
		s.size, s.rests = s.config.portion(), shareOutside*pods-1
	}
	s.core.pulse.Mode(mode)
	for _, locks := range []bool{false, true} {
		if !locks && (pauses.All(coupon.BrakeExpiry) || time.Now().Before(s.braked.resting)) {
			continue
		}
		done, err := s.pass(ctx, locks, total.Cutoff, limits)
		total.add(done)
		if err != nil {
			return total, err
		}
	}
	s.braked.ended(total.More, time.Now())
	return total, nil
}

// pass goes over what is due, or over the locks, until nothing is left or its time is up: the next round goes on then.
func (s *Sweeper) pass(ctx context.Context, locks bool, cutoff time.Time, limits []*rate.Limiter) (total Swept, err error) {
	bounded, cancel := context.WithTimeout(ctx, s.config.Budget)
	defer cancel()
	var at coupon.Cursor
	for more := true; more; {
		// What was settled is paid for afterwards, as a debt that is waited for here: a look that finds nothing must not
		// take the rate from the ladder.
		for _, limit := range limits {
			if err := limit.WaitN(bounded, 0); err != nil {
				total.More = true
				return total, ctx.Err() //nolint:wrapcheck // nil: the time is up
			}
		}
		var done Swept
		began := time.Now()
		done, at, err = s.batch(bounded, locks, cutoff, s.braked.past(locks, at, began))
		total.add(done)
		if err != nil {
			return total, err
		}
		more = done.More
		for _, limit := range limits {
			limit.ReserveN(time.Now(), min(done.rows, s.size))
		}
		if s.rests > 0 && lifecycle.Sleep(bounded, s.rest(time.Since(began))) != nil {
			total.More = true
			return total, ctx.Err() //nolint:wrapcheck // nil: the time is up
		}
	}
	total.More = false
	return total, nil
}

// rest is how long to stand still after a batch that took so long: rests times that on average.
func (s *Sweeper) rest(took time.Duration) time.Duration {
	return time.Duration((0.5 + rand.Float64()) * float64(s.rests) * float64(took))
}

// batch settles one batch behind the cursor; done.More says that it was a full one.
func (s *Sweeper) batch(ctx context.Context, locks bool, cutoff time.Time, at coupon.Cursor) (done Swept, next coupon.Cursor, err error) {
	started := time.Now()
	batch, err := s.rows.SweepBatch(ctx, locks, cutoff, at, s.size, s.core.guard.Begin())
	if errors.Is(err, coupon.ErrIntegrity) {
		done, next, err = s.past(ctx, locks, cutoff, at)
		return done, next, err
	}
	if err != nil {
		return done, at, fmt.Errorf("sweep: %w", err)
	}
	for _, r := range batch.Settled {
		s.core.settled(coupon.Trigger{Origin: coupon.OriginSweep}, r, batch.Now, time.Since(started))
		done.count(r)
	}
	done.rows, done.More = len(batch.Settled), batch.More
	if done.Paused > 0 {
		s.braked.add(locks, at, batch.Next, started)
	}
	return done, batch.Next, nil
}

// past settles a batch that holds a row which cannot be changed, through the core's bisection, and goes on behind it. Rows that
// could not be changed lately are left alone for a while: those at its head are gone past in one step, however many they are, since
// every batch of them is a transaction that is rolled back.
func (s *Sweeper) past(ctx context.Context, locks bool, cutoff time.Time, at coupon.Cursor) (done Swept, next coupon.Cursor, err error) {
	keys, err := s.rows.SweepKeys(ctx, locks, cutoff, at, s.config.Batch)
	if err != nil || len(keys) == 0 {
		return done, at, err
	}
	now := time.Now()
	full := len(keys) == s.config.Batch
	if head := s.known.head(locks, keys, now); head > 0 {
		done.Failed, done.More = head, full || head < len(keys)
		return done, keys[head-1], nil
	}
	size := s.size
	if s.rests > 0 {
		size = min(size, singly)
	}
	done.More = full || len(keys) > size
	keys = keys[:min(len(keys), size)]
	next = keys[len(keys)-1]
	ts := make([]coupon.Trigger, 0, len(keys))
	for _, k := range keys {
		if s.known.holds(owed{locks, k}, now) {
			done.Failed++
			continue
		}
		ts = append(ts, coupon.Trigger{Kind: coupon.KindExpire, CouponID: k.ID, At: k.At, Origin: coupon.OriginSweep})
	}
	step := max(1, len(ts))
	if s.rests > 0 {
		step = 1
	}
	fresh := 0
	for some := range slices.Chunk(ts, step) {
		var results []Result
		if results, err = s.core.Settle(ctx, some); err != nil {
			next = at
			break
		}
		done.rows += len(some) // what is only gone past takes nothing from the ladder
		for i, r := range results {
			if r.Err == nil {
				done.count(r.Settlement)
				continue
			}
			fresh++
			if errors.Is(r.Err, coupon.ErrIntegrity) {
				s.known.add(owed{locks, coupon.Cursor{At: some[i].At, ID: some[i].CouponID}}, now)
			}
		}
	}
	if fresh > 0 {
		s.core.metrics.failed.Add(float64(fresh))
		s.core.pulse.Count(pulse.CountSkipped, fresh)
		s.log.Error("sweep went past rows that cannot be changed", zap.Int("rows", fresh))
	}
	done.Failed += fresh
	return done, next, err
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
