package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/outbox"
)

func event(c uint64, n int) coupon.Outgoing {
	return coupon.Outgoing{Lane: coupon.LaneEvent, Part: coupon.Partition(c), CouponID: c, MsgID: fmt.Sprintf("%d:%d", c, n), Key: "coupon.expired"}
}

func trigger(c uint64) coupon.Outgoing {
	return coupon.Outgoing{Lane: coupon.LaneTrigger, Part: coupon.Partition(c), CouponID: c, MsgID: fmt.Sprintf("v%d", c), Key: "expire", Class: 'x'}
}

// bench is one relay on fakes, in a synctest bubble.
type bench struct {
	store *fakeStore
	mq    *fakeBroker
	wake  chan struct{}
	logs  *observer.ObservedLogs
	cfg   outbox.Config
	key   func(string) string // of bundles
	stop  func()
}

func onFakes(t *testing.T, prepare func(*bench), run func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		b := &bench{store: newFakeStore(time.Now), mq: &fakeBroker{}, key: func(string) string { return "" }, wake: make(chan struct{}, 1), logs: logs, cfg: outbox.DefaultConfig()}
		prepare(b)
		r, err := outbox.New(b.cfg, outbox.Deps{
			Owner: "pod", Store: b.store, Delay: b.mq, Exchange: "p.events", Wake: b.wake,
			Events: broker.Bundling{Publisher: b.mq, Exchange: bundles, Key: b.key, Most: b.cfg.Bundle},
			Log:    zap.New(core), Registerer: prometheus.NewRegistry(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		b.stop = func() {
			cancel()
			require.NoError(t, <-ended)
			ended <- nil
		}
		run(b)
		b.stop()
		for p := range b.store.owner {
			require.Empty(t, b.store.owner[p], "partitions are given up")
		}
	})
}

// in lets the time pass.
func in(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // virtual time
	synctest.Wait()
}

func TestTriggersGoFirst(t *testing.T) {
	t.Parallel()
	onFakes(t, func(b *bench) {
		b.store.insert(event(1, 1), event(2, 1), trigger(1), trigger(2))
	}, func(b *bench) {
		in(time.Second)
		require.Equal(t, []string{"v1", "v2", "1:1", "2:1"}, b.mq.list())
		require.Zero(t, b.store.left())
		b.store.insert(event(3, 1))
		b.wake <- struct{}{}
		synctest.Wait()
		require.Equal(t, "3:1", b.mq.list()[4], "a commit wakes the relay at once")
	})
}

func TestIdleCostsLittleAndForeignRowsAreFound(t *testing.T) {
	t.Parallel()
	onFakes(t, func(*bench) {}, func(b *bench) {
		in(time.Minute)
		before := b.store.readings()
		in(time.Minute)
		require.LessOrEqual(t, b.store.readings()-before, 4*60+2, "two statements every idle_poll")
		b.store.insert(event(1, 1)) // by another process: no wake
		in(b.cfg.IdlePoll)
		require.Zero(t, b.store.left())
		for range 20 {
			in(b.cfg.Poll)
			b.store.insert(event(1, 2))
			in(b.cfg.Poll)
			require.Zero(t, b.store.left(), "more of them are expected, and found at the quick pace")
		}
	})
}

// A trickle of commits, each with its wake, is relayed in rounds that gather several; the first of it at once.
func TestTrickleIsGathered(t *testing.T) {
	t.Parallel()
	onFakes(t, func(*bench) {}, func(b *bench) {
		in(time.Minute)
		before := b.store.readings()
		for i := range 200 {
			b.store.insert(event(uint64(i+1), 1))
			select {
			case b.wake <- struct{}{}:
			default:
			}
			in(time.Millisecond)
			if i == 0 {
				require.Zero(t, b.store.left(), "the first does not wait")
			}
		}
		in(25 * time.Millisecond)
		require.Zero(t, b.store.left())
		require.LessOrEqual(t, b.store.readings()-before, 2*(225/25+3), "two statements a round, a round each 25 ms")
		require.Len(t, b.mq.list(), 200)
	})
}

// While a coupon's event fails, its later ones wait, in later batches too; the others of the partition go on.
func TestLaterEventsOfACouponNeverOvertake(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{"refused": broker.ErrNacked, "unknown": broker.ErrUnknown, "not sent": broker.ErrNotSent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onFakes(t, func(b *bench) {
				b.cfg.Batch = 32
				for n := 1; n <= 10; n++ {
					b.store.insert(event(16, n), event(32, n), event(48, n))
				}
				b.mq.answer = func(id string, nth int) error {
					if (id == "16:1" || id == "16:5") && nth <= 3 {
						return failure
					}
					return nil
				}
			}, func(b *bench) {
				in(time.Minute)
				require.Zero(t, b.store.left())
				requireOrder(t, b.mq.list(), 3, 10)
			})
		})
	}
}

