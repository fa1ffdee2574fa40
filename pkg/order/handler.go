package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// Store does what orders ask for.
type Store interface {
	// Act gives one answer for each coupon, in order; a refusal is an answer. now is the database's clock.
	Act(ctx context.Context, o coupon.Order) (now time.Time, out []coupon.Acted, err error)
	// RecordRedeemRefused leaves an event for each.
	RecordRedeemRefused(ctx context.Context, refusals []coupon.RedeemRefused) error
}

// Router gives the way of a message that is to come back after a delay.
type Router interface {
	Route(delay time.Duration, kind ladder.Kind, class ladder.Class, partition int) ladder.Route
}

// Actor is who did it, in the history of coupons that an order event moved.
const Actor = "order event"

// retryDelays grow; after the last one an event is parked.
//
//nolint:gochecknoglobals // a constant list
var retryDelays = [...]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// maxTrace is more than a traceparent has; whatever else comes under its name is not carried on.
const maxTrace = 64

// Handler answers the deliveries of P.orders. Safe for concurrent use.
type Handler struct {
	store    Store
	router   Router
	parallel int
	log      *zap.Logger
	metrics  *metrics
}

// NewHandler makes the handler.
func NewHandler(c Config, store Store, router Router, log *zap.Logger, reg prometheus.Registerer) (*Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("order config: %w", err)
	}
	return &Handler{store: store, router: router, parallel: c.Parallel, log: log, metrics: newMetrics(reg)}, nil
}

// task is an event of a batch that could be read.
type task struct {
	event.Order
	at int // its delivery
}

