package api_test

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

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// bell is a publisher that notes what it is given.
type bell struct {
	mu     sync.Mutex
	away   error         // what Ready says
	refuse error         // what Publish says of each message
	stuck  chan struct{} // not nil: Publish waits for it, or for its context
	sent   []broker.Message
	calls  int
}

func (b *bell) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

func (b *bell) set(f func(*bell)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

func (b *bell) Publish(ctx context.Context, ms []broker.Message) []error {
	b.mu.Lock()
	stuck := b.stuck
	b.calls++
	b.mu.Unlock()
	out := make([]error, len(ms))
	if stuck != nil {
		select {
		case <-stuck:
		case <-ctx.Done():
			for i := range out {
				out[i] = ctx.Err()
			}
			return out
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range out {
		out[i] = b.refuse
	}
	if b.refuse == nil {
		b.sent = append(b.sent, ms...)
	}
	return out
}

func (b *bell) messages() []broker.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sent
}

func smallLadder(t testing.TB, prefix string) *ladder.Ladder {
	t.Helper()
	lc := ladder.DefaultConfig()
	lc.Prefix, lc.GroupSize = prefix, 1
	lc.Levels = []ladder.Level{{Name: "s", Unit: time.Second, Digits: 9}}
	l, err := ladder.New(lc)
	require.NoError(t, err)
	return l
}

type asideWorld struct {
	*api.Aside
	bell *bell
	reg  *prometheus.Registry
}

func newAside(t testing.TB, p api.AsidePublisher, l *ladder.Ladder) asideWorld {
	t.Helper()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	w := asideWorld{reg: prometheus.NewRegistry()}
	w.bell, _ = p.(*bell)
	w.Aside = api.NewAside(api.AsideDeps{
		Publisher: p, Router: delay.NewLadder(l, nil), Encoder: codec, Now: time.Now, Log: zap.NewNop(), Registry: w.reg,
	})
	return w
}

func (w asideWorld) count(t testing.TB, result string) int {
	t.Helper()
	return lazyCount(t, w.reg, result)
}

func lazyCount(t testing.TB, reg *prometheus.Registry, result string) int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "lapse_lazy_total" && m.GetLabel()[0].GetValue() == result {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	require.Fail(t, "no such result", result)
	return 0
}

// running runs the aside in a bubble; the function stops it.
func (w asideWorld) running(t testing.TB) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

func ended(id uint64, now time.Time) *coupon.Coupon {
	return &coupon.Coupon{
		Row: coupon.Row{
			ID: id, Status: coupon.Unused, Version: 1, ValidFrom: now.Add(-time.Hour), ExpiresAt: now.Add(-time.Second), DueAt: now.Add(time.Minute),
		},
		Terms: coupon.Terms{Precision: coupon.Exact},
	}
}

func TestAReaderIsShownWhatHoldsNowAndTheBellRings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAside(t, &bell{}, smallLadder(t, "t"))
		stop := w.running(t)
		now := time.Now().UTC().Truncate(time.Second)
		settled := ended(1, now)
		settled.Status = coupon.Expired
		live := ended(2, now)
		live.ExpiresAt = now.Add(time.Millisecond)
		held := ended(3, now) // past its end, under a live lock
		held.Status, held.LockUntil = coupon.Locked, now.Add(time.Second)
		require.Equal(t, coupon.Expired, w.Seen(now, settled))
		require.Equal(t, coupon.Unused, w.Seen(now, live))
		require.Equal(t, coupon.Locked, w.Seen(now, held))
		synctest.Wait()
		require.Empty(t, w.bell.messages(), "what is shown as it is stored needs no bell")

		relaxed := ended(4, now)
		relaxed.Terms.Precision = coupon.Relaxed
		free := ended(5, now) // its lock has run out before its end
		free.Status, free.LockUntil, free.ExpiresAt = coupon.Locked, now, now.Add(time.Hour)
		gone := ended(6, now) // both have passed
		gone.Status, gone.LockUntil = coupon.Locked, now.Add(-time.Second)
		require.Equal(t, coupon.Expired, w.Seen(now, relaxed))
		require.Equal(t, coupon.Unused, w.Seen(now, free))
		require.Equal(t, coupon.Expired, w.Seen(now, gone))
		synctest.Wait()
		ms := w.bell.messages()
		require.Len(t, ms, 3)
		keys := []string{"00.00.00.00.00.expire.r.04", "00.00.00.00.00.unlock.x.05", "00.00.00.00.00.unlock.x.06"}
		for i, c := range []*coupon.Coupon{relaxed, free, gone} {
			require.Equal(t, "t.enter", ms[i].Exchange)
			require.Equal(t, keys[i], ms[i].Key, "straight to the due queue")
			require.True(t, ms[i].Mandatory)
			require.Zero(t, ms[i].Expiration)
			trigger, err := event.DecodeTrigger(ms[i].Body)
			require.NoError(t, err)
			require.Equal(t, coupon.OriginLazy, trigger.Origin)
			// What rings settles the row as it was shown.
			d := coupon.Decide(&c.Row, trigger, now)
			want := coupon.Expire
			if c == free {
				want = coupon.Unlock
			}
			require.Equal(t, want, d.Action)
		}
		stop()
		require.Equal(t, 3, w.count(t, "sent"))
	})
}

func TestARefreshStormRingsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAside(t, &bell{}, smallLadder(t, "t"))
		stop := w.running(t)
		now := time.Now().UTC().Truncate(time.Second)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 20 {
					for id := range uint64(5) {
						w.Seen(now, ended(id+1, now))
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		require.Len(t, w.bell.messages(), 5)
		require.Equal(t, 5*50*20-5, w.count(t, "repeated"))

		<-time.After(30*time.Second - 1)
		w.Seen(now, ended(1, now))
		synctest.Wait()
		require.Len(t, w.bell.messages(), 5)
		<-time.After(1)
		w.Seen(now, ended(1, now))
		synctest.Wait()
		require.Len(t, w.bell.messages(), 6, "still not settled: once more")
		stop()
	})
}

func TestAReaderNeverWaitsForTheBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 5000
		w := newAside(t, &bell{}, smallLadder(t, "t"))
		stop := w.running(t)
		now := time.Now().UTC().Truncate(time.Second)
		read := func(first, n uint64) {
			began := time.Now()
			for id := first; id < first+n; id++ {
				require.Equal(t, coupon.Expired, w.Seen(now, ended(id, now)))
			}
			require.Zero(t, time.Since(began), "in the bubble time passes only while everybody waits")
		}

		w.bell.set(func(b *bell) { b.away = broker.ErrNotSent })
		read(1, many)
		require.Equal(t, many, w.count(t, "dropped"), "away: nothing is even kept")
		synctest.Wait()
		require.Zero(t, w.bell.calls)

		// It hangs, without a word.
		w.bell.set(func(b *bell) { b.away, b.stuck = nil, make(chan struct{}) })
		read(1, 1)
		synctest.Wait()
		read(2, many)
		dropped := w.count(t, "dropped") - many
		require.Equal(t, many-1024, dropped, "the buffer has a bound")
		<-time.After(6 * time.Second) // the first batch is given up, the next is on its way
		synctest.Wait()
		require.Equal(t, 1, w.count(t, "failed"))

		// It goes away with the buffer full: what waits is let go, and rings again when read again.
		w.bell.set(func(b *bell) { b.away = broker.ErrBlocked; close(b.stuck); b.stuck = nil })
		synctest.Wait()
		require.Zero(t, w.Waiting())
		w.bell.set(func(b *bell) { b.away = nil })
		read(500, 1)
		synctest.Wait()
		sent := w.bell.messages()
		require.Equal(t, "l500.1", sent[len(sent)-1].ID)

		w.bell.set(func(b *bell) { b.refuse = errors.New("returned") })
		read(9_000_000, 1)
		synctest.Wait()
		require.Equal(t, 2, w.count(t, "failed"))
		stop()
		// Nobody runs it: as if it were full.
		read(1_000_000, 2000)
	})
}

func TestTheAsideForgetsInBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAside(t, &bell{}, smallLadder(t, "t"))
		stop := w.running(t)
		now := time.Now().UTC().Truncate(time.Second)
		const most = 16 * 1024
		id := uint64(0)
		for range 2 * most / 1024 {
			for range 1024 {
				id++
				w.Seen(now, ended(id, now))
			}
			synctest.Wait()
			require.LessOrEqual(t, w.Remembered(), most)
		}
		require.Equal(t, int(id), w.count(t, "sent"))
		w.Seen(now, ended(id, now))
		require.Equal(t, 1, w.count(t, "repeated"))
		w.Seen(now, ended(1, now)) // long forgotten
		synctest.Wait()
		require.Equal(t, int(id)+1, w.count(t, "sent"))
		<-time.After(time.Minute)
		w.Seen(now, ended(1, now))
		require.Equal(t, 1, w.Remembered())
		stop()
	})
}

func TestWithoutAnAsideTheReaderIsShownTheSame(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	require.Equal(t, coupon.Expired, (*api.Aside)(nil).Seen(now, ended(1, now)))
}
