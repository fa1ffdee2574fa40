package archive_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/archive"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// row is a finished coupon in memory.
type row struct {
	id  uint64
	due time.Time
	old time.Time // when it finished
}

// rows is a store in memory.
type rows struct {
	mu     sync.Mutex
	of     map[coupon.Status][]row // by due instant
	moved  []uint64
	pages  int
	most   int // batch
	places map[coupon.Status]coupon.Cursor
	fail   error
	long   bool
	digest int // old windows
	inbox  int
	counts int
	slow   time.Duration // of a page
}

// away makes it fail, or not.
func (r *rows) away(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = err
}

// looked gives how many pages were asked for, and how many coupons moved.
func (r *rows) looked() [2]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return [2]int{r.pages, len(r.moved)}
}

func (r *rows) Now(context.Context) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().UTC(), r.fail
}

func (r *rows) FinishedPage(ctx context.Context, of coupon.Status, before time.Time, from coupon.Cursor, limit int) (coupon.ArchivePage, error) {
	<-time.After(r.slow)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pages++
	p := coupon.ArchivePage{Next: from}
	n := 0
	for _, x := range r.of[of] {
		at := coupon.Cursor{At: x.due, ID: x.id}
		if n == limit || !at.After(from) {
			continue
		}
		n++
		p.Next = at
		if !x.old.After(before) {
			p.Old = append(p.Old, coupon.Finished{ID: x.id})
		}
	}
	p.More = n == limit
	return p, ctx.Err()
}

func (r *rows) ArchiveBatch(_ context.Context, batch []coupon.Finished) (coupon.Archived, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return coupon.Archived{}, r.fail
	}
	r.most = max(r.most, len(batch))
	for _, f := range batch {
		r.moved = append(r.moved, f.ID)
		for of := range r.of {
			r.of[of] = slices.DeleteFunc(r.of[of], func(x row) bool { return x.id == f.ID })
		}
	}
	return coupon.Archived{Moved: len(batch), Steps: 2 * len(batch)}, nil
}

func (r *rows) ArchivePlace(_ context.Context, of coupon.Status) (coupon.Cursor, error) {
	return r.places[of], nil
}

func (r *rows) PutArchivePlace(_ context.Context, of coupon.Status, at coupon.Cursor) error {
	r.places[of] = at
	return nil
}

func (r *rows) OutboxLonger(context.Context, int) (bool, error) { return r.long, nil }

func (r *rows) ArchiveLag(context.Context, time.Duration) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 90 * time.Second, r.fail
}

func (r *rows) PruneNotices(_ context.Context, _ time.Time, after uint64, limit int) (int, uint64, error) {
	n := min(limit, r.digest)
	r.digest -= n
	if r.digest == 0 {
		return n, 0, nil
	}
	return n, after + uint64(n), nil
}

func (r *rows) PruneInbox(_ context.Context, _ time.Time, limit int) (int, bool, error) {
	n := min(limit, r.inbox)
	r.inbox -= n
	return n, n == limit, nil
}

func (r *rows) PruneNoticeCounts(_ context.Context, before time.Time, limit int) (int, bool, error) {
	if time.Since(before) < 8*day {
		return 0, false, errors.New("caps need them still")
	}
	n := min(limit, r.counts)
	r.counts -= n
	return n, n == limit, nil
}

const day = 24 * time.Hour

// many gives n coupons of each final state, due an hour apart; every second one finished long ago.
func many(n int) *rows {
	r := &rows{of: make(map[coupon.Status][]row), places: make(map[coupon.Status]coupon.Cursor)}
	now := time.Now().UTC()
	id := uint64(0)
	for _, of := range coupon.FinalStatuses() {
		for i := range n {
			id++
			x := row{id: id, due: now.Add(time.Duration(i) * time.Hour), old: now}
			if i%2 == 0 {
				x.old = now.Add(-40 * day)
			}
			r.of[of] = append(r.of[of], x)
		}
	}
	return r
}

func scene(t *testing.T, r *rows, shard archive.Shard, change func(*archive.Config)) (*archive.Archiver, *prometheus.Registry, *observer.ObservedLogs) {
	t.Helper()
	c := archive.DefaultConfig()
	c.MaxRate, c.Batch, c.Window = 0, 10, "always"
	if change != nil {
		change(&c)
	}
	reg := prometheus.NewRegistry()
	core, logs := observer.New(zapcore.InfoLevel)
	a, err := archive.New(c, shard, r, zap.New(core), reg)
	require.NoError(t, err)
	return a, reg, logs
}

func TestAPassTakesWhatIsOldOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(50)
		r.digest, r.inbox, r.counts = 25, 12, 23
		a, _, _ := scene(t, r, archive.Shard{}, nil)
		got, err := a.Pass(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, archive.Report{Moved: 75, Steps: 150, Looked: 3, Windows: 25, Inbox: 12, Complete: true}, got)
		require.Len(t, r.moved, 75)
		require.Zero(t, r.counts)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(r.moved))), 75)
		require.Equal(t, 10, r.most)
		got, err = a.Pass(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, archive.Report{Looked: 3, Complete: true}, got)
	})
}

