package notice

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

// tracesWithin bounds the look for traces: no notice waits longer for it.
const tracesWithin = time.Second

// begin begins a span for each notice that tells of a coupon whose trace is sampled: in that trace if there is one such coupon, and of
// its own, linked to theirs, if there are more.
func (d *dispatcher) begin(ctx context.Context, group []outgoing) []*telemetry.Span {
	if !d.Traces.On() || d.TracesOf == nil {
		return nil
	}
	windows := make([]uint64, len(group))
	for i := range group {
		windows[i] = group[i].notice.WindowID
	}
	ctx, cancel := context.WithTimeout(ctx, tracesWithin)
	defer cancel()
	traces, err := d.TracesOf(ctx, windows)
	if err != nil {
		return nil // the notice goes out all the same, and the store has counted what failed
	}
	spans := make([]*telemetry.Span, len(group))
	for i := range group {
		n := &group[i].notice
		step := telemetry.Step{Name: "notice " + string(d.name), Kind: telemetry.Client}
		for _, trace := range traces[n.WindowID] {
			if telemetry.Sampled(trace) {
				step.Links = append(step.Links, trace)
			}
		}
		switch len(step.Links) {
		case 0:
			continue
		case 1:
			step.Parent, step.Links = step.Links[0], nil
		}
		spans[i] = d.Traces.Begin(step)
		spans[i].Set("lapse.notice_id", n.ID())
		spans[i].Set("lapse.kind", string(n.Kind))
		spans[i].Set("lapse.items", n.Items)
		spans[i].Set("lapse.attempt", n.Attempt)
	}
	return spans
}

func endSpans(spans []*telemetry.Span, results []Result) {
	for i, s := range spans {
		if s == nil {
			continue
		}
		r := &results[i]
		s.Set("lapse.outcome", outcomeWord(r.Outcome))
		if r.Outcome == Sent {
			s.End("")
			continue
		}
		s.End(r.Reason)
	}
}

// follow begins a span for an event that is collected, in the event's trace if that is sampled.
func (c *Collector) follow(e *read, kind string) *telemetry.Span {
	return c.Traces.Follow(telemetry.Step{Name: "collect " + kind, Kind: telemetry.Consumer, Parent: e.trace})
}

func outcomeWord(o Outcome) string {
	switch o {
	case Sent:
		return "sent"
	case Retry:
		return "retry"
	case Throttled:
		return "throttled"
	case Permanent:
		return "failed"
	case Unknown:
		return "unknown"
	default:
		return "unknown"
	}
}
