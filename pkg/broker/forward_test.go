package broker_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// A message that dies twice in one queue is dropped as a cycle, if it still
// carries the x-death headers of the first time. Rescheduling must survive it.
func TestRescheduledManyTimesThroughTheSameQueue(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	const rounds, count = 20, 5
	var (
		mu       sync.Mutex
		attempts = make(map[string]int)
		finished = make(chan struct{})
	)
	var done atomic.Int64
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		mu.Lock()
		defer mu.Unlock()
		out := make([]broker.Outcome, len(batch))
		for i, d := range batch {
			require.Equal(t, attempts[d.MessageID], d.Attempt)
			require.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", d.Headers[broker.HeaderTrace])
			if d.Attempt == rounds {
				out[i] = broker.Ack()
				if done.Add(1) == count {
					close(finished)
				}
				continue
			}
			attempts[d.MessageID]++
			r := e.ladder.Route(20*time.Millisecond, ladder.Expire, ladder.Exact, 3)
			m := d.Again(r.Exchange, r.Key)
			m.Expiration, m.Attempt = r.Expiration, d.Attempt+1
			out[i] = broker.Forward(m)
		}
		return out, nil
	})
	for i := range count {
		m := e.due(fmt.Sprint(i))
		m.Headers = map[string]any{broker.HeaderTrace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
		noErrors(t, p.Publish(e.ctx(), []broker.Message{m}))
	}
	select {
	case <-finished:
	case <-time.After(patience):
		require.Fail(t, "lost on the way", "%v", attempts)
	}
	stop()
	require.Zero(t, e.depth(e.ladder.DueExact()))
}

func TestParkedWithReasonAndOrigin(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		out := make([]broker.Outcome, len(batch))
		for i := range batch {
			out[i] = broker.Park("not a trigger")
		}
		return out, nil
	})
	m := e.due("odd")
	m.Headers = map[string]any{"CC": []any{e.ladder.Parked()}, "x-death": []any{}, "x-first-death-queue": "q", "kept": "yes"}
	m.Attempt = 4
	noErrors(t, p.Publish(e.ctx(), []broker.Message{m}))
	e.eventually("it is parked", func() bool { return e.depth(e.ladder.Parked()) == 1 })
	stop()
	d, ok, err := e.direct.Get(e.ctx(), e.ladder.Parked())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "odd", d.MessageID)
	require.Equal(t, "odd", string(d.Body))
	require.Equal(t, 4, d.Attempt)
	require.Equal(t, "not a trigger", d.Headers[broker.HeaderReason])
	require.Equal(t, e.ladder.DueExact(), d.Headers[broker.HeaderOrigin])
	require.Equal(t, "yes", d.Headers["kept"])
	for _, h := range []string{"CC", "x-death", "x-first-death-queue"} {
		require.NotContains(t, d.Headers, h)
	}
	require.Zero(t, e.depth(e.ladder.DueExact()))
	require.Zero(t, e.depth(e.ladder.Parked()))
}

// The delivery must not be acked before what replaces it is confirmed: the
// publishing connection swallows the forward, then dies.
func TestForwardIsConfirmedBeforeTheAck(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	source := e.publisher(e.direct)
	proxy, cfg := e.proxied()
	cfg.PublishTimeout = 500 * time.Millisecond
	cfg.Topology.Declare = false
	p := e.publisher(e.client(cfg))
	var calls atomic.Int64
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		calls.Add(1)
		out := make([]broker.Outcome, len(batch))
		for i, d := range batch {
			m := d.Again(e.ladder.ParkExchange(), d.Key)
			m.Attempt = 1
			out[i] = broker.Forward(m)
		}
		return out, nil
	})
	proxy.Pause()
	noErrors(t, source.Publish(e.ctx(), []broker.Message{e.due("x")}))
	e.eventually("the forward is in flight", func() bool { return p.InFlight() == 1 })
	require.Zero(t, e.counter("lapse_broker_settled_total", e.ladder.DueExact(), "forward"), "not acked yet")
	proxy.Cut()
	proxy.Resume()
	e.eventually("it is forwarded by a later attempt", func() bool { return e.depth(e.ladder.Parked()) >= 1 })
	e.eventually("then acked", func() bool {
		return e.counter("lapse_broker_settled_total", e.ladder.DueExact(), "forward") == 1
	})
	stop()
	require.EqualValues(t, 1, calls.Load(), "the handler is not asked again for what it has decided")
	require.Zero(t, e.depth(e.ladder.DueExact()))
}

