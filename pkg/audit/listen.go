package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	dialTimeout = 5 * time.Second
	heartbeat   = 5 * time.Second
	prefetch    = 1000
	ackEvery    = 200
	retryFirst  = 250 * time.Millisecond
	retryMost   = 2 * time.Second
)

// subscription is one connection and the deliveries on it; it dies with the connection.
type subscription struct {
	conn       *amqp.Connection
	deliveries <-chan amqp.Delivery
}

func (a *Audit) dial(ctx context.Context) (*amqp.Connection, error) {
	conn, err := amqp.DialConfig(a.cfg.AMQPURL, amqp.Config{
		Heartbeat:  heartbeat,
		Properties: amqp.Table{"connection_name": "audit " + a.cfg.Queue},
		Dial: func(network, addr string) (net.Conn, error) {
			if n := uint64(len(a.cfg.Addresses)); n > 0 {
				addr = a.cfg.Addresses[(a.dials.Add(1)-1)%n]
			}
			d := net.Dialer{Timeout: dialTimeout}
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return c, c.SetDeadline(time.Now().Add(dialTimeout)) // the library lifts it after the handshake
		},
	})
	if err != nil {
		return nil, fmt.Errorf("audit: connecting to the broker: %w", err)
	}
	return conn, nil
}

func (a *Audit) subscribe(ctx context.Context) (subscription, error) {
	conn, err := a.dial(ctx)
	if err != nil {
		return subscription{}, err
	}
	deliveries, err := a.consume(conn)
	if err != nil {
		return subscription{}, errors.Join(fmt.Errorf("audit: queue %s: %w", a.cfg.Queue, err), hangUp(conn))
	}
	return subscription{conn: conn, deliveries: deliveries}, nil
}

func (a *Audit) consume(conn *amqp.Connection) (<-chan amqp.Delivery, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return nil, err
	}
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": 100_000}
	if _, err := ch.QueueDeclare(a.cfg.Queue, true, false, false, false, args); err != nil {
		return nil, err
	}
	if err := ch.QueueBind(a.cfg.Queue, "#", a.cfg.Exchange, false, nil); err != nil {
		return nil, err
	}
	return ch.Consume(a.cfg.Queue, "audit", false, false, false, false, nil)
}

// listen hears events until ctx ends, over as many connections as it takes.
func (a *Audit) listen(ctx context.Context, s subscription) {
	for wait := retryFirst; ; {
		if s.conn != nil {
			wait = retryFirst
			a.drain(ctx, s.deliveries)
			_ = hangUp(s.conn) // dead already, or about to be
			s = subscription{}
		}
		if ctx.Err() != nil {
			return
		}
		next, err := a.subscribe(ctx)
		if err == nil {
			s = next
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			wait = min(2*wait, retryMost)
		}
	}
}

// drain takes deliveries until their channel or ctx ends.
func (a *Audit) drain(ctx context.Context, deliveries <-chan amqp.Delivery) {
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case d, ok := <-deliveries:
			if !ok {
				return
			}
			low, high := a.clock.at(time.Now())
			a.book.hear(d.Body, d.Redelivered, low, high)
			a.pass(d.Body, d.Redelivered)
			if n%ackEvery != 0 && len(deliveries) > 0 {
				continue
			}
			// Everything up to this one. If it fails the connection is gone and what was not acked comes again.
			if err := d.Ack(true); err != nil {
				return
			}
		}
	}
}

// pass tells whoever wants to hear for himself. What is no event, the book notes.
func (a *Audit) pass(body []byte, redelivered bool) {
	if a.cfg.Hear == nil {
		return
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err == nil {
		a.cfg.Hear(Event{ID: e.ID, Source: e.Source, Type: e.Type, Data: e.Data, Redelivered: redelivered})
	}
}

func (a *Audit) deleteQueue(ctx context.Context) error {
	conn, err := a.dial(ctx)
	if err != nil {
		return err
	}
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDelete(a.cfg.Queue, false, false, false)
	}
	if err != nil {
		err = fmt.Errorf("audit: deleting queue %s: %w", a.cfg.Queue, err)
	}
	return errors.Join(err, hangUp(conn))
}

func hangUp(conn *amqp.Connection) error {
	if err := conn.CloseDeadline(time.Now().Add(dialTimeout)); err != nil && !errors.Is(err, amqp.ErrClosed) {
		return fmt.Errorf("audit: disconnecting: %w", err)
	}
	return nil
}
