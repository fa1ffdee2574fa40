package broker_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/secret"
)

func TestDeclareVerifyDelete(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	require.NoError(t, e.direct.Verify(e.ctx(), e.plan))
	require.NoError(t, e.direct.Declare(e.ctx(), e.plan), "again")
	require.NoError(t, e.direct.Delete(e.ctx(), e.plan))
	require.NoError(t, e.direct.Delete(e.ctx(), e.plan), "again")

	err := e.direct.Verify(e.ctx(), e.plan)
	missing := make(map[string]int)
	for _, one := range joined(err) {
		var m *broker.MissingError
		require.ErrorAs(t, one, &m)
		missing[m.Kind]++
	}
	require.Equal(t, map[string]int{
		"exchange": len(e.plan.Exchanges), "queue": len(e.plan.Queues), "binding": len(e.plan.Bindings),
	}, missing)
	_, err = e.direct.Depths(e.ctx(), []string{e.ladder.DueExact()})
	var m *broker.MissingError
	require.ErrorAs(t, err, &m)
}

// joined flattens joined errors.
func joined(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, joined(e)...)
		}
		return all
	}
	return []error{err}
}

func TestAMismatchNamesQueueAndArgument(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	wanted := e.ladder.Plan()
	var queue string
	for i := range wanted.Queues {
		if wanted.Queues[i].Role == ladder.RoleWait {
			queue = wanted.Queues[i].Name
			wanted.Queues[i].Args["x-message-ttl"] = int64(77)
			break
		}
	}
	exchange := &wanted.Exchanges[0]
	exchange.Type = "direct"
	for name, f := range map[string]func() error{
		"declare": func() error { return e.direct.Declare(e.ctx(), ladder.Plan{Queues: wanted.Queues}) },
		"verify":  func() error { return e.direct.Verify(e.ctx(), ladder.Plan{Queues: wanted.Queues}) },
	} {
		err := f()
		var m *broker.MismatchError
		require.ErrorAs(t, err, &m, name)
		require.Equal(t, "queue", m.Kind)
		require.Equal(t, queue, m.Name)
		require.Equal(t, "x-message-ttl", m.Argument)
		require.Equal(t, "77", m.Want)
		require.Equal(t, "10", m.Have)
		require.ErrorContains(t, err, queue)
		require.Len(t, joined(err), 1)
	}
	err := e.direct.Declare(e.ctx(), wanted)
	var m *broker.MismatchError
	require.ErrorAs(t, err, &m)
	require.Equal(t, "exchange", m.Kind)
	require.Equal(t, exchange.Name, m.Name)
	require.Equal(t, "type", m.Argument)
	require.Equal(t, "direct", m.Want)
	require.Equal(t, "topic", m.Have)
}

func TestTheWholeLadderIsDeclaredQuickly(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	cfg := ladder.DefaultConfig()
	cfg.Prefix, cfg.GroupSize = e.ladder.Prefix()+"-all", 1
	l, err := ladder.New(cfg)
	require.NoError(t, err)
	plan := l.Plan()
	t.Cleanup(func() { require.NoError(t, e.direct.Delete(e.ctx(), plan)) })
	start := time.Now()
	require.NoError(t, e.direct.Declare(e.ctx(), plan))
	first := time.Since(start)
	start = time.Now()
	require.NoError(t, e.direct.Declare(e.ctx(), plan))
	t.Logf("%d queues, %d bindings: declared in %s, again in %s", len(plan.Queues), len(plan.Bindings), first, time.Since(start))
	require.NoError(t, e.direct.Verify(e.ctx(), plan))
}

// Bindings are declared at the start of every session, whatever happened to them.
func TestALostBindingIsBackWithTheNextSession(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	proxy, cfg := e.proxied()
	p := e.publisher(e.client(cfg))
	m := e.due("x")
	conn, err := amqp.Dial(e.cfg.URL.Reveal())
	require.NoError(t, err)
	ch, err := conn.Channel()
	require.NoError(t, err)
	for _, b := range e.plan.Bindings {
		if b.ToExchange && b.Source == m.Exchange {
			require.NoError(t, ch.ExchangeUnbind(b.Destination, b.Key, b.Source, false, nil))
		}
	}
	require.NoError(t, conn.Close())
	require.ErrorIs(t, p.Publish(e.ctx(), []broker.Message{m})[0], broker.ErrReturned)
	proxy.Cut()
	e.eventually("it routes again", func() bool { return p.Publish(e.ctx(), []broker.Message{m})[0] == nil })
}

func TestConfigErrorsNameTheFieldAndHideThePassword(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, broker.DefaultConfig().Validate(), "url: must be given")
	e := bareEnv(t)
	cfg := e.cfg
	cfg.Heartbeat, cfg.Channels, cfg.Window, cfg.BackoffMax, cfg.Addresses = 0, 0, -1, time.Microsecond, []string{"x"}
	err := cfg.Validate()
	for _, part := range []string{"heartbeat:", "channels:", "window:", "backoff_max:", `addresses: must be host:port, got "x"`} {
		require.ErrorContains(t, err, part)
	}
	cfg.URL = secret.New("amqp://user:hunter2@:x/")
	require.ErrorContains(t, cfg.Validate(), "url:")
	require.NotContains(t, cfg.Validate().Error(), "hunter2")
	_, err = broker.New(broker.Config{}, broker.Options{})
	require.Error(t, err)
	bad := broker.ConsumerConfig{Batch: 0, Prefetch: -1, Linger: -1, Concurrency: 0}
	for _, part := range []string{"batch:", "prefetch:", "linger:", "concurrency:"} {
		require.ErrorContains(t, bad.Validate(), part)
	}
	require.NoError(t, broker.DefaultConsumerConfig().Validate())
}

func TestNobodyAtTheAddress(t *testing.T) {
	t.Parallel()
	e := bareEnv(t)
	proxy, cfg := e.proxied()
	cfg.DialTimeout = 200 * time.Millisecond
	proxy.Pause() // takes the connection and says nothing
	start := time.Now()
	err := e.client(cfg).Ping(e.ctx())
	require.ErrorContains(t, err, proxy.Addr())
	require.Less(t, time.Since(start), 5*time.Second)
	require.NotErrorIs(t, err, broker.ErrNotSent)
}
