package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// lane is one channel in confirm mode. Its goroutine sends; a second one
// (settle) takes returns and confirms.
//
// The broker numbers what is sent on a channel 1, 2, 3 …, and the library
// hands out confirms in that order, so the n-th confirm belongs to the n-th
// entry of pending. An entry goes in before its message is sent and comes out
// after its confirm is read: never more than cap(pending) confirms or returns
// can be unread, and both listeners have that capacity, so the library never
// waits for us (it would drop a return after 5 s).
type lane struct {
	p       *Publisher
	s       *session
	ch      *amqp.Channel
	pending chan entry
	idle    chan struct{} // gets a token when pending has become empty
	dead    chan struct{} // closed when no more confirms will come
	why     error         // set before dead is closed
}

type entry struct {
	j *job
	i int
}

type returned struct{ id, exchange, key string }

// runLane opens a channel and works on it until it, the session or ctx ends.
// The error is nil if ctx ended.
func (p *Publisher) runLane(ctx context.Context, s *session) error {
	window := p.c.cfg.Window
	l := &lane{p: p, s: s, pending: make(chan entry, window), idle: make(chan struct{}, 1), dead: make(chan struct{})}
	var (
		confirms chan amqp.Confirmation
		returns  chan amqp.Return
		closed   chan *amqp.Error
	)
	err := s.within(ctx, p.c.cfg.CallTimeout, func() error {
		var err error
		if l.ch, err = s.conn.Channel(); err != nil {
			return err
		}
		confirms = l.ch.NotifyPublish(make(chan amqp.Confirmation, window))
		returns = l.ch.NotifyReturn(make(chan amqp.Return, window))
		closed = l.ch.NotifyClose(make(chan *amqp.Error, 1))
		return l.ch.Confirm(false)
	})
	if err != nil {
		return fmt.Errorf("opening a publishing channel: %w", err)
	}
	p.lane(+1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.settle(confirms, returns, closed)
	}()
	for open := true; open; {
		select {
		case <-ctx.Done():
			open = false
		case <-l.dead:
			open = false
		case j := <-p.jobs:
			l.send(j)
		}
	}
	p.lane(-1)
	l.drain(p.c.cfg.DrainTimeout)
	close(l.pending)
	// Closing the channel ends its listeners, and with them settle.
	_ = s.within(context.WithoutCancel(ctx), closeTimeout, l.ch.Close)
	<-ended
	if ctx.Err() != nil {
		return nil
	}
	return l.why
}

// send puts a job's messages on the channel, as far as it gets.
func (l *lane) send(j *job) {
	for i := range j.msgs {
		switch j.begin(i, l.s) {
		case doSend:
		case doSkip:
			continue
		case doStop:
			return
		}
		if err := l.admit(entry{j, i}); err != nil {
			j.undo(i)
			j.refuse(err)
			return
		}
		l.p.flying.Add(1)
		m := &j.msgs[i]
		if err := l.ch.Publish(m.Exchange, m.Key, m.Mandatory, false, j.ready[i]); err != nil {
			// Headers were validated, so this is the end of the channel; were
			// it ever anything else, the numbers would be off by one.
			if !l.ch.IsClosed() {
				l.s.kill(fmt.Errorf("publishing: %w", err))
			}
			<-l.dead
			j.refuse(fmt.Errorf("%w: %w", ErrNotSent, l.why))
			return
		}
	}
}

// admit puts e into pending, waiting for room while the channel lives and is
// not blocked.
func (l *lane) admit(e entry) error {
	for {
		if l.s.isBlocked.Load() {
			reason, _ := l.s.state()
			return fmt.Errorf("%w: %s", ErrBlocked, reason)
		}
		select {
		case l.pending <- e:
			return nil
		default:
		}
		_, changed := l.s.state()
		if l.s.isBlocked.Load() {
			continue
		}
		select {
		case l.pending <- e:
			return nil
		case <-changed:
		case <-l.dead:
			return fmt.Errorf("%w: %w", ErrNotSent, l.why)
		}
	}
}

// settle gives every confirm to its message until the channel ends, then
// answers ErrUnknown for what is left.
func (l *lane) settle(confirms <-chan amqp.Confirmation, returns <-chan amqp.Return, closed <-chan *amqp.Error) {
	back := make(map[returned]int)
	for c := range confirms {
		// A return comes before the confirm of its message, on this channel:
		// whatever belongs to c is in the buffer by now.
		for more := true; more; {
			select {
			case r, ok := <-returns:
				if ok {
					back[returned{r.MessageId, r.Exchange, r.RoutingKey}]++
				} else {
					returns = nil
				}
			default:
				more = false
			}
		}
		e := <-l.pending
		l.p.flying.Add(-1)
		m := &e.j.msgs[e.i]
		err := verdict(m, c.Ack, back)
		if m.Optional && errors.Is(err, ErrReturned) {
			l.p.c.metrics.unbound.Inc()
			err = nil
		}
		e.j.settle(e.i, err)
		if len(l.pending) == 0 {
			select {
			case l.idle <- struct{}{}:
			default:
			}
		}
	}
	l.why = errors.New("channel closed")
	if e := <-closed; e != nil {
		l.why = e
	}
	close(l.dead)
	for e := range l.pending {
		l.p.flying.Add(-1)
		e.j.settle(e.i, fmt.Errorf("%w: %w", ErrUnknown, l.why))
	}
}

func verdict(m *Message, ack bool, back map[returned]int) error {
	if m.Mandatory && len(back) > 0 {
		k := returned{m.ID, m.Exchange, m.Key}
		if n := back[k]; n > 0 {
			if back[k]--; n == 1 {
				delete(back, k)
			}
			return fmt.Errorf("%w: no binding of exchange %q takes key %q", ErrReturned, m.Exchange, m.Key)
		}
	}
	if !ack {
		return fmt.Errorf("%w: exchange %q, key %q", ErrNacked, m.Exchange, m.Key)
	}
	return nil
}

// drain waits until nothing is pending, the channel ends, or limit has passed.
func (l *lane) drain(limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for len(l.pending) > 0 {
		select {
		case <-l.idle:
		case <-l.dead:
			return
		case <-t.C:
			return
		}
	}
}