// requireOrder demands each coupon's events 1…each at least once, their first appearances in order.
func requireOrder(t testing.TB, ids []string, coupons, each int) (repeats int) {
	t.Helper()
	next, seen := make(map[uint64]int), make(map[string]bool)
	for _, id := range ids {
		if seen[id] {
			repeats++
			continue
		}
		seen[id] = true
		var c uint64
		var n int
		_, err := fmt.Sscanf(id, "%d:%d", &c, &n)
		require.NoError(t, err)
		next[c]++
		require.Equal(t, next[c], n, "coupon %d: %v", c, ids[max(0, len(ids)-20):])
	}
	require.Len(t, seen, coupons*each)
	return repeats
}

// Between two batches of one walk a transaction commits whose id the walk has passed, and then the same coupon's next.
func TestLateCommitIsNotOvertaken(t *testing.T) {
	t.Parallel()
	onFakes(t, func(b *bench) {
		b.cfg.Batch = 1
		commit := b.store.begin(event(16, 1))
		for c := uint64(32); c < 320; c += 16 {
			b.store.insert(event(c, 1))
		}
		b.mq.enter = func(calls int) {
			if calls == 3 {
				commit()
				b.store.insert(event(16, 2))
			}
		}
	}, func(b *bench) {
		in(time.Minute)
		require.Zero(t, b.store.left())
		sent := b.mq.list()
		require.Less(t, slices.Index(sent, "16:1"), slices.Index(sent, "16:2"))
	})
}

func TestRefusedRowIsParkedAndItsPartitionGoesOn(t *testing.T) {
	t.Parallel()
	onFakes(t, func(b *bench) {
		b.store.insert(event(16, 1), event(16, 2), event(32, 1))
		b.mq.answer = func(id string, _ int) error {
			if id == "16:1" {
				return fmt.Errorf("%w: no binding", broker.ErrReturned)
			}
			return nil
		}
	}, func(b *bench) {
		in(time.Second)
		require.Equal(t, []string{"32:1"}, b.mq.list(), "the partition goes on")
		require.Less(t, b.mq.tries("16:1"), 6, "not a hot loop")
		in(10 * time.Minute)
		require.Equal(t, []string{"32:1", "16:2"}, b.mq.list())
		require.Equal(t, []uint64{1}, b.store.aside())
		require.Equal(t, refusalLimit, b.mq.tries("16:1"))
		require.Len(t, b.logs.FilterMessageSnippet("parked").All(), 1)
	})
}

