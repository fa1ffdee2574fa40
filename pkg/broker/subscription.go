package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"
)

// ending says how a subscription ended. Neither pause nor lost = ctx ended.
type ending struct {
	handled bool  // at least one batch was handled
	pause   error // nothing can be handled for now; the session is fine
	lost    error // the channel, the connection or the queue is gone
}

// subscription is one channel with one consumer on it. One goroutine
// (dispatch) assembles batches, a few workers handle and settle them.
// Deliveries never outlive it.
type subscription struct {
	k       *Consumer
	s       *session
	ch      *amqp.Channel
	tag     string
	work    chan []item
	held    chan []heldItem
	pause   chan error    // capacity 1: the first reason counts
	quit    chan struct{} // closed when dispatch has ended
	handled atomic.Bool
	stale   atomic.Int64

	acking sync.Mutex
	acks   acks
	late   chan struct{} // capacity 1: something waits to be told of

	in      <-chan amqp.Delivery
	cancels <-chan string
	closed  <-chan *amqp.Error
}

func (k *Consumer) subscribe(ctx context.Context, s *session) ending {
	u := &subscription{
		k: k, s: s, work: make(chan []item), held: make(chan []heldItem),
		pause: make(chan error, 1), quit: make(chan struct{}), late: make(chan struct{}, 1),
	}
	if err := u.begin(ctx); err != nil {
		return ending{lost: err}
	}
	k.subscribed.Store(true)
	k.c.metrics.subscribed.WithLabelValues(k.o.Queue).Set(1)
	k.log.Info("consuming", zap.String("address", s.address), zap.String("tag", u.tag))

	// Handlers are not cut off by the end of ctx, only by the drain's.
	handling, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	var workers sync.WaitGroup
	for range k.o.Config.Concurrency {
		workers.Go(func() {
			for batch := range u.work {
				u.handle(handling, batch)
			}
		})
	}
	end := u.dispatch(ctx)

	k.subscribed.Store(false)
	k.c.metrics.subscribed.WithLabelValues(k.o.Queue).Set(0)
	close(u.quit)
	close(u.work)
	calls := context.WithoutCancel(ctx)
	if s.alive() && !u.ch.IsClosed() {
		// First no more deliveries, then the batches in work, then the rest
		// back to the queue by closing the channel.
		_ = s.within(calls, k.c.cfg.DrainTimeout, func() error { return u.ch.Cancel(u.tag, false) })
	}
	t := time.AfterFunc(k.c.cfg.DrainTimeout, cut)
	workers.Wait()
	t.Stop()
	_ = s.within(calls, k.c.cfg.DrainTimeout, func() error {
		u.ackLast()
		if !s.alive() || u.ch.IsClosed() {
			return nil
		}
		return u.ch.Close()
	})
	if n := u.stale.Load(); n > 0 {
		k.log.Info("deliveries of an ended session stay unsettled; they will come again", zap.Int64("count", n))
	}
	end.handled = u.handled.Load()
	return end
}

var errHeld = errors.New("an operator has paused it")

// begin opens the channel and the consumer on it.
func (u *subscription) begin(ctx context.Context) error {
	k := u.k
	k.tags++
	u.tag = fmt.Sprintf("%.150s %.80s %d", k.c.name, k.o.Queue, k.tags)
	return u.s.within(ctx, k.c.cfg.CallTimeout, func() error {
		var err error
		if u.ch, err = u.s.conn.Channel(); err != nil {
			return fmt.Errorf("opening a channel: %w", err)
		}
		u.cancels = u.ch.NotifyCancel(make(chan string, 1))
		u.closed = u.ch.NotifyClose(make(chan *amqp.Error, 1))
		if err = u.ch.Qos(k.o.Config.Prefetch, 0, false); err != nil {
			return fmt.Errorf("setting the prefetch: %w", err)
		}
		if u.in, err = u.ch.Consume(k.o.Queue, u.tag, false, false, false, false, nil); err != nil {
			return fmt.Errorf("consuming from %s: %w", k.o.Queue, err)
		}
		return nil
	})
}

// dispatch turns deliveries into batches until something ends it.
func (u *subscription) dispatch(ctx context.Context) ending {
	var (
		cfg    = u.k.o.Config
		a      = assembler{size: cfg.Batch}
		linger = stoppedTimer()
		wake   = stoppedTimer()
		late   = stoppedTimer()

		armed bool // late is running
	)
	defer linger.Stop()
	defer wake.Stop()
	defer late.Stop()
	rewake := func() {
		now := time.Now()
		if again := a.wake(now); !again.IsZero() {
			wake.Reset(again.Sub(now))
		}
	}
	delivered := u.k.c.metrics.delivered.WithLabelValues(u.k.o.Queue)
	for {
		if u.k.held() {
			return ending{pause: errHeld}
		}
		changed, blocked := u.blocked()
		if blocked != nil {
			return ending{pause: blocked}
		}
		// One batch for each worker is enough to have in store.
		in, work, next := u.in, chan<- []item(nil), []item(nil)
		if len(a.ready) > 0 {
			work, next = u.work, a.ready[0]
		}
		if len(a.ready) >= cfg.Concurrency {
			in = nil
		}
		select {
		case <-ctx.Done():
			return ending{}
		case err := <-u.pause:
			return ending{pause: err}
		case <-changed:
		case _, live := <-u.cancels:
			if live {
				return ending{lost: errors.New("the broker cancelled the consumer (queue deleted or moved)")}
			}
			return ending{lost: u.reason()}
		case e := <-u.closed:
			if e != nil {
				return ending{lost: fmt.Errorf("channel closed: %w", e)}
			}
			return ending{lost: u.reason()}
		case d, live := <-in:
			if !live {
				return ending{lost: u.reason()}
			}
			delivered.Inc()
			if u.k.o.CatchAll {
				u.k.c.metrics.unroutable.Inc()
			}
			if a.add(item{d: newDelivery(u.k.o.Queue, &d, time.Now()), tag: d.DeliveryTag}) {
				linger.Reset(cfg.Linger)
			}
		case <-linger.C:
			a.shut()
		case work <- next:
			a.pop()
		case items := <-u.held:
			a.hold(items)
			rewake()
		case <-wake.C:
			rewake()
		case <-u.late:
			if !armed {
				late.Reset(ackDelay)
				armed = true
			}
		case <-late.C:
			armed = false
			u.ackRest()
		}
	}
}

// reason is why the deliveries ended without a word.
func (u *subscription) reason() error {
	select {
	case e := <-u.closed:
		if e != nil {
			return fmt.Errorf("channel closed: %w", e)
		}
	default:
	}
	return errors.New("the deliveries ended")
}

// blocked says whether what handlers forward could not be published now.
func (u *subscription) blocked() (<-chan struct{}, error) {
	if u.k.o.Publisher == nil {
		return nil, nil
	}
	changed, err := u.k.o.Publisher.status()
	if !errors.Is(err, ErrBlocked) {
		err = nil
	}
	return changed, err
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}
