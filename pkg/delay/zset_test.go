package delay_test

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// proxied is Redis behind a proxy of the test's own.
func proxied(t *testing.T) (*rig.Proxy, secret.String) {
	t.Helper()
	u, err := url.Parse(testenv.Redis(t).Reveal())
	require.NoError(t, err)
	p, err := rig.NewProxy(u.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	u.Host = p.Addr()
	return p, secret.New(u.String())
}

// hung is a publisher that takes messages and never answers, until it is let go.
type hung struct {
	took chan int
	free chan struct{}
}

func (h *hung) Ready() error { return nil }

func (h *hung) Publish(ctx context.Context, ms []broker.Message) []error {
	select {
	case h.took <- len(ms):
	default:
	}
	select {
	case <-h.free:
	case <-ctx.Done():
	}
	errs := make([]error, len(ms))
	for i := range errs {
		errs[i] = errors.New("killed")
	}
	return errs
}

// A mover that dies between its claim and the confirm leaves the claim to its lease, and another claims it again.
func TestAnAbandonedClaimIsClaimedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, address := proxied(t)
	c := delay.DefaultZSetConfig()
	c.Lease, c.Timeout = 2*time.Second, time.Second
	victim := &hung{took: make(chan int, 100), free: make(chan struct{})}
	dying := c
	dying.URL, dying.Movers = address, delay.Shards
	z := w.zset(dying, victim, prometheus.NewRegistry())
	stop := w.run(z.Run)
	ts := w.issue(200, w.now().Add(time.Second), "c")
	w.deliver(z, ts)
	for range delay.Shards {
		<-victim.took
	}
	proxy.Refuse(true) // from now on the victim can do nothing, as if it were dead
	proxy.Cut()
	close(victim.free)
	stop()

	reg := prometheus.NewRegistry()
	w.run(w.zset(c, w.publisher, reg).Run)
	testenv.Wait(t, "every coupon", func() bool { return w.expired() == int64(len(ts)) })
	w.requireHeard(ts, 0)
	require.Positive(t, value(t, reg, "lapse_delay_reclaimed_total"))
	require.Zero(t, value(t, reg, "lapse_delay_unreadable_total"))
	testenv.Wait(t, "nothing left", func() bool {
		return value(t, reg, "lapse_delay_in_flight")+value(t, reg, "lapse_delay_waiting") == 0
	})
}

func value(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// refusing does not confirm for a while.
type refusing struct {
	delay.Publisher
	left atomic.Int64
}

func (r *refusing) Publish(ctx context.Context, ms []broker.Message) []error {
	if r.left.Add(-1) < 0 {
		return r.Publisher.Publish(ctx, ms)
	}
	errs := make([]error, len(ms))
	for i := range errs {
		errs[i] = broker.ErrNacked
	}
	return errs
}

// What the broker does not confirm is given back and comes again, long before the lease ends.
func TestWhatIsNotConfirmedIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := delay.DefaultZSetConfig()
	c.Lease = 10 * time.Minute
	p := &refusing{Publisher: w.publisher}
	p.left.Store(6)
	reg := prometheus.NewRegistry()
	z := w.zset(c, p, reg)
	w.run(z.Run)
	ts := w.issue(100, w.now().Add(time.Second), "c")
	w.deliver(z, ts)
	testenv.Wait(t, "every coupon", func() bool { return w.expired() == int64(len(ts)) })
	require.Zero(t, value(t, reg, "lapse_delay_reclaimed_total"), "giving back is no lost lease")
	require.NoError(t, z.Ready())
}

// While Redis is away nothing is taken (it stays in the outbox), every call ends, and the sweep is told. What waits there comes
// when it is back.
func TestRedisAwayIsToldAndWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy, address := proxied(t)
	c := delay.DefaultZSetConfig()
	c.URL, c.Timeout = address, time.Second
	z := w.zset(c, w.publisher, prometheus.NewRegistry())
	require.Error(t, z.Ready(), "not heard yet")
	w.run(z.Run)
	testenv.Wait(t, "Redis", func() bool { return z.Ready() == nil })
	ts := w.issue(50, w.now().Add(3*time.Second), "c")
	w.deliver(z, ts)

	proxy.Refuse(true)
	proxy.Cut()
	testenv.Wait(t, "the sweep is told", func() bool { return z.Ready() != nil })
	more := w.issue(50, w.now().Add(4*time.Second), "d")
	for _, err := range z.Deliver(t.Context(), w.now(), more) {
		require.Error(t, err, "it stays in the outbox")
		require.NotContains(t, err.Error(), "redis://")
	}
	proxy.Refuse(false)
	testenv.Wait(t, "Redis again", func() bool { return z.Ready() == nil })
	w.deliver(z, more)
	testenv.Wait(t, "every coupon", func() bool { return w.expired() == int64(len(ts)+len(more)) })
	w.requireHeard(append(ts, more...), 0)
}

// Movers of several processes share the work, and what is handed over while it is being moved is not forgotten.
func TestSeveralMoversShareOneSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := delay.DefaultZSetConfig()
	c.Batch = 10
	regs := []*prometheus.Registry{prometheus.NewRegistry(), prometheus.NewRegistry(), prometheus.NewRegistry()}
	var sets []*delay.ZSet
	for _, reg := range regs {
		z := w.zset(c, w.publisher, reg)
		w.run(z.Run)
		sets = append(sets, z)
	}
	ts := w.issue(900, w.now().Add(2*time.Second), "c")
	var group sync.WaitGroup
	for k, z := range sets {
		group.Go(func() {
			for i := 0; i < len(ts); i += 100 {
				for _, err := range z.Deliver(w.Context(), ts[0].At.Add(-time.Second), ts[(i+100*k)%len(ts):(i+100*k)%len(ts)+100]) {
					if err != nil {
						w.Error(err)
					}
				}
			}
		})
	}
	group.Wait()
	testenv.Wait(t, "every coupon", func() bool { return w.expired() == int64(len(ts)) })
	w.requireHeard(ts, 0)
	testenv.Wait(t, "nothing left", func() bool {
		return value(t, regs[0], "lapse_delay_in_flight")+value(t, regs[0], "lapse_delay_waiting") == 0
	})
}

func TestTheAddressOfRedisIsNotShown(t *testing.T) {
	t.Parallel()
	c := delay.DefaultZSetConfig()
	require.NoError(t, c.Validate(), "no address: another mechanism")
	require.ErrorContains(t, c.ValidateURL(), "url: must be set")
	c.URL, c.Movers, c.Batch, c.Lease = secret.New("http://user:hush@host"), 0, 0, 0
	err := c.Validate()
	for _, text := range []string{"url: must be redis:// or rediss://", "movers: must be between 1 and 4, got 0", "batch: must be between", "lease: must be"} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "hush")
	c.URL = secret.New("rediss://user:hush@host:6380/2")
	require.NoError(t, c.ValidateURL())
}
