package expiry

import (
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// traced is a batch of triggers on its way to its decision: a span of its own for each whose trace is sampled, in that trace, and one
// of the transaction, which belongs to none of them and is linked to all.
type traced struct {
	batch *telemetry.Span
	spans []*telemetry.Span // nil: none is sampled
}

// begin begins the spans, and lets what follows from each trigger follow from its span.
func (c *Core) begin(ts []coupon.Trigger) traced {
	if !c.traces.On() {
		return traced{}
	}
	var links []string
	for i := range ts {
		if telemetry.Sampled(ts[i].Trace) {
			links = append(links, ts[i].Trace)
		}
	}
	if len(links) == 0 {
		return traced{}
	}
	b := traced{spans: make([]*telemetry.Span, len(ts))}
	b.batch = c.traces.Begin(telemetry.Step{Name: "settle batch", Links: links})
	b.batch.Set("lapse.triggers", len(ts))
	b.batch.Set("lapse.traced", len(links))
	for i := range ts {
		s := c.traces.Follow(telemetry.Step{Name: string(ts[i].Kind), Kind: telemetry.Consumer, Parent: ts[i].Trace, Links: []string{b.batch.Trace("")}})
		s.Set("lapse.coupon_id", strconv.FormatUint(ts[i].CouponID, 10))
		s.Set("lapse.origin", string(ts[i].Origin))
		s.Set("lapse.attempt", ts[i].Attempt)
		ts[i].Trace = s.Trace(ts[i].Trace)
		b.spans[i] = s
	}
	return b
}

// end ends them with what became of each.
func (b *traced) end(results []Result, err error) {
	if b.spans == nil {
		return
	}
	class := ""
	if err != nil {
		class = "nothing could be decided"
	}
	for i, s := range b.spans {
		if s == nil {
			continue
		}
		if err != nil {
			s.End(class)
			continue
		}
		r := &results[i]
		switch {
		case r.Err != nil:
			s.End("the row could not be changed")
		case r.Busy:
			s.Set("lapse.action", "busy")
			s.End("")
		default:
			s.Set("lapse.action", r.Decision.Action.String())
			if r.Decision.Reason != "" {
				s.Set("lapse.reason", r.Decision.Reason)
			}
			if a := r.Decision.Action; a == coupon.Expire || a == coupon.Unlock {
				s.Set("lapse.lateness_ms", int64(r.Now.Sub(r.DueAt)/time.Millisecond))
			}
			s.End("")
		}
	}
	b.batch.End(class)
}
