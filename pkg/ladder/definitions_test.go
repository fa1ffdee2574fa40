package ladder_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/ladder"
)

func TestDefinitionsAreTheWholePlan(t *testing.T) {
	t.Parallel()
	l := build(t, func(*ladder.Config) {})
	plan := l.Plan()
	text, err := json.Marshal(plan.Definitions("v"))
	require.NoError(t, err)
	var d struct {
		Exchanges, Queues, Bindings []map[string]any
	}
	require.NoError(t, json.Unmarshal(text, &d))
	require.Len(t, d.Exchanges, len(plan.Exchanges))
	require.Len(t, d.Queues, len(plan.Queues))
	require.Len(t, d.Bindings, len(plan.Bindings))
	require.Equal(t, map[string]any{
		"name": "lapse.enter", "vhost": "v", "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": map[string]any{},
	}, d.Exchanges[0])
	require.Equal(t, map[string]any{
		"name": "lapse.wait.mo.01", "vhost": "v", "durable": true, "auto_delete": false, "arguments": map[string]any{
			"x-queue-type": "quorum", "x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3.0, "x-message-ttl": 2592000000.0,
			"x-dead-letter-exchange": "lapse.level.d", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		},
	}, d.Queues[0])
	require.Equal(t, map[string]any{
		"source": "lapse.enter", "vhost": "v", "destination": "lapse.wait.mo.01", "destination_type": "queue", "routing_key": "01.#", "arguments": map[string]any{},
	}, d.Bindings[0])
}
