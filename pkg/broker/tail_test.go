package broker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
)

// tailed starts a watcher and waits until its queue is bound.
func (e *env) tailed(c *broker.Client, keys []string, see func(broker.Delivery) error) (ended chan error, stop context.CancelFunc) {
	e.Helper()
	ctx, stop := context.WithCancel(e.ctx())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Tail(ctx, e.ladder.Events(), keys, func() { close(ready) }, see) }()
	select {
	case <-ready:
	case err := <-ended:
		require.NoError(e, err)
	}
	return ended, stop
}

func TestTailSeesWhatMatchesAndTakesNothingAway(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.direct)
	enough := errors.New("enough")
	var seen []string
	ended, stop := e.tailed(e.direct, []string{"heartbeat.expired", "coupon.issued"}, func(d broker.Delivery) error {
		if seen = append(seen, d.MessageID); len(seen) == 2 {
			return enough
		}
		return nil
	})
	defer stop()
	var msgs []broker.Message
	for id, key := range []string{"coupon.refused", "heartbeat.expired", "coupon.issued"} {
		msgs = append(msgs, broker.Message{Exchange: e.ladder.Events(), Key: key, ID: string(rune('a' + id))})
	}
	noErrors(t, p.Publish(e.ctx(), msgs))
	require.ErrorIs(t, <-ended, enough)
	require.Equal(t, []string{"b", "c"}, seen)
	e.eventually("the notifier's queue got its event as ever", func() bool { return e.depth(e.ladder.Notice()) == 1 })
}

func TestTailEnds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	never := func(broker.Delivery) error { return errors.New("nothing was published") }

	ended, stop := e.tailed(e.direct, []string{"#"}, never)
	stop()
	require.NoError(t, <-ended)

	proxy, cfg := e.proxied()
	ended, stop = e.tailed(e.client(cfg), []string{"#"}, never)
	defer stop()
	proxy.Cut()
	require.Error(t, <-ended)

	var missing *broker.MissingError
	require.ErrorAs(t, e.direct.Tail(e.ctx(), e.ladder.Prefix()+".absent", []string{"#"}, nil, never), &missing)
}
