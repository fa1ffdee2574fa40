package broker_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
)

func ackAll(batch []broker.Delivery) []broker.Outcome {
	out := make([]broker.Outcome, len(batch))
	for i := range batch {
		out[i] = broker.Ack()
	}
	return out
}

// consume runs a consumer of the exact due queue.
func (e *env) consume(c *broker.Client, p *broker.Publisher, h broker.Handler, change ...func(*broker.ConsumerOptions)) (*broker.Consumer, func()) {
	e.Helper()
	o := broker.ConsumerOptions{
		Config: broker.DefaultConsumerConfig(), Queue: e.ladder.DueExact(), Handler: h,
		Publisher: p, ParkExchange: e.ladder.ParkExchange(),
	}
	for _, f := range change {
		f(&o)
	}
	k, err := c.NewConsumer(o)
	require.NoError(e, err)
	return k, e.run(k.Run)
}

// Of a cluster's nodes one may be down from the start, and another one go later.
func TestADeadNodeIsLeftBehind(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	first, cfg := e.proxied()
	second, _ := e.proxied()
	cfg.Addresses = []string{"127.0.0.1:1", first.Addr(), second.Addr()}
	p := e.publisher(e.client(cfg))
	k, _ := e.consume(e.client(cfg), nil, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		return ackAll(batch), nil
	})
	e.eventually("the consumer passes by the dead node", k.Subscribed)
	for i, gone := range []*rig.Proxy{first, second, first} {
		gone.Refuse(true)
		gone.Cut()
		e.eventually("publishing goes on at another node", func() bool {
			return p.Publish(e.ctx(), []broker.Message{e.due(fmt.Sprintf("m%d", i))})[0] == nil
		})
		e.eventually("consuming, too", func() bool { return k.Subscribed() && e.depth(e.ladder.DueExact()) == 0 })
		gone.Refuse(false)
	}
}

// A management API that is away does not keep anybody from asking the next one; what one answers is an answer.
func TestTheNextManagementAddressIsAsked(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	u, err := url.Parse(e.cfg.ManagementURL.Reveal())
	require.NoError(t, err)
	cfg := e.cfg
	cfg.ManagementAddresses = []string{"127.0.0.1:1", u.Host}
	require.NoError(t, e.client(cfg).CheckPolicies(e.ctx(), e.plan))
	cfg.ManagementAddresses = []string{"127.0.0.1:1", "127.0.0.1:2"}
	require.ErrorContains(t, e.client(cfg).CheckPolicies(e.ctx(), e.plan), "refused")
	u.User = url.UserPassword("nobody", "nothing")
	cfg.ManagementURL, cfg.ManagementAddresses = secret.New(u.String()), []string{u.Host, u.Host}
	require.ErrorContains(t, e.client(cfg).CheckPolicies(e.ctx(), e.plan), "the management API refuses the user")
}

// Over a reconnect an old delivery tag may mean another message. The ack must
// be refused, and the message come again.
func TestAnAckOfADeadSessionSettlesNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	proxy, cfg := e.proxied()

	first, cut := make(chan struct{}), make(chan struct{})
	var (
		mu   sync.Mutex
		seen []string
		once sync.Once
	)
	k, stop := e.consume(e.client(cfg), nil, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		mu.Lock()
		for _, d := range batch {
			seen = append(seen, d.MessageID)
		}
		mu.Unlock()
		once.Do(func() {
			close(first)
			<-cut // the connection dies while the delivery is held
		})
		return ackAll(batch), nil
	})
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("held")}))
	<-first
	require.Positive(t, proxy.Cut())
	e.eventually("the consumer notices", func() bool { return !k.Subscribed() })
	// Another message takes tag 1 of the next session.
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("next")}))
	close(cut)
	e.eventually("both are handled after the reconnect", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == 3
	})
	stop()
	slices.Sort(seen[1:])
	require.Equal(t, []string{"held", "held", "next"}, seen)
	require.Zero(t, e.depth(e.ladder.DueExact()))
}

func TestTheConsumerComesBackAfterItsQueueWasDeleted(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.cfg.Topology.Declare = false // someone else's to make
	c := e.client(e.cfg)
	p := e.publisher(c)
	var handled atomic.Int64
	k, _ := e.consume(c, nil, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		handled.Add(int64(len(batch)))
		return ackAll(batch), nil
	})
	e.eventually("it subscribes", k.Subscribed)
	require.NoError(t, k.Ready())

	require.NoError(t, e.direct.Delete(e.ctx(), e.only(e.ladder.DueExact())))
	e.eventually("it is told of the cancel", func() bool { return !k.Subscribed() })
	require.Error(t, k.Ready())
	require.NoError(t, e.direct.Declare(e.ctx(), e.plan))
	e.eventually("it subscribes again", k.Subscribed)
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("after")}))
	e.eventually("it consumes", func() bool { return handled.Load() == 1 })
}

