package outbox

import (
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// begin begins a span for each row whose trace is sampled, from when it is sent to its confirm. What is sent carries the trace as the
// row has it: who takes it follows from the step that wrote the row.
func (r *Relay) begin(lane int, wave []coupon.Outgoing) []*telemetry.Span {
	if !r.deps.Traces.On() {
		return nil
	}
	spans := make([]*telemetry.Span, len(wave))
	for i := range wave {
		row := &wave[i]
		what := row.Key // of an event its routing key
		if lane == coupon.LaneTrigger {
			what = "trigger " + row.Key
		}
		spans[i] = r.deps.Traces.Follow(telemetry.Step{Name: "send " + what, Kind: telemetry.Producer, Parent: row.Trace})
		spans[i].Set("lapse.refused", row.Refused)
	}
	return spans
}

func endSpans(spans []*telemetry.Span, results []error) {
	for i, s := range spans {
		class := ""
		switch err := results[i]; {
		case err != nil && broker.Rejected(err):
			class = "refused"
		case err != nil:
			class = "not confirmed"
		}
		s.End(class)
	}
}
