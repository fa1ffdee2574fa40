package expiry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
)

// shelf is a table that can be swept: rows in id order, due in that order.
type shelf struct {
	table
	mu      sync.Mutex
	mark    time.Time
	cutoffs []time.Time
	rounds  int
	pruned  int
	away    bool // the broker
	pods    int  // expirers, 1 at least
}

func (s *shelf) heard() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return errors.New("no connection to the broker")
	}
	return nil
}

func (s *shelf) PrunePods(context.Context) error {
	s.pruned++
	return nil
}

func (s *shelf) ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.ExpireBatch(ctx, ts, allow)
}

func (s *shelf) overdue(cutoff time.Time, from coupon.Cursor, limit int) []*coupon.Row {
	var rows []*coupon.Row
	for id := from.ID + 1; len(rows) < limit && id <= uint64(len(s.rows)); id++ {
		if r := s.rows[id]; r.Status == coupon.Unused && !r.DueAt.After(cutoff) {
			rows = append(rows, r)
		}
	}
	return rows
}

func (s *shelf) SweepBatch(ctx context.Context, locks bool, cutoff time.Time, from coupon.Cursor, limit int, allow func(time.Time) error) (coupon.Swept, error) {
	if locks {
		return coupon.Swept{}, nil
	}
	s.mu.Lock()
	s.cutoffs = append(s.cutoffs, cutoff)
	s.mu.Unlock()
	rows := s.overdue(cutoff, from, limit)
	var ts []coupon.Trigger
	next := from
	for _, r := range rows {
		ts = append(ts, coupon.Trigger{Kind: coupon.KindExpire, CouponID: r.ID, At: r.ExpiresAt, Origin: coupon.OriginSweep})
		next = coupon.Cursor{At: r.DueAt, ID: r.ID}
	}
	now, settled, err := s.ExpireBatch(ctx, ts, allow)
	return coupon.Swept{Now: now, Settled: settled, Next: next, More: len(rows) == limit}, err
}

func (s *shelf) SweepKeys(_ context.Context, _ bool, cutoff time.Time, from coupon.Cursor, limit int) ([]coupon.Cursor, error) {
	var keys []coupon.Cursor
	for _, r := range s.overdue(cutoff, from, limit) {
		keys = append(keys, coupon.Cursor{At: r.DueAt, ID: r.ID})
	}
	return keys, nil
}

func (s *shelf) Expirers(context.Context) (int, error) { return max(1, s.pods), nil }

func (s *shelf) Mark(context.Context) (mark, now time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rounds++
	if s.err != nil {
		return mark, now, s.err
	}
	if s.mark.IsZero() {
		return s.now, s.now, nil
	}
	return s.mark, s.now, nil
}

func (s *shelf) Overdue(context.Context, time.Duration) (int64, time.Duration, error) {
	return 0, 0, nil
}

func sweeper(sh *shelf, c expiry.SweepConfig) *expiry.Sweeper {
	core := expiry.NewCore(sh, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	return expiry.NewSweeper(c, sh, core, sh.heard, rate.NewLimiter(rate.Inf, 0), zap.NewNop())
}

func fill(sh *shelf, n int, due time.Time) {
	sh.rows = map[uint64]*coupon.Row{}
	for id := uint64(1); id <= uint64(n); id++ {
		sh.rows[id] = unused(id, due)
	}
}

func (s *shelf) expired() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.rows {
		if r.Status == coupon.Expired {
			n++
		}
	}
	return n
}

func runSweep(t *testing.T, sw *expiry.Sweeper) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sw.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

// What the sweep finds is what it pays for: a pod whose rate is bounded keeps it for the ladder.
func TestSweepThatFindsNothingCostsNoRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start}}
		fill(sh, 1000, start.Add(time.Hour))
		c := expiry.DefaultConfig()
		c.MaxRate = 10
		limit := expiry.NewLimiter(c)
		core := expiry.NewCore(sh, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
		stop := runSweep(t, expiry.NewSweeper(c.Sweep, sh, core, nil, limit, zap.NewNop()))
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.InDelta(t, 500, limit.Tokens(), 5)
		stop()
		require.Equal(t, 1, sh.pruned, "now and then")
	})
}

// And it does pay: a backlog is swept at the rate.
func TestSweepKeepsToTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start}}
		fill(sh, 5000, start.Add(-time.Hour))
		c := expiry.DefaultConfig()
		c.MaxRate = 5 // a batch takes longer than a round may
		core := expiry.NewCore(sh, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
		stop := runSweep(t, expiry.NewSweeper(c.Sweep, sh, core, nil, expiry.NewLimiter(c), zap.NewNop()))
		time.Sleep(10 * time.Minute) //nolint:forbidigo // virtual time
		synctest.Wait()
		stop()
		require.InDelta(t, 600*5+500, sh.expired(), 500, "a burst, then the rate")
	})
}

// 500 bad rows at its head do not stop it.
func TestSweepGoesPastRowsThatCannotBeChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start, bad: map[uint64]bool{}}}
		fill(sh, 2000, start.Add(-time.Hour))
		for id := uint64(1); id <= 500; id++ {
			sh.bad[id] = true
		}
		stop := runSweep(t, sweeper(sh, expiry.SweepConfig{Grace: time.Minute, Interval: time.Second, Batch: 500, Budget: time.Minute}))
		synctest.Wait()
		require.Equal(t, 1500, sh.expired(), "in one round")
		stop()
	})
}