func TestADeletedQueueIsDeclaredAgainByItsConsumer(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	// The consumer hears of the deletion before it is complete: see
	// Client.Delete on declaring meanwhile.
	e.cfg.BackoffMin, e.cfg.BackoffMax = 2*time.Second, 4*time.Second
	c := e.client(e.cfg)
	p := e.publisher(c)
	var handled atomic.Int64
	k, _ := e.consume(c, nil, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		handled.Add(int64(len(batch)))
		return ackAll(batch), nil
	})
	e.eventually("it subscribes", k.Subscribed)
	require.NoError(t, e.direct.Delete(e.ctx(), e.only(e.ladder.DueExact())))
	// Without its binding a message goes to the catch-all, so it takes several.
	e.eventually("queue, binding and subscription are back", func() bool {
		noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("after")}))
		return handled.Load() > 0
	})
}

// Every disconnect counts as a delivery. With the broker's default of 20 in
// RabbitMQ 4 reconnects alone would park good messages.
func TestDisconnectsParkNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("0"), e.due("1"), e.due("2"), e.due("3")}))

	const disconnects = 25
	for range disconnects {
		conn, err := amqp.Dial(e.cfg.URL.Reveal())
		require.NoError(t, err)
		ch, err := conn.Channel()
		require.NoError(t, err)
		in, err := ch.Consume(e.ladder.DueExact(), "", false, false, false, false, nil)
		require.NoError(t, err)
		for range 4 {
			<-in
		}
		require.NoError(t, conn.Close())
	}
	require.Zero(t, e.depth(e.ladder.Parked()))

	var (
		mu     sync.Mutex
		counts []int
	)
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, batch, 1, "a delivery that came so often comes alone")
		counts = append(counts, batch[0].DeliveryCount)
		return ackAll(batch), nil
	})
	e.eventually("all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(counts) == 4
	})
	stop()
	for _, n := range counts {
		require.Equal(t, disconnects, n)
	}
	require.Zero(t, e.depth(e.ladder.Parked()))
	require.Zero(t, e.depth(e.ladder.DueExact()))
}

// A handler that can do nothing stops the consumer: one requeue, not a storm.
func TestAnErrorOfTheHandlerPausesUntilReady(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	var down atomic.Bool
	down.Store(true)
	var failed, polled atomic.Int64
	counts := make(chan int, 100)
	k, _ := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		if down.Load() {
			failed.Add(1)
			return nil, errors.New("the database is away")
		}
		for _, d := range batch {
			counts <- d.DeliveryCount
		}
		return ackAll(batch), nil
	}, func(o *broker.ConsumerOptions) {
		o.Config.Concurrency = 1
		o.Ready = func(context.Context) error {
			if failed.Load() > 0 && down.Load() {
				polled.Add(1)
				return errors.New("still away")
			}
			return nil
		}
	})
	var msgs []broker.Message
	for i := range 10 {
		msgs = append(msgs, e.due(fmt.Sprint(i)))
	}
	noErrors(t, p.Publish(e.ctx(), msgs))
	e.eventually("it polls", func() bool { return polled.Load() >= 3 })
	require.False(t, k.Subscribed())
	require.EqualValues(t, 1, failed.Load())
	require.Equal(t, 10, e.depth(e.ladder.DueExact()), "everything is back in the queue")
	down.Store(false)
	for range 10 {
		require.LessOrEqual(t, <-counts, 1, "requeued once at most")
	}
}

func TestStoppingLetsTheBatchInWorkEndAndPutsTheRestBack(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	var msgs []broker.Message
	for i := range 50 {
		msgs = append(msgs, e.due(fmt.Sprint(i)))
	}
	noErrors(t, p.Publish(e.ctx(), msgs))
	working, finish := make(chan struct{}), make(chan struct{})
	var once sync.Once
	k, stop := e.consume(e.direct, p, func(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		once.Do(func() { close(working) })
		<-finish
		return ackAll(batch), ctx.Err()
	}, func(o *broker.ConsumerOptions) {
		o.Config = broker.ConsumerConfig{Prefetch: 50, Batch: 10, Linger: 5 * time.Second, Concurrency: 1}
	})
	<-working
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	e.eventually("it is cancelled", func() bool { return !k.Subscribed() })
	close(finish)
	<-stopped
	e.eventually("ten are done, forty are back", func() bool { return e.depth(e.ladder.DueExact()) == 40 })
}
