package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
)

func TestAMessageThatNoBindingTakesIsAnError(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.client(e.cfg))
	lost := e.due("lost")
	lost.Key = "no.such.key"
	dropped := lost
	dropped.ID, dropped.Mandatory = "dropped", false
	// The same id on a good message: the return must not be charged to it.
	twin := e.due("lost")
	errs := p.Publish(e.ctx(), []broker.Message{e.due("a"), twin, lost, dropped, e.due("b")})
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	require.ErrorIs(t, errs[2], broker.ErrReturned)
	require.ErrorContains(t, errs[2], "no.such.key")
	require.NoError(t, errs[3], "not mandatory: dropped by design")
	require.NoError(t, errs[4])
	require.Equal(t, 3, e.depth(e.ladder.DueExact()))
}

// More returns than the library's listener could ever hold unread, and slow ones.
func TestManyReturnsAreAllSeen(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.cfg.Window = 64
	p := e.publisher(e.client(e.cfg))
	msgs := make([]broker.Message, 3000)
	for i := range msgs {
		msgs[i] = e.due(fmt.Sprint(i))
		if i%3 == 0 {
			msgs[i].Key = "nowhere"
		}
	}
	for i, err := range p.Publish(e.ctx(), msgs) {
		if i%3 == 0 {
			require.ErrorIs(t, err, broker.ErrReturned, i)
		} else {
			require.NoError(t, err, i)
		}
	}
}

func TestAMissingExchangeDoesNotTakeTheOthersDown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.client(e.cfg))
	bad := e.due("bad")
	bad.Exchange = e.ladder.Prefix() + ".nothing"
	errs := p.Publish(e.ctx(), []broker.Message{bad})
	require.ErrorIs(t, errs[0], broker.ErrUnknown)
	require.ErrorContains(t, errs[0], "NOT_FOUND")
	require.ErrorContains(t, errs[0], bad.Exchange)
	for range 10 { // every lane works, the broken one, too
		noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("good")}))
	}
}

func TestWhatAMQPCannotSayIsRefusedBeforeItCostsTheChannel(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.client(e.cfg))
	negative := e.due("negative")
	negative.Expiration = -time.Millisecond
	long := e.due(string(make([]byte, 256)))
	header := e.due("header")
	header.Headers = map[string]any{"x": struct{}{}}
	errs := p.Publish(e.ctx(), []broker.Message{e.due("a"), negative, long, header, e.due("b")})
	require.NoError(t, errs[0])
	for _, i := range []int{1, 2, 3} {
		require.ErrorIs(t, errs[i], broker.ErrInvalid)
	}
	require.NoError(t, errs[4])
	require.Equal(t, 2, e.depth(e.ladder.DueExact()))
}

// A connection cut before the confirm leaves it open whether the message is
// stored: that is never a success.
func TestACutBeforeTheConfirmIsUnknown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	p := e.publisher(e.client(cfg))
	proxy.Pause() // the publishes leave us, no confirm comes back
	answer := make(chan []error)
	msgs := []broker.Message{e.due("1"), e.due("2"), e.due("3")}
	go func() { answer <- p.Publish(context.Background(), msgs) }()
	e.eventually("they are in flight", func() bool { return p.InFlight() == 3 })
	proxy.Cut()
	for _, err := range <-answer {
		require.ErrorIs(t, err, broker.ErrUnknown)
	}
	proxy.Resume()
	require.NoError(t, p.WaitReady(e.ctx()))
	noErrors(t, p.Publish(e.ctx(), msgs))
}

// The peer is alive for TCP but takes and says nothing more.
func TestPublishOnAHalfOpenConnectionEndsInTime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	cfg.PublishTimeout, cfg.WriteTimeout = 10*time.Second, 10*time.Second
	cfg.Window, cfg.Channels = 65536, 1
	p := e.publisher(e.client(cfg))
	proxy.Pause()
	// Far more than the socket buffers take.
	msgs := make([]broker.Message, 500)
	for i := range msgs {
		msgs[i] = e.due(fmt.Sprint(i))
		msgs[i].Body = make([]byte, 100<<10)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	errs := p.Publish(ctx, msgs)
	require.Less(t, time.Since(start), 5*time.Second)
	for _, err := range errs {
		require.Error(t, err)
	}
	require.ErrorIs(t, errs[0], broker.ErrUnknown)
	require.ErrorIs(t, errs[len(errs)-1], broker.ErrNotSent)
}

// A connection that swallows publishes is given up without waiting for the
// heartbeat.
func TestAConnectionThatDoesNotConfirmIsReplaced(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	cfg.PublishTimeout = 300 * time.Millisecond
	p := e.publisher(e.client(cfg))
	proxy.Pause()
	require.ErrorIs(t, p.Publish(e.ctx(), []broker.Message{e.due("1")})[0], broker.ErrUnknown)
	e.eventually("the session is gone", func() bool { return p.Ready() != nil })
	proxy.Resume()
	require.NoError(t, p.WaitReady(e.ctx()))
	e.eventually("publishing works again", func() bool {
		return p.Publish(e.ctx(), []broker.Message{e.due("2")})[0] == nil
	})
}

// connection.blocked and connection.unblocked as RabbitMQ sends them when an
// alarm begins and ends (class 10, methods 60 and 61, on channel 0).
func frames() (blocked, unblocked []byte) {
	blocked = []byte{1, 0, 0, 0, 0, 0, 15, 0, 10, 0, 60, 10, 'l', 'o', 'w', ' ', 'm', 'e', 'm', 'o', 'r', 'y', 0xCE}
	unblocked = []byte{1, 0, 0, 0, 0, 0, 4, 0, 10, 0, 61, 0xCE}
	return blocked, unblocked
}

func TestABlockedConnectionStopsPublishingAndWhatMustPublish(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	p := e.publisher(e.client(cfg))
	k, _ := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		return ackAll(batch), nil
	})
	e.eventually("it consumes", k.Subscribed)
	require.False(t, p.Blocked())

	blocked, unblocked := frames()
	require.NoError(t, proxy.Inject(blocked))
	e.eventually("it knows", p.Blocked)
	errs := p.Publish(e.ctx(), []broker.Message{e.due("1")})
	require.ErrorIs(t, errs[0], broker.ErrBlocked)
	require.ErrorContains(t, errs[0], "low memory")
	e.eventually("consumption pauses", func() bool { return !k.Subscribed() })
	require.True(t, p.Blocked())

	require.NoError(t, proxy.Inject(unblocked))
	require.NoError(t, p.WaitReady(e.ctx()))
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("2")}))
	e.eventually("consumption goes on", k.Subscribed)
}

func TestPublishWithoutBroker(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	proxy.Refuse(true)
	c := e.client(cfg)
	p := c.NewPublisher()
	stop := e.run(p.Run)
	ctx, cancel := context.WithTimeout(e.ctx(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.Publish(ctx, []broker.Message{e.due("1")})[0], broker.ErrNotSent)
	require.Error(t, p.Ready())
	proxy.Refuse(false)
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("2")})) // waits for the connection
	stop()
	require.ErrorIs(t, p.Publish(e.ctx(), []broker.Message{e.due("3")})[0], broker.ErrStopped)
}