// An event is gone from the outbox when it was confirmed both by itself and in its bundle, and is sent both ways until then.
func TestAnEventIsSentWhenItsBundleIs(t *testing.T) {
	t.Parallel()
	named := func(c uint64, key string) coupon.Outgoing {
		e := event(c, 1)
		e.Key, e.Body = key, []byte(e.MsgID)
		return e
	}
	for _, x := range []struct {
		name    string
		answer  func(id string, nth int) error
		sent    []string
		refused int
	}{
		{"confirmed", nil, []string{"16:1", "32:1", "48:1", "both of 16:1 48:1"}, 0},
		{"the bundle is refused once", func(id string, nth int) error {
			if id == "both of 16:1 48:1" && nth == 1 {
				return broker.ErrNacked
			}
			return nil
		}, []string{"16:1", "32:1", "48:1", "16:1", "48:1", "both of 16:1 48:1"}, 0},
		{"of one bundle nothing is known", func(id string, nth int) error {
			if id == "both of 16:1 48:1" && nth == 1 {
				return broker.ErrUnknown
			}
			return nil
		}, []string{"16:1", "32:1", "48:1", "both of 16:1 48:1", "16:1", "48:1", "both of 16:1 48:1"}, 0},
		{"an event is refused once", func(id string, nth int) error {
			if id == "16:1" && nth == 1 {
				return broker.ErrNacked
			}
			return nil
		}, []string{"32:1", "48:1", "both of 16:1 48:1", "16:1", "both of 16:1"}, 0},
		{"a bundle has no binding", func(id string, _ int) error {
			if strings.HasPrefix(id, "both") {
				return broker.ErrReturned
			}
			return nil
		}, nil, 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			onFakes(t, func(b *bench) {
				b.key = func(event string) string {
					if event == "coupon.expired" {
						return "both"
					}
					return ""
				}
				b.store.insert(named(16, "coupon.expired"), named(32, "coupon.refused"), named(48, "coupon.expired"))
				b.mq.answer = x.answer
			}, func(b *bench) {
				in(10 * time.Second)
				require.Equal(t, x.refused, b.store.left())
				if x.sent != nil {
					require.Equal(t, x.sent, b.mq.list())
				}
				in(10 * time.Minute)
				require.Len(t, b.store.aside(), x.refused)
				require.Zero(t, b.store.left())
			})
		})
	}
}

func TestBrokerAwayCostsWaitingOnly(t *testing.T) {
	t.Parallel()
	away := true
	onFakes(t, func(b *bench) {
		for c := range 100 {
			b.store.insert(event(uint64(c), 1), trigger(uint64(c)))
		}
		b.mq.answer = func(string, int) error {
			if away {
				return broker.ErrBlocked
			}
			return nil
		}
	}, func(b *bench) {
		in(10 * time.Minute)
		require.Equal(t, 200, b.store.left())
		for _, r := range b.store.waiting() {
			require.Zero(t, r.Refused)
		}
		require.Less(t, b.mq.called(), 400, "it waits between attempts")
		require.Less(t, len(b.logs.All()), 15, "told once, then every minute")
		b.mq.mu.Lock()
		away = false
		b.mq.mu.Unlock()
		in(10 * time.Second)
		require.Zero(t, b.store.left())
		require.NotEmpty(t, b.logs.FilterMessageSnippet("again").All())
	})
}

func TestDatabaseAwayCostsWaitingOnly(t *testing.T) {
	t.Parallel()
	onFakes(t, func(b *bench) {
		b.store.break_(errors.New("gone"))
		b.store.insert(event(1, 1))
	}, func(b *bench) {
		in(5 * time.Minute)
		require.Less(t, len(b.logs.All()), 15)
		require.Empty(t, b.mq.list())
		b.store.break_(nil)
		in(10 * time.Second)
		require.Equal(t, []string{"1:1"}, b.mq.list())
	})
}

// The clock that delays are computed from is the database's, going on while the batch waits.
func TestDelaysAreComputedFromTheDatabasesClock(t *testing.T) {
	t.Parallel()
	const ahead = 13 * time.Hour
	onFakes(t, func(b *bench) {
		b.cfg.Batch = 1
		b.store.now = func() time.Time { return time.Now().Add(ahead) }
		for range 3 {
			b.store.insert(trigger(1))
		}
		b.mq.enter = func(int) { time.Sleep(3 * time.Second) } //nolint:forbidigo // virtual time; the next batch has been read by then
	}, func(b *bench) {
		in(time.Minute)
		clocks := b.mq.clocks()
		require.Len(t, clocks, 3)
		for i, at := range clocks[1:] {
			require.GreaterOrEqual(t, at.Sub(clocks[i]), 3*time.Second)
		}
		require.Zero(t, b.store.left())
	})
}

