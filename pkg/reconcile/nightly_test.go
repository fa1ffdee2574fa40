package reconcile_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/reconcile"
)

// shelf is a database in memory without coupons, in which something waits.
type shelf struct {
	reconcile.Books
	mu      sync.Mutex
	claimed map[string]bool
	fail    error
	fences  int
	backlog []coupon.Backlog
}

// set changes what it says; read gives how often it was reconciled.
func (s *shelf) set(backlog []coupon.Backlog, fail error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backlog, s.fail = backlog, fail
}

func (s *shelf) reconciled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fences
}

func (s *shelf) Now(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().UTC(), s.fail
}

func (s *shelf) ClaimNight(_ context.Context, work, night string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.claimed[work+night]
	s.claimed[work+night] = true
	return !taken, nil
}

func (s *shelf) Fence(context.Context, time.Duration) (coupon.Fence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fences++
	return coupon.Fence{Now: time.Now()}, s.fail
}

func (s *shelf) NextCoupon(context.Context, uint64) (uint64, bool, error) { return 0, false, nil }

type emptyShelf struct{ *shelf }

func (emptyShelf) Books(context.Context, uint64) ([]coupon.Book, error) { return nil, nil }

func (emptyShelf) UserCounts(context.Context, uint64, string, int) ([]coupon.UserCount, coupon.UserCount, int, error) {
	return nil, coupon.UserCount{}, 0, nil
}

func (emptyShelf) SweepKeys(context.Context, bool, time.Time, coupon.Cursor, int) ([]coupon.Cursor, error) {
	return nil, nil
}

func (emptyShelf) Coupons(context.Context, []uint64) ([]coupon.Coupon, time.Time, error) {
	return nil, time.Time{}, nil
}

func (emptyShelf) Untold(context.Context, time.Time) ([]coupon.Backlog, error) { return nil, nil }

func (s emptyShelf) Backlogs(context.Context, time.Time) ([]coupon.Backlog, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlog, nil
}

// TestOnePodReconcilesANight: in quiet hours one of two pods does it, once, shows what it found, and forgets it when another
// one has looked since.
func TestOnePodReconcilesANight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which begins at midnight UTC
		s := emptyShelf{&shelf{claimed: make(map[string]bool), backlog: []coupon.Backlog{{Kind: coupon.FindParked, Where: "x", Rows: 3}}}}
		c := reconcile.DefaultConfig()
		c.Window = "02:00-03:00 UTC"
		ctx, cancel := context.WithCancel(t.Context())
		core, logs := observer.New(zapcore.InfoLevel)
		var ends []chan error
		var regs []*prometheus.Registry
		for range 2 {
			reg := prometheus.NewRegistry()
			n, err := reconcile.NewNightly(c, s, s, zap.New(core), reg)
			require.NoError(t, err)
			end := make(chan error, 1)
			go func() { end <- n.Run(ctx) }()
			ends, regs = append(ends, end), append(regs, reg)
		}
		<-time.After(time.Hour)
		require.Zero(t, s.reconciled())
		<-time.After(2 * time.Hour)
		require.Equal(t, 1, s.reconciled())
		require.Equal(t, 1, logs.FilterMessage("the books disagree; see lapsectl reconcile").Len())
		require.InDelta(t, 1, found(t, regs[0])+found(t, regs[1]), 0)

		s.set(nil, nil)
		<-time.After(24 * time.Hour)
		require.Equal(t, 2, s.reconciled())
		require.Equal(t, 1, logs.FilterMessage("reconciled, nothing found").Len())
		require.Zero(t, found(t, regs[0])+found(t, regs[1]))

		s.set(nil, errors.New("away"))
		<-time.After(24 * time.Hour)
		require.Equal(t, 2*24, logs.FilterMessage("reconciliation stopped early").Len(), "once an hour by each, not once a look")
		cancel()
		for _, end := range ends {
			require.NoError(t, <-end)
		}
	})
}

// found is the sum of all kinds; every kind is there from the beginning.
func found(t *testing.T, reg *prometheus.Registry) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != "lapse_reconcile_findings" {
			continue
		}
		require.Len(t, f.GetMetric(), len(coupon.FindingKinds()))
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue()
		}
	}
	return sum
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, reconcile.DefaultConfig().Validate())
	err := reconcile.Config{Settled: -1, Overdue: -1, Waiting: -1, Untold: -1, Uncounted: -1, Orders: -1, Pause: -1}.Validate()
	for _, text := range []string{
		"window: must be HH:MM-HH:MM ZONE", "settled: must be between 0s and 24h0m0s, got -1ns", "overdue: must", "waiting: must", "untold: must", "uncounted: must",
		"orders: must", "range: must be between 1 and 1000000, got 0", "workers: must", "pause: must", "show: must", "interval: must",
	} {
		require.ErrorContains(t, err, text)
	}
	_, err = reconcile.NewNightly(reconcile.Config{}, nil, nil, zap.NewNop(), prometheus.NewRegistry())
	require.ErrorContains(t, err, "reconcile config")
	_, err = reconcile.Reconcile(t.Context(), reconcile.Config{}, nil, reconcile.Ask{})
	require.ErrorContains(t, err, "reconcile config")
}