// What one night's budget does not reach, the next one does: the walk goes on where it stopped, and around.
func TestTheWalkGoesOnTheNextNight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(10_000)
		r.of[coupon.Expired], r.of[coupon.Voided] = nil, nil
		r.slow = time.Second
		a, _, _ := scene(t, r, archive.Shard{}, nil)
		got, err := a.Pass(t.Context(), 2500*time.Millisecond)
		require.NoError(t, err)
		require.False(t, got.Complete)
		require.Equal(t, 1500, got.Moved, "an empty look, and the first page")
		got, err = a.Pass(t.Context(), 2500*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, 1500, got.Moved, "the second page")
		got, err = a.Pass(t.Context(), time.Minute)
		require.NoError(t, err)
		require.True(t, got.Complete)
		require.Len(t, r.moved, 5000)
		before := r.pages
		got, err = a.Pass(t.Context(), time.Minute)
		require.NoError(t, err)
		require.True(t, got.Complete)
		require.LessOrEqual(t, r.pages-before, 5, "once around")
	})
}

func TestShardsDivideTheCoupons(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(50)
		r.digest = 5
		for part := range 3 {
			a, _, _ := scene(t, r, archive.Shard{Part: part, Of: 3}, nil)
			before := len(r.moved)
			got, err := a.Pass(t.Context(), time.Minute)
			require.NoError(t, err)
			require.True(t, got.Complete)
			for _, id := range r.moved[before:] {
				require.EqualValues(t, part, id%3)
			}
		}
		require.Len(t, r.moved, 75)
		require.Zero(t, r.counts)
		require.Zero(t, r.digest)
	})
}

func TestItRestsWhileTheOutboxIsLong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(50)
		r.long = true
		a, _, _ := scene(t, r, archive.Shard{}, nil)
		got, err := a.Pass(t.Context(), time.Minute)
		require.NoError(t, err)
		require.Equal(t, archive.Report{Looked: 1, Busy: true}, got)
	})
}

func TestTheRateIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(200)
		a, _, _ := scene(t, r, archive.Shard{}, func(c *archive.Config) { c.MaxRate = 10 })
		began := time.Now()
		_, err := a.Pass(t.Context(), time.Hour)
		require.NoError(t, err)
		require.InDelta(t, 29.9, time.Since(began).Seconds(), 0.01, "three hundred coupons, one at a time, of which the first is free")
	})
}

// Run works in quiet hours alone, once through in each night, and says once that the database is away.
func TestQuietHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which begins at midnight UTC
		r := many(50)
		a, reg, logs := scene(t, r, archive.Shard{}, func(c *archive.Config) { c.Window = "02:00-03:00 UTC" })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		<-time.After(2*time.Hour - time.Second)
		require.Zero(t, r.looked())
		<-time.After(2 * time.Minute)
		require.Equal(t, [2]int{3, 75}, r.looked())
		<-time.After(20 * time.Hour)
		require.Equal(t, [2]int{3, 75}, r.looked())
		r.away(errors.New("away"))
		<-time.After(time.Hour)
		r.away(nil)
		<-time.After(4 * time.Hour)
		require.Equal(t, [2]int{6, 75}, r.looked())
		require.Equal(t, 1, logs.FilterMessage("archive stopped early").Len())
		require.Equal(t, 2, logs.FilterMessage("archived").Len())
		cancel()
		require.NoError(t, <-ended)
		families, err := reg.Gather()
		require.NoError(t, err)
		values := make(map[string]float64)
		for _, f := range families {
			values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
		require.Equal(t, map[string]float64{"lapse_archive_lag_seconds": 90, "lapse_archived_total": 75}, values)
	})
}

func TestAnErrorEndsThePass(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := many(50)
		r.fail = errors.New("away")
		a, _, _ := scene(t, r, archive.Shard{}, nil)
		_, err := a.Pass(t.Context(), time.Minute)
		require.ErrorIs(t, err, r.fail)
		require.ErrorContains(t, err, "archive: away")
	})
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, archive.DefaultConfig().Validate())
	err := archive.Config{Batch: 901, MaxRate: -1, MaxOutbox: -1}.Validate()
	for _, text := range []string{
		`window: must be HH:MM-HH:MM ZONE`, "after: must be between 1h0m0s and ", "notices_after: must", "inbox_after: must",
		"batch: must be between 1 and 900, got 901", "max_rate: must be between 0 and 1000000, got -1", "max_outbox: must", "interval: must be between 1s and 1h0m0s, got 0s",
	} {
		require.ErrorContains(t, err, text)
	}
	_, err = archive.New(archive.Config{}, archive.Shard{}, nil, zap.NewNop(), prometheus.NewRegistry())
	require.ErrorContains(t, err, "archive config")
}