// It remembers them for a while, so that the next rounds do not look for each of them again; once they can be changed they are.
func TestSweepRemembersRowsThatCannotBeChanged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start, bad: map[uint64]bool{}}}
		fill(sh, 600, start.Add(-time.Hour))
		for id := uint64(1); id <= 500; id++ {
			sh.bad[id] = true
		}
		sw := sweeper(sh, expiry.SweepConfig{Grace: time.Minute, Interval: time.Second, Batch: 100, Budget: time.Minute})
		first, err := sw.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{100, 500}, []int{first.Expired, first.Failed})
		require.Greater(t, sh.calls, 500)
		sh.calls = 0
		again, err := sw.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{0, 500}, []int{again.Expired, again.Failed})
		require.Less(t, sh.calls, 20, "two for each hundred")
		one := sh.rows[1] // its end is moved, and it is mended: another place, which nobody remembers
		one.DueAt, one.ExpiresAt = one.DueAt.Add(time.Second), one.ExpiresAt.Add(time.Second)
		delete(sh.bad, 1)
		moved, err := sw.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{1, 499}, []int{moved.Expired, moved.Failed})
		sh.bad = nil
		time.Sleep(10 * time.Minute) //nolint:forbidigo // virtual time
		last, err := sw.Once(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int{499, 0}, []int{last.Expired, last.Failed})
	})
}

func TestSweepStaysBehindTheLadder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start}, mark: start.Add(-10 * time.Minute)}
		fill(sh, 10, start.Add(-5*time.Minute)) // overdue by far, but the ladder is not there yet
		stop := runSweep(t, sweeper(sh, expiry.SweepConfig{Grace: time.Minute, Interval: time.Second, Batch: 500, Budget: time.Minute}))
		synctest.Wait()
		require.Zero(t, sh.expired())
		require.Equal(t, start.Add(-11*time.Minute), sh.cutoffs[0])
		sh.mu.Lock()
		sh.mark = time.Time{} // the ladder says nothing: lost
		sh.mu.Unlock()
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.Equal(t, 10, sh.expired())
		stop()
	})
}

// A ladder that cannot be heard is not waited for a minute.
func TestSweepTakesOverInAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start}, away: true}
		fill(sh, 10, start.Add(-15*time.Second))
		c := expiry.SweepConfig{Grace: time.Minute, OutageGrace: 10 * time.Second, Interval: time.Second, Batch: 500, Budget: time.Minute}
		stop := runSweep(t, sweeper(sh, c))
		time.Sleep(9500 * time.Millisecond) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.Zero(t, sh.expired(), "a short interruption is not an outage")
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.Equal(t, 10, sh.expired())
		sh.mu.Lock()
		sh.away, sh.cutoffs = false, nil
		sh.mu.Unlock()
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		sh.mu.Lock()
		require.Equal(t, start.Add(-time.Minute), sh.cutoffs[0], "back to the grace")
		sh.mu.Unlock()
		stop()
	})
}

func TestSweepWaitsForTheDatabaseAndForTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sh := &shelf{table: table{now: start, err: fmt.Errorf("x: %w", coupon.ErrUnavailable)}}
		fill(sh, 10, start.Add(-time.Hour))
		stop := runSweep(t, sweeper(sh, expiry.SweepConfig{Grace: 0, Interval: time.Second, Batch: 5, Budget: time.Minute}.Alone()))
		time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.GreaterOrEqual(t, sh.rounds, 40, "alone it looks five times a second")
		require.Zero(t, sh.expired())
		sh.mu.Lock()
		sh.err = nil
		sh.mu.Unlock()
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.Equal(t, 10, sh.expired())
		stop()
	})
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, expiry.DefaultConfig().Validate())
	c := expiry.DefaultConfig()
	c.Consumer.Batch, c.MaxRate, c.ClockAhead, c.Sweep.Batch = 901, -1, 0, 0
	err := c.Validate()
	for _, text := range []string{
		"consumer.batch: must be at most 900, got 901", "max_rate: must be between 0 and 1000000, got -1",
		"clock_ahead: must be between 100ms and 1m0s, got 0s", "sweep.batch: must be between 1 and 900, got 0",
	} {
		require.ErrorContains(t, err, text)
	}
}

// marker keeps what was stored, and is away for the first time.
type marker struct {
	ch   chan time.Time
	puts int // by Run's goroutine alone
}

func (m *marker) PutMark(_ context.Context, _, _ string, mark time.Time) error {
	m.ch <- mark
	if m.puts++; m.puts == 1 {
		return errors.New("away for a moment")
	}
	return nil
}

// The mark is the smallest due instant that a first attempt settled in the last five seconds, and there is none after.
func TestMarkFollowsTheLadder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tb := &table{now: start, rows: map[uint64]*coupon.Row{
			1: unused(1, start.Add(-3*time.Second)), 2: unused(2, start.Add(-time.Second)), 3: unused(3, start.Add(-time.Hour)),
			4: unused(4, start.Add(-time.Minute)),
		}}
		h, _, c := rig(t, tb)
		m := &marker{ch: make(chan time.Time, 100)}
		marks := expiry.NewMarks("due", "pod", m, time.Now, zap.NewNop())
		h = h.WithMarks(marks)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- marks.Run(ctx) }()

		late := ring(3, start.Add(-time.Hour))
		late.Attempt = 1 // a retry says nothing of the ladder
		reader := ring(4, start.Add(-time.Minute))
		reader.Origin = coupon.OriginLazy // nor does a reader's
		rebuilt := ring(1, start.Add(-3*time.Second))
		rebuilt.Origin = coupon.OriginRebuild // came by the ladder like any other
		_, err := h.Handle(t.Context(), deliveries(c, rebuilt, ring(2, start.Add(-time.Second)), late, reader))
		require.NoError(t, err)
		require.Equal(t, start.Add(-3*time.Second), <-m.ch)
		time.Sleep(20 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.LessOrEqual(t, len(m.ch), 5, "silent once nothing is settled")
		cancel()
		require.NoError(t, <-done)
	})
}
