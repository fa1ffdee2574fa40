package broker_test

import (
	"context"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
)

// A frame holds 128 KiB and headers are one frame: with the reason added they may not fit any more. The message is
// parked all the same, and the connection that everybody publishes on lives.
func TestAMessageWhoseHeadersLeaveNoRoomIsParked(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	m := e.due("full")
	m.Headers = map[string]any{"big": strings.Repeat("x", 130_500)}
	require.ErrorIs(t, p.Publish(e.ctx(), []broker.Message{m})[0], broker.ErrInvalid, "refused before it costs the connection")
	e.foreign(m)
	_, stop := e.consume(e.direct, p, func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		out := make([]broker.Outcome, len(batch))
		for i := range batch {
			out[i] = broker.Park(strings.Repeat("why ", 250))
		}
		return out, nil
	})
	e.eventually("it is parked", func() bool { return e.depth(e.ladder.Parked()) == 1 })
	stop()
	d, ok, err := e.direct.Get(e.ctx(), e.ladder.Parked())
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "full", string(d.Body))
	require.Contains(t, d.Headers[broker.HeaderReason], "why")
	require.Equal(t, e.ladder.DueExact(), d.Headers[broker.HeaderOrigin])
	require.Zero(t, e.depth(e.ladder.DueExact()))
}

// foreign publishes as any other program may.
func (e *env) foreign(m broker.Message) {
	e.Helper()
	conn, err := amqp.Dial(e.cfg.URL.Reveal())
	require.NoError(e, err)
	defer func() { require.NoError(e, conn.Close()) }()
	ch, err := conn.Channel()
	require.NoError(e, err)
	require.NoError(e, ch.Confirm(false))
	c, err := ch.PublishWithDeferredConfirmWithContext(e.ctx(), m.Exchange, m.Key, true, false, amqp.Publishing{Headers: m.Headers, Body: m.Body})
	require.NoError(e, err)
	ok, err := c.WaitContext(e.ctx())
	require.NoError(e, err)
	require.True(e, ok)
}
