package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ledger"
)

// rows is a store in memory.
type rows struct {
	mu      sync.Mutex
	seen    map[[2]uint64]coupon.Counted
	fail    error // of everything
	toFold  int
	folds   []int // what each call folded
	pruned  []time.Duration
	history int // steps that are to be seeded
	seeds   []int
}

func (r *rows) CountEvents(_ context.Context, events []coupon.Counted) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return 0, r.fail
	}
	for _, e := range events {
		if e.Value == impossible {
			return 0, fmt.Errorf("count: %w: value of %d", coupon.ErrIntegrity, e.CouponID)
		}
	}
	fresh := 0
	for _, e := range events {
		k := [2]uint64{e.CouponID, uint64(e.Version)}
		if _, ok := r.seen[k]; !ok {
			r.seen[k] = e
			fresh++
		}
	}
	return fresh, nil
}

func (r *rows) SeedStats(_ context.Context, limit int) (int, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return 0, false, r.fail
	}
	n := min(limit, r.history)
	r.history -= n
	r.seeds = append(r.seeds, n)
	return n, n == 0, nil
}

func (r *rows) FoldQuota(_ context.Context, limit int) (int, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return 0, false, r.fail
	}
	n := min(limit, r.toFold)
	r.toFold -= n
	r.folds = append(r.folds, n)
	return n, n == limit, nil
}

func (r *rows) PruneTombstones(_ context.Context, olderThan time.Duration, _ int) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pruned = append(r.pruned, olderThan)
	return 0, r.fail
}

// set changes what the loops meet.
func (r *rows) set(fail error, toFold int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail, r.toFold = fail, toFold
}

// did tells what the loops have done so far.
func (r *rows) did() (folds, seeds []int, pruned []time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.folds), slices.Clone(r.seeds), slices.Clone(r.pruned)
}

const impossible = 999_999

type scene struct {
	*ledger.Ledger
	rows *rows
	reg  *prometheus.Registry
	logs *observer.ObservedLogs
}

func newScene(t *testing.T, change func(*ledger.Config)) scene {
	t.Helper()
	c := ledger.DefaultConfig()
	if change != nil {
		change(&c)
	}
	core, logs := observer.New(zapcore.InfoLevel)
	s := scene{rows: &rows{seen: make(map[[2]uint64]coupon.Counted)}, reg: prometheus.NewRegistry(), logs: logs}
	var err error
	s.Ledger, err = ledger.New(c, s.rows, zap.New(core), s.reg)
	require.NoError(t, err)
	return s
}

// results gives lapse_ledger_events_total by result.
func (s scene) results(t *testing.T) map[string]int {
	t.Helper()
	families, err := s.reg.Gather()
	require.NoError(t, err)
	n := make(map[string]int)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "lapse_ledger_events_total" {
				n[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
			}
		}
	}
	return n
}

func codec(t *testing.T) *event.Codec {
	t.Helper()
	c, err := event.NewCodec("test")
	require.NoError(t, err)
	return c
}

// told gives the delivery of a transition's event.
func told(t *testing.T, tr coupon.Transition) broker.Delivery {
	t.Helper()
	tr.UserID, tr.At = "alice", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tr.Terms.TemplateID, tr.Terms.Currency = 3, "CNY"
	if tr.ExpiresAt.IsZero() {
		tr.ExpiresAt = tr.At.Add(time.Hour)
	}
	_, id, body, err := codec(t).Transition(tr)
	require.NoError(t, err)
	return broker.Delivery{MessageID: id, ContentType: event.ContentType, Body: body}
}

func granted(t *testing.T, id uint64, value int64) broker.Delivery {
	t.Helper()
	return told(t, coupon.Transition{CouponID: id, Version: 1, To: coupon.Unused, Cause: coupon.CauseGrant, GrantKey: "k", Terms: coupon.Terms{Value: value}})
}