// On stop the batch in hand is finished, what was read beyond it is left, and Run does not outlast stop_timeout.
func TestStopFinishesTheBatchInHand(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	onFakes(t, func(b *bench) {
		b.cfg.Batch = 16
		for n := 1; n <= 5; n++ {
			b.store.insert(event(uint64(16*n), 1))
		}
		b.mq.enter = func(calls int) {
			if calls == 1 {
				close(entered)
			}
			time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
		}
	}, func(b *bench) {
		<-entered
		began := time.Now()
		b.stop()
		require.Equal(t, 2*time.Second, time.Since(began))
		require.Equal(t, []string{"16:1"}, b.mq.list()[:1])
		require.Equal(t, 5-len(b.mq.list()), b.store.left(), "what was confirmed is deleted")
		require.Equal(t, 1, b.mq.called())
	})
}

// Two relays share the work; when one stalls in the middle of a batch, the other takes over after the lease, and the
// stalled one's return costs repeats only.
func TestStalledRelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, mq := newFakeStore(time.Now), &fakeBroker{}
		stall := make(chan struct{})
		var slow *stalling
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for i := range 2 {
			s := &stalling{fakeStore: store, mq: mq, gate: make(chan struct{})}
			if i == 0 {
				slow = s
				s.gate = stall
			} else {
				close(s.gate)
			}
			cfg := outbox.DefaultConfig()
			cfg.Batch = 64
			r, err := outbox.New(cfg, outbox.Deps{Owner: fmt.Sprint(i), Store: s, Delay: s, Events: s})
			require.NoError(t, err)
			go func() { ended <- r.Run(ctx) }()
		}
		in(20 * time.Second) // both have their share
		insert := func(n int) {
			for c := range uint64(64) {
				store.insert(event(c, n))
			}
		}
		insert(1)
		insert(2)
		in(time.Second)
		require.Equal(t, 64, store.left(), "half of it stands with the stalled one")
		insert(3)
		slow.stall(true)
		in(30 * time.Second)
		require.Zero(t, store.left(), "the other one has taken over")
		slow.stall(false)
		close(stall)
		insert(4)
		in(30 * time.Second)
		require.Zero(t, store.left())
		require.NotZero(t, requireOrder(t, mq.list(), 64, 4), "the stalled batch")
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, outbox.DefaultConfig().Validate())
	err := outbox.Config{Batch: 5001, Poll: time.Hour}.Validate()
	for _, field := range []string{
		"batch: must be between 1 and 5000, got 5001", "poll: must", "idle_poll: must be between", "lease: must", "stop_timeout: must", "idle_poll: must be at least poll",
	} {
		require.ErrorContains(t, err, field)
	}
	_, err = outbox.New(outbox.Config{}, outbox.Deps{})
	require.ErrorContains(t, err, "batch: must be between 1 and 5000, got 0")
}

// away is a delay mechanism that nothing can be handed over to.
type away struct{}

func (away) Deliver(_ context.Context, _ time.Time, ts []coupon.Timed) []error {
	errs := make([]error, len(ts))
	for i := range errs {
		errs[i] = errors.New("nobody there")
	}
	return errs
}

// While the delay mechanism alone is away triggers wait, unparked, and events go on.
func TestEventsGoOnWithoutTheDelayMechanism(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, mq := newFakeStore(time.Now), &fakeBroker{}
		store.insert(event(1, 1), event(2, 1), trigger(1))
		r, err := outbox.New(outbox.DefaultConfig(), outbox.Deps{
			Owner: "pod", Store: store, Delay: away{}, Events: mq, Exchange: "p.events", Log: zap.NewNop(), Registerer: prometheus.NewRegistry(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		in(time.Minute)
		require.Equal(t, []string{"1:1", "2:1"}, mq.list())
		require.Len(t, r.Parts(), coupon.Partitions)
		store.insert(event(3, 1))
		in(time.Minute)
		require.Equal(t, []string{"1:1", "2:1", "3:1"}, mq.list())
		require.Empty(t, store.parked)
		cancel()
		require.NoError(t, <-ended)
	})
}
