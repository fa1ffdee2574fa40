package issuance

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Issuer grants up to MaxBatch coupons in one transaction: one answer for each, in order. coupon.ErrIntegrity says
// that one of them cannot be stored at all.
type Issuer interface {
	Issue(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error)
}

// Encoder writes a coupon.grant event.
type Encoder interface {
	Grants(id string, at time.Time, grants []coupon.Grant) ([]byte, error)
}

// maxTransactions of one call; what a batch holds beyond is handled by the next.
const maxTransactions = 20

// Handler answers the deliveries of P.issuance. Safe for concurrent use.
type Handler struct {
	issuer  Issuer
	encoder Encoder
	park    string // the exchange
	batch   int
	log     *zap.Logger
	metrics *metrics
	traces  *telemetry.Traces
}

// Trace gives who is told of events whose trace is sampled. Called before the handler is used.
func (h *Handler) Trace(t *telemetry.Traces) { h.traces = t }

// NewHandler makes the handler. Bad members are published to the exchange park.
func NewHandler(c Config, issuer Issuer, encoder Encoder, park string, log *zap.Logger, reg prometheus.Registerer) (*Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("issuance config: %w", err)
	}
	return &Handler{issuer: issuer, encoder: encoder, park: park, batch: c.Batch, log: log, metrics: newMetrics(reg)}, nil
}

// bad is a member that is set aside.
type bad struct {
	raw    json.RawMessage
	reason string
}

// intake is what became of one delivery so far.
type intake struct {
	event.Issuance
	whole error // the body as a whole cannot be read
	bad   []bad
	span  *telemetry.Span
}

// begin begins the event's span. What the grants leave follows from it.
func (h *Handler) begin(in *intake, d *broker.Delivery) {
	came := cmp.Or(in.Trace, telemetry.Traceparent(d.Trace()))
	in.span = h.traces.Begin(telemetry.Step{Name: "grant", Kind: telemetry.Consumer, Parent: came})
	in.span.Set("lapse.grants", len(in.Grants))
	for i := range in.Grants {
		in.Grants[i].Trace = in.span.Trace(came)
	}
}

// endSpans ends the spans of events that were looked at.
func endSpans(intakes []intake, class string) {
	for i := range intakes {
		in := &intakes[i]
		if in.whole != nil {
			in.span.End("it cannot be read")
			continue
		}
		if n := len(in.bad); n > 0 {
			in.span.Set("lapse.parked", n)
		}
		in.span.End(class)
	}
}

func (in *intake) members() int { return len(in.Grants) + len(in.Rejected) }

// Handle answers each delivery of a batch. An error means that nothing can be done now: what was committed before it
// is found again by its keys.
func (h *Handler) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	intakes := make([]intake, 0, len(batch))
	var grants []coupon.Grant
	var of []int // the delivery of each grant
	for i := range batch {
		if i > 0 && len(grants) >= maxTransactions*h.batch {
			break
		}
		var in intake
		in.Issuance, in.whole = event.DecodeIssuance(batch[i].Body, batch[i].ContentType, batch[i].MessageID)
		for _, r := range in.Rejected {
			in.bad = append(in.bad, bad{r.Raw, r.Err.Error()})
		}
		h.begin(&in, &batch[i])
		for range in.Grants {
			of = append(of, i)
		}
		grants = append(grants, in.Grants...)
		intakes = append(intakes, in)
	}
	for at := 0; at < len(grants); at += h.batch {
		end := min(at+h.batch, len(grants))
		err := h.issue(ctx, grants[at:end], func(k int, reason error) error {
			return h.refusedByStore(&intakes[of[at+k]], grants[at+k], batch[of[at+k]].ReceivedAt, reason)
		})
		if err != nil {
			endSpans(intakes, "nothing could be granted")
			return nil, err
		}
	}
	endSpans(intakes, "")
	out := make([]broker.Outcome, len(batch))
	for i := range batch {
		if i < len(intakes) {
			out[i] = h.outcome(&intakes[i], batch[i])
		} else {
			out[i] = broker.Hold(0)
		}
	}
	return out, nil
}

// issue grants what can be stored. A batch that the database refuses is halved until the bad grant is alone, and told
// to cannot by its index.
func (h *Handler) issue(ctx context.Context, grants []coupon.Grant, cannot func(k int, reason error) error) error {
	answers, err := h.issuer.Issue(ctx, grants)
	switch {
	case err == nil:
		h.metrics.count(answers)
		return nil
	case !errors.Is(err, coupon.ErrIntegrity):
		return fmt.Errorf("issue %d grants: %w", len(grants), err)
	case len(grants) == 1:
		return cannot(0, err)
	}
	half := len(grants) / 2
	if err := h.issue(ctx, grants[:half], cannot); err != nil {
		return err
	}
	return h.issue(ctx, grants[half:], func(k int, reason error) error { return cannot(half+k, reason) })
}

// refusedByStore sets a grant aside as a member of an issuance, as it came.
func (h *Handler) refusedByStore(in *intake, g coupon.Grant, at time.Time, reason error) error {
	body, err := h.encoder.Grants(in.EventID, at, []coupon.Grant{g})
	if err != nil {
		return fmt.Errorf("encode a grant to park it: %w", err)
	}
	var e struct {
		Data struct {
			Grants []json.RawMessage `json:"grants"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &e); err != nil || len(e.Data.Grants) != 1 {
		return fmt.Errorf("encode a grant to park it: not one member: %w", err)
	}
	in.bad = append(in.bad, bad{e.Data.Grants[0], reason.Error()})
	return nil
}

// outcome settles a delivery whose good members are committed.
func (h *Handler) outcome(in *intake, d broker.Delivery) broker.Outcome {
	switch {
	case in.whole != nil:
		h.parked(1, "issuance parked: it cannot be read")
		return broker.Park(in.whole.Error())
	case len(in.bad) == 0:
		return broker.Ack()
	}
	reasons := make([]string, len(in.bad))
	members := make([]json.RawMessage, len(in.bad))
	for i, b := range in.bad {
		reasons[i], members[i] = b.reason, b.raw
	}
	reason := strings.Join(reasons, "; ")
	h.parked(len(in.bad), "members of an issuance parked: they cannot be read or stored")
	if len(in.bad) == in.members() {
		return broker.Park(reason)
	}
	body, err := json.Marshal(map[string][]json.RawMessage{"grants": members})
	if err != nil { // a member that is not even JSON: keep it where it came from
		return broker.Park(reason)
	}
	// Plain data with the event's id as the message's: a replay counts as the same event.
	d.Body, d.MessageID, d.ContentType = body, in.EventID, "application/json"
	return broker.Forward(d.Parked(h.park, reason))
}

// parked counts and logs; the reasons hold what users sent, so they are with the message only.
func (h *Handler) parked(n int, what string) {
	h.metrics.issued.WithLabelValues(resultParked).Add(float64(n))
	h.log.Warn(what, zap.Int("members", n))
}
