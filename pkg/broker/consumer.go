package broker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// ConsumerOptions describe one consumer.
type ConsumerOptions struct {
	Config ConsumerConfig
	Queue  string
	// Handler decides over batches; with concurrency above 1 it is called by
	// several goroutines.
	Handler Handler
	// Ready, if set, is asked before every subscription: can the handler work?
	Ready func(context.Context) error
	// Held, if set, says that nothing is to be consumed although all could be: an
	// operator has paused it. Asked often, so it must not wait. A consumer that
	// is held counts as ready, and goes on within a fifth of a second.
	Held func() bool
	// Publisher is needed for Forward and Park. While the broker blocks it,
	// consumption pauses.
	Publisher *Publisher
	// ParkExchange is where Park publishes to.
	ParkExchange string
	// CatchAll says that the queue is the one for unroutable dead letters:
	// its deliveries are counted in lapse_unroutable_total.
	CatchAll bool
}

// Consumer consumes one queue in batches over a connection of its own.
type Consumer struct {
	c          *Client
	o          ConsumerOptions
	log        *zap.Logger
	subscribed atomic.Bool
	why        atomic.Pointer[error] // it is not
	tags       int
}

// NewConsumer does not connect; Run does.
func (c *Client) NewConsumer(o ConsumerOptions) (*Consumer, error) {
	if err := o.Config.Validate(); err != nil {
		return nil, fmt.Errorf("consumer of %s: %w", o.Queue, err)
	}
	if o.Queue == "" || o.Handler == nil {
		return nil, errors.New("a consumer needs a queue and a handler")
	}
	c.metrics.queue(o.Queue)
	return &Consumer{c: c, o: o, log: c.log.With(zap.String("queue", o.Queue))}, nil
}

// Subscribed says whether the queue is being consumed at this moment. It is
// false while there is no connection and while consumption is paused.
func (k *Consumer) Subscribed() bool { return k.subscribed.Load() }

// Ready is nil while Subscribed, and while held.
func (k *Consumer) Ready() error {
	if k.Subscribed() || k.held() {
		return nil
	}
	if why := k.why.Load(); why != nil {
		return fmt.Errorf("queue %s is not being consumed: %w", k.o.Queue, *why)
	}
	return fmt.Errorf("queue %s is not being consumed", k.o.Queue)
}

// failed notes why the queue is not consumed, logs it and waits.
func (k *Consumer) failed(ctx context.Context, a *attempts, what string, err error) {
	why := explainChannel(err)
	k.why.Store(&why)
	a.failed(ctx, what, err)
}

// Run consumes until ctx ends: then it cancels the subscription, lets the
// batches in work end (drain_timeout), puts the rest back and returns nil. It
// is called once.
func (k *Consumer) Run(ctx context.Context) error {
	connect, pause := k.c.attempts(k.log), k.c.attempts(k.log)
	var s *session
	drop := func() {
		if s != nil {
			s.close()
			s = nil
			k.c.metrics.connected.WithLabelValues("consume").Dec()
		}
	}
	defer drop()
	for ctx.Err() == nil {
		if s != nil && !s.alive() {
			drop()
		}
		if s == nil {
			var err error
			if s, err = k.c.open(ctx, "consume "+k.o.Queue); err != nil {
				k.failed(ctx, connect, "cannot open a session with RabbitMQ", err)
				continue
			}
			k.c.metrics.connected.WithLabelValues("consume").Inc()
		}
		if k.held() {
			_ = lifecycle.Sleep(ctx, heldLook)
			continue
		}
		if err := k.able(ctx); err != nil {
			k.failed(ctx, pause, "not consuming yet", err)
			continue
		}
		since := time.Now()
		end := k.subscribe(ctx, s)
		connect.lasted(since)
		if end.handled {
			pause.lasted(since)
		}
		switch {
		case ctx.Err() != nil:
		case end.pause != nil && k.held():
			k.log.Info("consumption is held", zap.Error(end.pause))
		case end.pause != nil:
			k.c.metrics.pauses.WithLabelValues(k.o.Queue).Inc()
			k.failed(ctx, pause, "consumption paused", end.pause)
		default:
			// Whatever ended a subscription, a new session declares the
			// topology first: the queue itself may be gone.
			drop()
			k.failed(ctx, connect, "lost the subscription", end.lost)
		}
	}
	return nil
}

// heldLook is how often a consumer that is held looks whether it still is.
const heldLook = 200 * time.Millisecond

func (k *Consumer) held() bool { return k.o.Held != nil && k.o.Held() }

// able asks whether a batch could be handled and its outcomes published now.
func (k *Consumer) able(ctx context.Context) error {
	if p := k.o.Publisher; p != nil {
		if err := p.Ready(); err != nil {
			return err
		}
	}
	if k.o.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, k.c.cfg.CallTimeout)
	defer cancel()
	return k.o.Ready(ctx)
}