// TestEveryStepIsCountedAsItHappened: what the codec writes of a transition is what the statistics get.
func TestEveryStepIsCountedAsItHappened(t *testing.T) {
	t.Parallel()
	s := newScene(t, nil)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	all := []coupon.Transition{
		{To: coupon.Unused, Cause: coupon.CauseGrant, GrantKey: "k"},
		{From: coupon.Unused, To: coupon.Locked, Cause: coupon.CauseOrder, OrderID: "o", LockUntil: at.Add(time.Minute)},
		{From: coupon.Locked, To: coupon.Locked, Cause: coupon.CauseOrder, OrderID: "o", LockUntil: at.Add(time.Hour)},
		{From: coupon.Locked, To: coupon.Unused, Cause: coupon.CauseOrder, OrderID: "o"},
		{From: coupon.Unused, To: coupon.Unused, Cause: coupon.CauseAdmin, Previous: at, Actor: "a", Reason: "r"},
		{From: coupon.Unused, To: coupon.Used, Cause: coupon.CauseOrder, OrderID: "o"},
		{From: coupon.Locked, To: coupon.Used, Cause: coupon.CauseOrder, OrderID: "o"},
		{From: coupon.Used, To: coupon.Unused, Cause: coupon.CauseRefund, OrderID: "o"},
		{From: coupon.Used, To: coupon.Expired, Cause: coupon.CauseRefund, OrderID: "o"},
		{From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder},
		{From: coupon.Locked, To: coupon.Expired, Cause: coupon.CauseLock},
		{From: coupon.Unused, To: coupon.Voided, Cause: coupon.CauseAdmin, Actor: "a", Reason: "r"},
		{From: coupon.Locked, To: coupon.Voided, Cause: coupon.CauseAdmin, Actor: "a", Reason: "r"},
	}
	for i, tr := range all {
		tr.CouponID, tr.Version, tr.Terms.Value = 7, uint32(i+1), 500
		out, err := s.Handle(t.Context(), []broker.Delivery{told(t, tr)})
		require.NoError(t, err)
		require.Equal(t, []broker.Outcome{broker.Ack()}, out)
		require.Equal(t, coupon.Counted{
			CouponID: 7, Version: tr.Version, TemplateID: 3, From: tr.From, To: tr.To, Moved: tr.From == tr.To, At: at, Value: 500,
		}, s.rows.seen[[2]uint64{7, uint64(i + 1)}], "%s to %s", tr.From, tr.To)
	}
	require.Equal(t, map[string]int{"counted": len(all), "repeated": 0, "ignored": 0, "parked": 0}, s.results(t))
}

func TestWhatIsNoStepIsAckedAndWhatCannotBeReadIsParked(t *testing.T) {
	t.Parallel()
	s := newScene(t, nil)
	_, _, refused, err := codec(t).Refused(coupon.Grant{Key: "k", TemplateID: 3, UserID: "alice", EventID: "e"},
		coupon.Granted{Refused: coupon.CodeUserLimit}, time.Now())
	require.NoError(t, err)
	later := `{"specversion":"1.0","type":"coupon.foreseen.v1","id":"1","source":"s","data":{}}`
	newer := `{"specversion":"1.0","type":"coupon.used.v2","id":"1","source":"s","data":{}}`
	batch := []broker.Delivery{
		{Body: refused},
		{Body: []byte(later)},
		{Body: []byte(newer)},
		{Body: []byte(`not json`)},
		granted(t, 1, 500),
		granted(t, 1, 500),
		granted(t, 2, 500),
	}
	out, err := s.Handle(t.Context(), batch)
	require.NoError(t, err)
	for i, o := range out {
		if i == 2 || i == 3 {
			_, reason := event.DecodeLife(batch[i].Body)
			require.Equal(t, broker.Park(reason.Error()), o)
		} else {
			require.Equal(t, broker.Ack(), o, i)
		}
	}
	require.Equal(t, map[string]int{"counted": 2, "repeated": 1, "ignored": 2, "parked": 2}, s.results(t))
	require.Equal(t, 1, s.logs.Len())
	require.NotContains(t, fmt.Sprint(s.logs.All()[0].Message, s.logs.All()[0].ContextMap()), "alice")
}

func TestAnEventThatCannotBeCountedIsFoundByHalving(t *testing.T) {
	t.Parallel()
	s := newScene(t, nil)
	var batch []broker.Delivery
	for i := range 64 {
		value := int64(500)
		if i == 17 || i == 40 {
			value = impossible
		}
		batch = append(batch, granted(t, uint64(i+1), value))
	}
	out, err := s.Handle(t.Context(), batch)
	require.NoError(t, err)
	for i, o := range out {
		if i == 17 || i == 40 {
			require.Equal(t, broker.Park(fmt.Sprintf("count: integrity: value of %d", i+1)), o)
		} else {
			require.Equal(t, broker.Ack(), o)
		}
	}
	require.Len(t, s.rows.seen, 62)
	require.Equal(t, map[string]int{"counted": 62, "repeated": 0, "ignored": 0, "parked": 2}, s.results(t))
}