// Handle answers each delivery of a batch. An error means that nothing can be done now: what was committed before it
// is a repeat when it comes again.
func (h *Handler) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	tasks := make([]task, 0, len(batch))
	for i := range batch {
		e, err := event.DecodeOrder(batch[i].Body, batch[i].ContentType, batch[i].MessageID, named(batch[i]))
		if err != nil {
			h.metrics.count(typeUnknown, resultParked)
			h.log.Warn("order event parked: it cannot be read")
			out[i] = broker.Park(err.Error())
			continue
		}
		tasks = append(tasks, task{e, i})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(h.parallel)
	for _, chain := range chains(tasks) {
		g.Go(func() error { return h.work(ctx, chain, batch, out) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return out, nil
}

// named is what says of which type an event is that does not say so itself: the key that it came with, or, when it
// came back by the ladder, what was noted of it.
func named(d broker.Delivery) string {
	if k, err := ladder.ParseKey(d.Key); err == nil && k.Kind == ladder.Order {
		return d.Type
	}
	return d.Key
}

// chains splits a batch into what can be done side by side: events that share a coupon, over whatever others, stay
// together and in order.
func chains(tasks []task) [][]task {
	root := make([]int, len(tasks))
	find := func(i int) int {
		for root[i] != i {
			root[i] = root[root[i]]
			i = root[i]
		}
		return i
	}
	last := make(map[uint64]int, len(tasks))
	for i := range tasks {
		root[i] = i
		for _, id := range tasks[i].CouponIDs {
			if k, shared := last[id]; shared {
				a, b := find(k), find(i)
				root[max(a, b)] = min(a, b)
			}
			last[id] = i
		}
	}
	index := make(map[int]int, len(tasks))
	var out [][]task
	for i := range tasks {
		r := find(i)
		k, known := index[r]
		if !known {
			k = len(out)
			index[r] = k
			out = append(out, nil)
		}
		out[k] = append(out[k], tasks[i])
	}
	return out
}

// work does the events of a chain, one after the other. What shares a coupon with one that had to wait follows it
// without being tried: the coupon is held, and to wait for it again would hold up the rest.
func (h *Handler) work(ctx context.Context, chain []task, batch []broker.Delivery, out []broker.Outcome) error {
	held := make(map[uint64]time.Duration)
	for _, t := range chain {
		d := batch[t.at]
		if delay := behind(held, t.CouponIDs); delay > 0 {
			h.metrics.count(t.Type, resultAside)
			out[t.at] = h.aside(t, d, d.Attempt, delay)
			hold(held, t.CouponIDs, delay)
			continue
		}
		result, err := h.act(ctx, t.Order)
		switch {
		case err == nil:
			h.metrics.count(t.Type, result)
			out[t.at] = broker.Ack()
		case errors.Is(err, coupon.ErrContention) && d.Attempt < len(retryDelays):
			delay := retryDelays[d.Attempt]
			h.metrics.count(t.Type, resultAside)
			out[t.at] = h.aside(t, d, d.Attempt+1, delay)
			hold(held, t.CouponIDs, delay)
		case errors.Is(err, coupon.ErrContention), errors.Is(err, coupon.ErrIntegrity):
			h.metrics.count(t.Type, resultParked)
			h.log.Warn("order event parked", zap.String("type", t.Type), zap.Int("attempts", d.Attempt+1))
			out[t.at] = broker.Park(fmt.Sprintf("attempt %d failed: %v", d.Attempt+1, err))
			if errors.Is(err, coupon.ErrContention) {
				hold(held, t.CouponIDs, retryDelays[0])
			}
		default:
			return fmt.Errorf("%s: %w", t.Type, err)
		}
	}
	return nil
}

func behind(held map[uint64]time.Duration, ids []uint64) (longest time.Duration) {
	for _, id := range ids {
		longest = max(longest, held[id])
	}
	return longest
}

func hold(held map[uint64]time.Duration, ids []uint64, delay time.Duration) {
	for _, id := range ids {
		held[id] = max(held[id], delay)
	}
}

// act does what an event asks for. It may be done any number of times.
func (h *Handler) act(ctx context.Context, e event.Order) (result string, err error) {
	if e.Partial {
		return resultPartial, nil
	}
	o := coupon.Order{
		OrderID: e.OrderID, UserID: e.UserID, CouponIDs: e.CouponIDs, Each: true, Actor: Actor, Reason: e.Reason, Trace: e.Trace,
	}
	switch e.Type {
	case event.TypeOrderPaid:
		o.Verb = coupon.VerbRedeem
	case event.TypeOrderClosed:
		o.Verb, o.Tombstone = coupon.VerbRelease, true
	case event.TypeOrderPaymentFailed:
		o.Verb = coupon.VerbRelease
	case event.TypeOrderRefunded:
		o.Verb, o.Tombstone = coupon.VerbRefund, true
	}
	now, answers, err := h.store.Act(ctx, o)
	if err != nil {
		return "", err //nolint:wrapcheck // by the caller
	}
	if o.Verb == coupon.VerbRedeem {
		if err := h.store.RecordRedeemRefused(ctx, refusals(e, answers, now)); err != nil {
			return "", err //nolint:wrapcheck // by the caller
		}
	}
	return resultOf(answers), nil
}

func resultOf(answers []coupon.Acted) string {
	result := resultRepeated
	for i := range answers {
		switch {
		case answers[i].Refused != "":
			return resultRefused
		case !answers[i].Repeated:
			result = resultDone
		}
	}
	return result
}

// refusals are the coupons that a paid order cannot have.
func refusals(e event.Order, answers []coupon.Acted, now time.Time) []coupon.RedeemRefused {
	var out []coupon.RedeemRefused
	for i := range answers {
		if answers[i].Refused == "" {
			continue
		}
		c := &answers[i].Coupon
		r := coupon.RedeemRefused{
			CouponID: c.ID, OrderID: e.OrderID, UserID: e.UserID, Code: answers[i].Refused, At: now, Trace: e.Trace,
			TemplateID: c.Terms.TemplateID, Value: c.Terms.Value, Currency: c.Terms.Currency,
		}
		if r.UserID == "" {
			r.UserID = c.UserID
		}
		if r.TemplateID != 0 {
			r.State = c.Seen(now)
		}
		out = append(out, r)
	}
	return out
}

// aside sends an event through the ladder, from where it comes back to the queue.
func (h *Handler) aside(t task, d broker.Delivery, attempt int, delay time.Duration) broker.Outcome {
	route := h.router.Route(delay, ladder.Order, ladder.Exact, coupon.Partition(t.CouponIDs[0]))
	m := d.Again(route.Exchange, route.Key)
	m.Expiration, m.Attempt, m.Type, m.Headers = route.Expiration, attempt, t.Type, nil
	if trace, ok := d.Headers[broker.HeaderTrace].(string); ok && len(trace) <= maxTrace {
		m.Headers = map[string]any{broker.HeaderTrace: trace}
	}
	return broker.Forward(m)
}
