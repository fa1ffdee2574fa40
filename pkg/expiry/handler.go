package expiry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Router gives the first step of a trigger's way from now on.
type Router interface {
	Message(now time.Time, t coupon.Timed) broker.Message
	// After is for a trigger that is to come again after a wait, never sooner.
	After(wait time.Duration, t coupon.Timed) broker.Message
}

// Encoder renders a trigger.
type Encoder interface {
	Trigger(t coupon.Trigger) []byte
}

// soon is how early a trigger may be to be held here until it is due: a message's shortest way is a second.
const soon = time.Second

// busyDelay is how long a row that somebody else holds is left alone.
const busyDelay = time.Second

// retryDelays grow; after the last one a trigger is parked.
//
//nolint:gochecknoglobals // a constant list
var retryDelays = [...]time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Handler settles the deliveries of one due queue.
type Handler struct {
	core    *Core
	router  Router
	encoder Encoder
	marks   *Marks // nil where what comes says nothing of the ladder's progress
	limit   *rate.Limiter
	drain   *Drain // nil: nothing is measured
	waits   bool   // while all of expiry is paused what comes stays in the queue
	log     *zap.Logger
}

// NewHandler makes the handler; WithMarks makes it a due queue's.
func NewHandler(core *Core, router Router, encoder Encoder, limit *rate.Limiter, log *zap.Logger) *Handler {
	return &Handler{core: core, router: router, encoder: encoder, limit: limit, log: log}
}

// WithMarks is the same handler for another queue: nil for the catch-all, which says nothing of the ladder.
func (h *Handler) WithMarks(m *Marks) *Handler {
	other := *h
	other.marks = m
	return &other
}

// WithDrain is the same handler, measured.
func (h *Handler) WithDrain(d *Drain) *Handler {
	other := *h
	other.drain = d
	return &other
}

// Waiting is the same handler for a queue of ends: while all of expiry is paused nothing of it is decided, and the consumer
// pauses as without a database. Locks run out meanwhile.
func (h *Handler) Waiting() *Handler {
	other := *h
	other.waits = true
	return &other
}

// NewLimiter bounds transitions a second over all handlers of a pod; 0 is unbounded.
func NewLimiter(c Config) *rate.Limiter {
	if c.MaxRate == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(c.MaxRate), max(c.Consumer.Batch, c.Sweep.Batch, c.MaxRate/10))
}

// Handle answers each delivery of a batch. An error means that nothing can be done now and no attempt counts.
func (h *Handler) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	if h.waits {
		pauses, err := h.core.pauses(ctx)
		if err == nil && pauses.All(coupon.BrakeExpiry) {
			err = fmt.Errorf("expiry: %w", coupon.ErrPaused)
		}
		if err != nil {
			return nil, err
		}
	}
	estimate := h.core.guard.Estimate()
	triggers := make([]coupon.Trigger, 0, len(batch))
	at := make([]int, 0, len(batch)) // delivery of each trigger
	for i := range batch {
		t, err := event.DecodeTrigger(batch[i].Body)
		if err != nil {
			h.core.metrics.triggers.WithLabelValues(string(coupon.KindExpire), resultParked).Inc()
			out[i] = broker.Park(fmt.Sprintf("not a trigger: %v", err))
			continue
		}
		// The ladder lets some come early (ladder.Slack); the row is asked when that is over.
		if early := t.At.Sub(estimate); !estimate.IsZero() && early > 0 && early < soon {
			h.core.metrics.triggers.WithLabelValues(string(t.Kind), resultHeld).Inc()
			out[i] = broker.Hold(early)
			continue
		}
		t.Trace = telemetry.Traceparent(batch[i].Trace())
		triggers, at = append(triggers, t), append(at, i)
	}
	if len(triggers) == 0 {
		return out, nil
	}
	if err := h.limit.WaitN(ctx, len(triggers)); err != nil {
		return nil, fmt.Errorf("wait for max_rate: %w", err)
	}
	traced := h.core.begin(triggers)
	results, err := h.core.Settle(ctx, triggers)
	traced.end(results, err)
	if err != nil {
		return nil, err
	}
	if h.drain != nil {
		h.drain.settled(len(batch), results)
	}
	for k, r := range results {
		out[at[k]] = h.outcome(triggers[k], r, batch[at[k]])
	}
	if h.marks != nil {
		h.marks.settled(triggers, results)
	}
	return out, nil
}

func (h *Handler) outcome(t coupon.Trigger, r Result, d broker.Delivery) broker.Outcome {
	count := func(result string) { h.core.metrics.triggers.WithLabelValues(string(t.Kind), result).Inc() }
	switch {
	case errors.Is(r.Err, coupon.ErrIntegrity):
		count(resultParked)
		h.log.Warn("trigger parked: its row cannot be changed", zap.Error(r.Err))
		return broker.Park(r.Err.Error())
	case r.Err != nil && t.Attempt >= len(retryDelays):
		count(resultParked)
		h.log.Warn("trigger parked: every attempt failed", zap.Int("attempts", t.Attempt), zap.Error(r.Err))
		return broker.Park(fmt.Sprintf("attempt %d failed: %v", t.Attempt+1, r.Err))
	case r.Err != nil:
		count(resultRetried)
		delay := retryDelays[t.Attempt]
		t.Attempt++
		return h.again(t, r, d, reasonRetry, delay)
	case r.Busy:
		count(resultBusy)
		return h.again(t, r, d, reasonBusy, busyDelay)
	}
	switch r.Decision.Action {
	case coupon.Reschedule:
		rest := r.Decision.Until.Sub(r.Now)
		if rest < soon {
			count(resultHeld)
			return broker.Hold(rest)
		}
		count(resultAgain)
		return h.again(t, r, d, reasonRest, rest)
	case coupon.Drop:
		if r.Decision.Reason == coupon.DropPaused {
			count(resultPaused)
		} else {
			count(resultDropped)
		}
	case coupon.Expire, coupon.Unlock:
		count(resultDone)
	}
	return broker.Ack()
}

// again sends the trigger through the ladder once more: for the rest until its instant, or to wait.
func (h *Handler) again(t coupon.Trigger, r Result, d broker.Delivery, reason string, delay time.Duration) broker.Outcome {
	h.core.metrics.reschedules.WithLabelValues(reason).Inc()
	class := r.Class
	if class == 0 {
		class = classOf(d.Key)
	}
	timed := coupon.Timed{ID: t.ID, Body: h.encoder.Trigger(t), Kind: t.Kind, Class: class, CouponID: t.CouponID}
	var m broker.Message
	if reason == reasonRest {
		timed.At = r.Now.Add(delay)
		m = h.router.Message(r.Now, timed)
	} else {
		m = h.router.After(delay, timed)
	}
	m.Attempt = t.Attempt
	if trace := d.Trace(); trace != "" {
		m.Headers = map[string]any{broker.HeaderTrace: trace}
	}
	return broker.Forward(m)
}

// classOf reads the precision class from the routing key that the trigger came with.
func classOf(key string) byte {
	k, err := ladder.ParseKey(key)
	if err != nil {
		return coupon.Exact.Class()
	}
	return byte(k.Class)
}