// What cannot be forwarded goes back to the queue in the end; meanwhile others are handled.
func TestAForwardWithoutRouteLosesNothingAndStopsNobody(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	var good atomic.Int64
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		out := make([]broker.Outcome, len(batch))
		for i, d := range batch {
			out[i] = broker.Ack()
			if d.MessageID == "stuck" {
				out[i] = broker.Forward(d.Again(e.ladder.Enter(), "no.route"))
				continue
			}
			good.Add(1)
		}
		return out, nil
	}, func(o *broker.ConsumerOptions) { o.Config.Concurrency = 1 })
	msgs := []broker.Message{e.due("stuck"), e.due("stuck"), e.due("stuck")}
	for i := range 100 {
		msgs = append(msgs, e.due(fmt.Sprint(i)))
	}
	start := time.Now()
	noErrors(t, p.Publish(e.ctx(), msgs))
	e.eventually("the good ones pass", func() bool { return good.Load() == 100 })
	require.Less(t, time.Since(start), 5*time.Second)
	stop()
	e.eventually("the others are kept", func() bool { return e.depth(e.ladder.DueExact()) == 3 })
}

func TestHoldPresentsAgainBeforeAnythingIsSettled(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	type visit struct {
		at    time.Time
		count int
	}
	visits := make(chan visit, 10)
	var n atomic.Int64
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		visits <- visit{time.Now(), batch[0].DeliveryCount}
		if n.Add(1) < 3 {
			return []broker.Outcome{broker.Hold(150 * time.Millisecond)}, nil
		}
		return []broker.Outcome{broker.Ack()}, nil
	})
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("early")}))
	last := <-visits
	for range 2 {
		v := <-visits
		require.GreaterOrEqual(t, v.at.Sub(last.at), 149*time.Millisecond)
		require.Zero(t, v.count, "never given back")
		last = v
	}
	stop()
	require.Zero(t, e.depth(e.ladder.DueExact()), "acked")
}

// 32 dead letters without a route stop a whole at-least-once queue. The
// catch-all takes them; the good ones flow.
func TestUnroutableDeadLettersGoToTheCatchAllAndTheOthersFlow(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	conn, err := amqp.Dial(e.cfg.URL.Reveal())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	ch, err := conn.Channel()
	require.NoError(t, err)
	removed := 0
	for _, b := range e.plan.Bindings { // triggers of class r find no queue any more
		if b.Source == e.ladder.Due() && b.Destination == e.ladder.DueRelaxed() {
			require.NoError(t, ch.QueueUnbind(b.Destination, b.Key, b.Source, nil))
			removed++
		}
	}
	require.Positive(t, removed)
	var msgs []broker.Message
	add := func(n int, class ladder.Class, id string) {
		for i := range n {
			r := e.ladder.Route(20*time.Millisecond, ladder.Expire, class, i%16)
			msgs = append(msgs, broker.Message{Exchange: r.Exchange, Key: r.Key, Expiration: r.Expiration, ID: fmt.Sprint(id, i), Mandatory: true})
		}
	}
	add(64, ladder.Relaxed, "bad")
	add(50, ladder.Exact, "good")
	noErrors(t, p.Publish(e.ctx(), msgs))
	e.eventually("the good ones flow", func() bool { return e.depth(e.ladder.DueExact()) == 50 })
	e.eventually("the others are caught", func() bool { return e.depth(e.ladder.Unroutable()) == 64 })
	require.NoError(t, e.direct.Declare(e.ctx(), e.plan))
}
