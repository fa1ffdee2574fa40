package notice

import (
	"context"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Spans begins and ends the spans of sends of these windows, with these results, and says how many there are.
func Spans(traces *telemetry.Traces, of func(context.Context, []uint64) (map[uint64][]string, error), ch coupon.Channel, results map[uint64]Result) int {
	d := &dispatcher{SenderDeps: SenderDeps{Traces: traces, TracesOf: of}, name: ch}
	var group []outgoing
	var ended []Result
	for _, window := range slices.Sorted(maps.Keys(results)) {
		group = append(group, outgoing{notice: coupon.Notice{WindowID: window, Channel: ch, Items: 1, Attempt: 1}})
		ended = append(ended, results[window])
	}
	spans := d.begin(context.Background(), group)
	n := 0
	for _, s := range spans {
		if s != nil {
			n++
		}
	}
	endSpans(spans, ended)
	return n
}
