package api_test

import (
	"context"
	"math/rand/v2"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = time.Minute

// Triggers arrive on the due queue; through a proxy that goes silent, then away, no reader waits.
func TestLazyTriggersOverARealBroker(t *testing.T) {
	t.Parallel()
	testenv.Servers(t)
	l := smallLadder(t, testenv.Prefix(t))
	client := func(url string) *broker.Client {
		cfg := broker.DefaultConfig()
		cfg.URL = secret.New(url)
		cfg.BackoffMin, cfg.BackoffMax = 10*time.Millisecond, 100*time.Millisecond
		c, err := broker.New(cfg, broker.Options{Role: "test", Plan: l.Plan(), Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
		require.NoError(t, err)
		return c
	}
	direct := client(os.Getenv("TEST_AMQP_URL"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, direct.Declare(ctx, l.Plan()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, direct.Delete(ctx, l.Plan()))
	})
	address, err := url.Parse(os.Getenv("TEST_AMQP_URL"))
	require.NoError(t, err)
	proxy, err := rig.NewProxy(address.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	address.Host = proxy.Addr()
	publisher := client(address.String()).NewPublisher()
	testenv.Run(t, publisher.Run)
	require.NoError(t, publisher.WaitReady(ctx))
	w := newAside(t, publisher, l)
	testenv.Run(t, w.Run)

	arrived := make(chan coupon.Trigger, 64)
	consumer, err := direct.NewConsumer(broker.ConsumerOptions{
		Config: broker.DefaultConsumerConfig(), Queue: l.DueExact(),
		Handler: func(_ context.Context, ds []broker.Delivery) ([]broker.Outcome, error) {
			out := make([]broker.Outcome, len(ds))
			for i, d := range ds {
				trigger, err := event.DecodeTrigger(d.Body)
				if err != nil {
					return nil, err
				}
				arrived <- trigger
				out[i] = broker.Ack()
			}
			return out, nil
		},
	})
	require.NoError(t, err)
	testenv.Run(t, consumer.Run)
	next := func() coupon.Trigger {
		select {
		case got := <-arrived:
			return got
		case <-time.After(patience):
			require.Fail(t, "nothing arrives")
			return coupon.Trigger{}
		}
	}
	now := time.Now().UTC().Truncate(time.Second)
	for range 100 {
		w.Seen(now, ended(7, now))
	}
	require.Equal(t, coupon.Trigger{
		Kind: coupon.KindExpire, CouponID: 7, At: now.Add(-time.Second), ID: "l7.1", Origin: coupon.OriginLazy,
	}, next())

	// The broker is there and says nothing; then it is not there. Every reader goes on at once.
	id := uint64(100 + rand.Uint64N(100))
	readers := func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 3000 {
				id++
				w.Seen(now, ended(id, now))
			}
		}()
		select {
		case <-done:
		case <-time.After(patience):
			require.Fail(t, "a reader waits for the broker")
		}
	}
	proxy.Pause()
	readers()
	require.Positive(t, w.count(t, "dropped"))
	proxy.Refuse(true)
	proxy.Resume()
	proxy.Cut()
	testenv.Wait(t, "the publisher to know", func() bool { return publisher.Ready() != nil })
	testenv.Wait(t, "what was in the buffer to be settled", func() bool {
		return w.count(t, "sent")+w.count(t, "repeated")+w.count(t, "dropped")+w.count(t, "failed") == 100+3000
	})
	before := w.count(t, "dropped")
	readers()
	require.Equal(t, before+3000, w.count(t, "dropped"))
	proxy.Refuse(false)
	require.NoError(t, publisher.WaitReady(ctx))
	w.Seen(now, ended(8, now))
	for next().CouponID != 8 { // what was in the buffer may come, too
	}
}
