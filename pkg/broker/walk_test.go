package broker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
)

func TestPublishedMessagesAreConsumedOnceEach(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := e.client(e.cfg)
	p := e.publisher(c)

	const count = 5000
	msgs := make([]broker.Message, count)
	for i := range msgs {
		msgs[i] = e.due(fmt.Sprint(i))
	}
	noErrors(t, p.Publish(e.ctx(), msgs))

	var mu sync.Mutex
	seen := make(map[string]int)
	all := make(chan struct{})
	k, err := c.NewConsumer(broker.ConsumerOptions{
		Config: broker.DefaultConsumerConfig(), Queue: e.ladder.DueExact(), Publisher: p,
		Handler: func(_ context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			out := make([]broker.Outcome, len(batch))
			for i, d := range batch {
				seen[d.MessageID]++
				require.Equal(t, d.MessageID, string(d.Body))
				out[i] = broker.Ack()
			}
			if len(seen) == count {
				close(all)
			}
			return out, nil
		},
	})
	require.NoError(t, err)
	stop := e.run(k.Run)
	<-all
	stop()
	for id, n := range seen {
		require.Equal(t, 1, n, id)
	}
	// Everything was acked, but what the broker had not yet applied when the
	// channel closed is delivered again: the last batches at most.
	require.LessOrEqual(t, e.depth(e.ladder.DueExact()), 2*broker.DefaultConsumerConfig().Batch)
}
