package notice_test

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
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/inbox"
)

// book is a store for the loop: windows that are due at instants, and notices by state. Times of calls are kept.
type book struct {
	mu     sync.Mutex
	due    map[uint64]time.Time // windows
	lease  map[coupon.Notice]time.Time
	sent   map[coupon.Notice]int
	looks  []time.Time
	fail   func(call string) error
	during func() // while delivering
}

func newBook() *book {
	return &book{due: map[uint64]time.Time{}, lease: map[coupon.Notice]time.Time{}, sent: map[coupon.Notice]int{}, fail: func(string) error { return nil }}
}

func (b *book) open(id uint64, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.due[id] = at
}

// looked gives the instants at which the loop asked for due windows.
func (b *book) looked() []time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.looks)
}

func (b *book) total() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.sent {
		n += k
	}
	return n
}

func (b *book) CloseNotices(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.looks = append(b.looks, time.Now())
	if err := errors.Join(b.fail("close"), ctx.Err()); err != nil {
		return coupon.Closing{}, err
	}
	c := coupon.Closing{Now: time.Now(), Suppressed: make(map[string]int)}
	for id, at := range b.due {
		if at.After(c.Now) {
			if c.Next.IsZero() || at.Before(c.Next) {
				c.Next = at
			}
			continue
		}
		if c.Windows == p.Limit {
			c.More = true
			continue
		}
		delete(b.due, id)
		c.Windows++
		for _, ch := range p.Channels {
			n := coupon.Notice{WindowID: id, Channel: ch, UserID: fmt.Sprint("u", id), Kind: p.Kind, Items: 3}
			if id == 13 {
				n.Items = 0
				c.Suppressed[coupon.ReasonEmpty]++
				continue
			}
			b.lease[n] = c.Now.Add(p.Lease)
			c.Pending = append(c.Pending, n)
		}
	}
	return c, b.fail("closed") // the commit went through and the answer was lost
}

func (b *book) ClaimNotices(_ context.Context, ch coupon.Channel, lease time.Duration, limit int) ([]coupon.Notice, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail("claim"); err != nil {
		return nil, err
	}
	var ns []coupon.Notice
	for n, until := range b.lease {
		if n.Channel == ch && !until.After(time.Now()) && len(ns) < limit {
			b.lease[n] = time.Now().Add(lease)
			ns = append(ns, n)
		}
	}
	return ns, nil
}

func (b *book) send(ctx context.Context, call string, ns []coupon.Notice) (int, error) {
	if b.during != nil {
		b.during()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := errors.Join(b.fail(call), ctx.Err()); err != nil {
		return 0, err
	}
	sent := 0
	for _, n := range ns {
		if _, pending := b.lease[n]; pending {
			delete(b.lease, n)
			b.sent[n]++
			sent++
		}
	}
	return sent, nil
}

func (b *book) DeliverInbox(ctx context.Context, ms []coupon.NoticeMessage) (int, error) {
	ns := make([]coupon.Notice, len(ms))
	for i := range ms {
		ns[i] = ms[i].Notice
	}
	return b.send(ctx, "inbox", ns)
}

func (b *book) NoticesSent(ctx context.Context, ch coupon.Channel, windows []uint64) (int, error) {
	ns := make([]coupon.Notice, len(windows))
	for i, id := range windows {
		ns[i] = coupon.Notice{WindowID: id, Channel: ch, UserID: fmt.Sprint("u", id), Kind: coupon.NoticeExpired, Items: 3}
	}
	return b.send(ctx, "log", ns)
}

func closer(t *testing.T, b *book, log *zap.Logger, change func(*notice.Config)) (*notice.Closer, *prometheus.Registry) {
	t.Helper()
	c := notice.DefaultConfig()
	if change != nil {
		change(&c)
	}
	texts, err := notice.NewTexts(c.Locale)
	require.NoError(t, err)
	reg := prometheus.NewRegistry()
	k, err := notice.NewCloser(c, b, texts, []notice.Teller{inbox.New(b), notice.NewLog(b, log)}, log, reg, time.Now)
	require.NoError(t, err)
	return k, reg
}

// pass lets the bubble's clock go on; nothing waits.
func pass(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // in a synctest bubble

// running runs the loop beside the test's bubble until it ends.
func running(t *testing.T, k *notice.Closer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func TestCloserLooksWhenItMust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		k, _ := closer(t, b, zap.NewNop(), nil)
		start := time.Now()
		stop := running(t, k)
		pass(10*time.Second + time.Millisecond)
		require.Len(t, b.looked(), 11, "idle: once a second")

		b.open(1, time.Now().Add(30*time.Second))
		b.open(2, start.Add(20*time.Second+300*time.Millisecond))
		b.open(3, start.Add(20*time.Second+310*time.Millisecond))
		pass(10*time.Second + 600*time.Millisecond)
		require.Equal(t, 4, b.total(), "two windows on two channels")
		looks := b.looked()
		last := looks[len(looks)-2:]
		require.Equal(t, []time.Duration{20*time.Second + 300*time.Millisecond, 20*time.Second + 500*time.Millisecond},
			[]time.Duration{last[0].Sub(start), last[1].Sub(start)}, "at the instant, and the near one not before the least wait is over")
		stop()
	})
}

func TestCloserDrainsAndCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		k, reg := closer(t, b, zap.New(core), func(c *notice.Config) { c.Batch = 10 })
		for id := range uint64(95) {
			b.open(id, time.Now())
		}
		stop := running(t, k)
		synctest.Wait()
		require.Equal(t, 2*94, b.total(), "without a wait between full batches")
		stop()
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP lapse_notices_suppressed_total Notices recorded and not sent, by reason.
# TYPE lapse_notices_suppressed_total counter
lapse_notices_suppressed_total{reason="empty"} 2
# HELP lapse_notices_total Notices by channel, kind and result of their delivery.
# TYPE lapse_notices_total counter
lapse_notices_total{channel="inbox",kind="expired",result="failed"} 0
lapse_notices_total{channel="inbox",kind="expired",result="repeated"} 0
lapse_notices_total{channel="inbox",kind="expired",result="sent"} 94
lapse_notices_total{channel="log",kind="expired",result="failed"} 0
lapse_notices_total{channel="log",kind="expired",result="repeated"} 0
lapse_notices_total{channel="log",kind="expired",result="sent"} 94
`), "lapse_notices_total", "lapse_notices_suppressed_total"))
		require.Equal(t, 10, logs.FilterMessage("notices").Len(), "one line a batch")
		for _, e := range logs.All() {
			require.NotContains(t, e.ContextMap(), "user")
		}
	})
}

func TestCloserOneChannelFailing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		down := true
		b.fail = func(call string) error {
			if down && call == "inbox" {
				return errors.New("down")
			}
			return nil
		}
		k, _ := closer(t, b, zap.New(core), nil)
		b.open(1, time.Now())
		stop := running(t, k)
		synctest.Wait()
		require.Equal(t, 1, b.total(), "the other channel is served")
		pass(20 * time.Second)
		b.mu.Lock()
		down = false
		b.mu.Unlock()
		pass(19 * time.Second)
		require.Equal(t, 2, b.total(), "when the lease has run out")
		stop()
		require.Equal(t, 1, logs.FilterLevelExact(zap.WarnLevel).Len())
	})
}

// TestCloserKilledAnywhere cuts pods off at every point of the protocol; the next pod finishes what they began.
func TestCloserKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"close", "closed", "claim", "inbox", "log"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				b.open(1, time.Now())
				b.open(2, time.Now())
				dying := true
				b.fail = func(call string) error {
					if dying && call == point {
						return errors.New("killed")
					}
					return nil
				}
				first, _ := closer(t, b, zap.NewNop(), nil)
				stop := running(t, first)
				synctest.Wait()
				stop()
				dying = false
				second, _ := closer(t, b, zap.NewNop(), nil)
				third, _ := closer(t, b, zap.NewNop(), nil)
				stop2, stop3 := running(t, second), running(t, third)
				pass(40 * time.Second)
				stop2()
				stop3()
				require.Len(t, b.sent, 4)
				require.Equal(t, 4, b.total(), "each once")
			})
		})
	}
}

func TestCloserFinishesWhatItHasBegun(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name string
		slow time.Duration
		sent int
	}{{"within the bound", 2 * time.Second, 2}, {"beyond it", 6 * time.Second, 0}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				b.open(1, time.Now())
				b.during = func() { pass(x.slow) }
				k, _ := closer(t, b, zap.NewNop(), nil)
				stop := running(t, k)
				synctest.Wait()
				stop()
				require.Equal(t, x.sent, b.total())
			})
		})
	}
}

func TestCloserBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		b := newBook()
		away := true
		b.fail = func(string) error {
			if away {
				return coupon.ErrUnavailable
			}
			return nil
		}
		k, _ := closer(t, b, zap.New(core), nil)
		stop := running(t, k)
		pass(10 * time.Minute)
		require.Less(t, len(b.looked()), 150)
		require.Equal(t, 1, logs.Len(), "said once")
		b.mu.Lock()
		away = false
		b.mu.Unlock()
		pass(20 * time.Second)
		require.Equal(t, 2, logs.Len())
		stop()
	})
}
