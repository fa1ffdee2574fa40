package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	tailPrefetch = 256
	// tailBacklog is how many messages wait in the broker for a slow watcher; beyond it the oldest are dropped there.
	tailBacklog = 100_000
)

// Tail watches an exchange from now on: messages whose routing key matches one of the keys (topic patterns) go to
// see, one after the other, as they come. The queue is exclusive to the connection and goes with it; nothing is
// declared that stays, and nobody else gets less. ready, if not nil, is called once the queue is bound.
//
// It ends with ctx (nil), with see's error, or with the connection: what is published until the next call is then
// missed.
func (c *Client) Tail(ctx context.Context, exchange string, keys []string, ready func(), see func(Delivery) error) error {
	return c.with(ctx, "tail", func(s *session) error {
		var (
			ch     *amqp.Channel
			queue  string
			in     <-chan amqp.Delivery
			closed <-chan *amqp.Error
		)
		err := s.within(ctx, c.cfg.CallTimeout, func() (err error) {
			if ch, err = s.conn.Channel(); err != nil {
				return fmt.Errorf("opening a channel: %w", err)
			}
			closed = ch.NotifyClose(make(chan *amqp.Error, 1))
			if err = ch.Qos(tailPrefetch, 0, false); err != nil {
				return fmt.Errorf("setting the prefetch: %w", err)
			}
			args := amqp.Table{"x-max-length": int64(tailBacklog), "x-overflow": "drop-head"}
			q, err := ch.QueueDeclare("", false, true, true, false, args)
			if err != nil {
				return fmt.Errorf("declaring a queue of one's own: %w", err)
			}
			queue = q.Name
			for _, key := range keys {
				if err := ch.QueueBind(queue, key, exchange, false, nil); err != nil {
					return explain("exchange", exchange, err)
				}
			}
			in, err = ch.Consume(queue, "", false, true, false, false, nil)
			if err != nil {
				return fmt.Errorf("consuming from %s: %w", queue, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if ready != nil {
			ready()
		}
		for {
			select {
			case <-ctx.Done():
				return nil
			case d, live := <-in:
				if !live {
					return tailEnd(closed)
				}
				if err := see(newDelivery(queue, &d, time.Now())); err != nil {
					return err
				}
				if err := d.Ack(false); err != nil {
					return fmt.Errorf("acking on %s: %w", queue, err)
				}
			}
		}
	})
}

func tailEnd(closed <-chan *amqp.Error) error {
	select {
	case e := <-closed:
		if e != nil {
			return fmt.Errorf("watching ended: %w", e)
		}
	default: // the broker cancelled the consumer
	}
	return errors.New("watching ended: no more deliveries")
}
