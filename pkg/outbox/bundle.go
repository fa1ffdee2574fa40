package outbox

import (
	"context"

	"github.com/lapsehq/lapse/pkg/broker"
)

// publishBundled sends events one by one for everyone, and in bundles for queues of our own: one result for each event, nil when both are
// confirmed. So an event that was sent one way alone is sent both ways again.
func (r *Relay) publishBundled(ctx context.Context, events []broker.Message) []error {
	if r.deps.BundleKey == nil {
		return r.deps.Events.Publish(ctx, events)
	}
	bundles, members := broker.Bundles(r.deps.Bundles, r.deps.BundleKey, events)
	results := r.deps.Events.Publish(ctx, append(events[:len(events):len(events)], bundles...))
	for b, of := range members {
		err := results[len(events)+b]
		if err == nil {
			continue
		}
		for _, at := range of {
			if results[at] == nil || !isRefusal(err) { // what is no answer to the message stops the others, too
				results[at] = err
			}
		}
	}
	return results[:len(events)]
}
