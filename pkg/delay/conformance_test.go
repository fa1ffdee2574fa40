package delay_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// subject is a mechanism under the conformance suite.
type subject struct {
	name  string
	early time.Duration // how early it may ring: the expirer holds what does
	// begin starts an instance, as another process would have it, and gives what stops it.
	begin func(w *world) (m delay.Mechanism, stop func())
	rings bool // triggers come on the due queues
}

func subjects() []subject {
	return []subject{
		{name: "ladder", early: time.Second + ladder.Margin, rings: true, begin: func(w *world) (delay.Mechanism, func()) {
			m := delay.NewLadder(w.ladder, w.publisher)
			return m, w.run(m.Run)
		}},
		{name: "zset", rings: true, begin: func(w *world) (delay.Mechanism, func()) {
			z := w.zset(delay.DefaultZSetConfig(), w.publisher, prometheus.NewRegistry())
			return z, w.run(z.Run)
		}},
		{name: "wheel", rings: true, begin: func(w *world) (delay.Mechanism, func()) {
			m, err := delay.NewWheel(delay.DefaultWheelConfig(), delay.WheelDeps{
				Exchange: w.ladder.Enter(), Publisher: w.publisher, Rows: w.store, Clock: w.store.Now, Parts: allParts, Log: testenv.Log(w),
				Registerer: prometheus.NewRegistry(),
			})
			require.NoError(w, err)
			return m, w.run(m.Run)
		}},
		{name: "sweep", begin: func(w *world) (delay.Mechanism, func()) {
			c := expiry.DefaultConfig()
			s := expiry.NewSweeper(c.Sweep.Alone(), w.store, w.core(), delay.SweepOnly{}.Ready, expiry.NewLimiter(c), zap.NewNop())
			return delay.SweepOnly{}, w.run(s.Run)
		}},
	}
}

func allParts() []int {
	parts := make([]int, coupon.Partitions)
	for i := range parts {
		parts[i] = i
	}
	return parts
}

func (w *world) zset(c delay.ZSetConfig, p delay.Publisher, reg prometheus.Registerer) *delay.ZSet {
	w.Helper()
	if c.URL.Empty() {
		c.URL = w.redis
	}
	z, err := delay.NewZSet(c, delay.ZSetDeps{
		Prefix: w.ladder.Prefix(), Exchange: w.ladder.Enter(), Publisher: p, Clock: w.store.Now, Log: testenv.Log(w), Registerer: reg,
	})
	require.NoError(w, err)
	w.Cleanup(func() { w.forget() })
	return z
}

// forget removes what the test left in Redis.
func (w *world) forget() {
	c := delay.DefaultZSetConfig()
	c.URL = w.redis
	z, err := delay.NewZSet(c, delay.ZSetDeps{Prefix: w.ladder.Prefix()})
	require.NoError(w, err)
	require.NoError(w, z.Forget(context.WithoutCancel(w.Context())))
	require.NoError(w, z.Close())
}

func eachMechanism(t *testing.T, test func(w *world, s subject)) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t), s)
		})
	}
}

// Every mechanism brings every trigger to the core at its instant or after, whatever the order, how often it is told, and whether the
// instant has passed; one that is years ahead does not come.
func TestMechanismsBringEachTriggerAndNoneEarly(t *testing.T) {
	t.Parallel()
	eachMechanism(t, func(w *world, s subject) {
		m, _ := s.begin(w)
		now := w.now().Add(3 * time.Second) // as long as the issuing may take
		past := w.issue(20, now.Add(time.Second), "past")
		far := w.issue(20, now.Add(400*24*time.Hour), "far")
		var near []coupon.Timed
		for k := 6; k > 0; k-- { // the last first
			near = append(near, w.issue(60, now.Add(time.Duration(k)*time.Second), "near")...)
		}
		w.deliver(m, far)
		w.deliver(m, near[:200])
		w.deliver(m, near[100:]) // some twice
		testenv.Wait(w, "the end of those that are handed over late", func() bool { return w.now().After(past[0].At) })
		w.deliver(m, past)

		all := len(near) + len(past)
		testenv.Wait(w, "every coupon", func() bool { return w.expired() == int64(all) })
		w.deliver(m, near) // and when it is over
		require.Zero(w, w.db.Int(w, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND expired_at < expires_at`))
		if s.rings {
			w.requireHeard(append(near, past...), s.early)
		}
		for _, f := range far {
			require.Zero(w, w.times(f), "a trigger of next year came")
		}
		require.EqualValues(w, all, w.expired())
	})
}

// A process that holds triggers is stopped in the middle, and another one goes on with them.
func TestMechanismsGoOnAfterARestart(t *testing.T) {
	t.Parallel()
	eachMechanism(t, func(w *world, s subject) {
		m, stop := s.begin(w)
		now := w.now().Add(3 * time.Second)
		var ts []coupon.Timed
		for k := 2; k <= 8; k++ {
			ts = append(ts, w.issue(40, now.Add(time.Duration(k)*time.Second), "c")...)
		}
		w.deliver(m, ts)
		testenv.Wait(w, "the first ones", func() bool { return w.expired() > 0 })
		stop()
		s.begin(w)
		testenv.Wait(w, "every coupon", func() bool { return w.expired() == int64(len(ts)) })
		if s.rings {
			w.requireHeard(ts, s.early)
		}
	})
}

// The end of a lock comes as the end of a coupon does.
func TestMechanismsBringTheEndOfALock(t *testing.T) {
	t.Parallel()
	eachMechanism(t, func(w *world, s subject) {
		m, _ := s.begin(w)
		c := w.issue(1, w.now().Add(time.Hour), "locked")[0]
		_, out, err := w.store.Act(w.Context(), coupon.Order{
			Verb: coupon.VerbLock, OrderID: "o", UserID: "u", CouponIDs: []uint64{c.CouponID}, LockFor: 2 * time.Second,
		})
		require.NoError(w, err)
		require.Empty(w, out[0].Refused, out[0].Detail)
		until := out[0].Coupon.LockUntil
		w.deliver(m, []coupon.Timed{c, w.trigger(coupon.KindUnlock, c.CouponID, 2, until)})
		testenv.Wait(w, "the lock's end", func() bool { return w.db.Int(w, `SELECT COUNT(*) FROM coupon WHERE status = 1 AND version = 3`) == 1 })
		if s.rings {
			require.Positive(w, w.times(coupon.Timed{Kind: coupon.KindUnlock, CouponID: c.CouponID}))
		}
	})
}