func TestWhileTheDatabaseIsAwayNothingIsDecided(t *testing.T) {
	t.Parallel()
	for _, fail := range []error{coupon.ErrUnavailable, coupon.ErrContention, context.Canceled, errors.New("unforeseen")} {
		s := newScene(t, nil)
		s.rows.fail = fmt.Errorf("count: %w", fail)
		out, err := s.Handle(t.Context(), []broker.Delivery{{Body: []byte(`not json`)}, granted(t, 1, 500)})
		require.ErrorIs(t, err, fail)
		require.Nil(t, out)
		require.Zero(t, s.results(t)["parked"])
	}
}

// start runs a loop until the test's bubble ends it.
func start(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

func TestQuotaIsFoldedUntilNothingIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, func(c *ledger.Config) { c.QuotaBatch = 100 })
		s.rows.toFold = 250
		stop := start(t, s.Run)
		synctest.Wait()
		folds, _, pruned := s.rows.did()
		require.Equal(t, []int{100, 100, 50}, folds, "at once")
		require.Equal(t, []time.Duration{30 * 24 * time.Hour}, pruned)
		s.rows.set(nil, 7)
		time.Sleep(time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		folds, _, pruned = s.rows.did()
		require.Equal(t, []int{100, 100, 50, 7}, folds)
		require.Len(t, pruned, 1)
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time
		synctest.Wait()
		_, _, pruned = s.rows.did()
		require.Len(t, pruned, 2)
		stop()
		require.NoError(t, testutil.GatherAndCompare(s.reg, strings.NewReader(`
			# HELP lapse_quota_returned_total Coupons whose quota was given back to their template.
			# TYPE lapse_quota_returned_total counter
			lapse_quota_returned_total 257
		`), "lapse_quota_returned_total"))
	})
}

func TestHousekeepingOutlivesTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		s.rows.fail = coupon.ErrUnavailable
		stop := start(t, s.Run)
		time.Sleep(10 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		require.Equal(t, 1, s.logs.Len(), "said once")
		s.rows.set(nil, 3)
		time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		synctest.Wait()
		folds, _, _ := s.rows.did()
		require.Equal(t, 3, folds[0])
		require.Equal(t, 2, s.logs.Len())
		stop()
	})
}

func TestSeedingWaitsForTheQueueAndEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, func(c *ledger.Config) { c.SeedBatch = 100 })
		s.rows.history = 250
		var mu sync.Mutex
		away := errors.New("not subscribed")
		subscribed := func() error {
			mu.Lock()
			defer mu.Unlock()
			return away
		}
		stop := start(t, func(ctx context.Context) error { return s.Seed(ctx, subscribed) })
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time
		synctest.Wait()
		_, seeds, _ := s.rows.did()
		require.Empty(t, seeds, "an event could still go by")
		s.rows.set(coupon.ErrUnavailable, 0)
		mu.Lock()
		away = nil
		mu.Unlock()
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time
		synctest.Wait()
		_, seeds, _ = s.rows.did()
		require.Empty(t, seeds)
		s.rows.set(nil, 0)
		time.Sleep(time.Hour) //nolint:forbidigo // virtual time
		synctest.Wait()
		_, seeds, _ = s.rows.did()
		require.Equal(t, []int{100, 100, 50, 0}, seeds, "and never again")
		stop()
	})
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, nil)
		stop := start(t, func(ctx context.Context) error { return s.Seed(ctx, func() error { return errors.New("never") }) })
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		stop()
		require.Empty(t, s.rows.seeds)
	})
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, ledger.DefaultConfig().Validate())
	require.NoError(t, ledger.DefaultConfig().Consumer().Validate())
	err := ledger.Config{Batch: 1001, Linger: -1, Prefetch: 1, QuotaBatch: -1, SeedPause: -1}.Validate()
	for _, want := range []string{
		"batch: must be between 1 and 1000, got 1001", "linger: must be between 0s and 10s, got -1ns",
		"prefetch: must be between batch (1001) and 10000, got 1", "concurrency: must be between 1 and 64, got 0",
		"quota_interval: must be between 10ms and 1h0m0s, got 0s", "quota_batch: must be between 1 and 1000, got -1",
		"seed_batch: must be between 1 and 1000, got 0", "seed_pause: must be between 0s and 1m0s, got -1ns",
		"keep_tombstones: must be between 1h0m0s and 87600h0m0s, got 0s",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = ledger.New(ledger.Config{}, nil, zap.NewNop(), prometheus.NewRegistry())
	require.ErrorContains(t, err, "ledger config: batch")
}
