package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Drain takes messages off a queue in batches until it is empty for a moment (idle), and gives each batch to move; what
// move answers with nil is removed, the rest is put back and ends the drain. It takes what is ready: messages that are
// being dead-lettered appear in the queue that they go to. It says how many were removed.
func (c *Client) Drain(ctx context.Context, queue string, batch int, idle time.Duration, move func(context.Context, []Delivery) error) (int, error) {
	moved := 0
	err := c.with(ctx, "drain", func(s *session) error {
		d := drain{c: c, s: s, queue: queue}
		if err := d.begin(ctx, batch); err != nil {
			return err
		}
		for {
			taken, tag, err := d.take(ctx, batch, idle)
			if len(taken) == 0 || err != nil {
				return errors.Join(err, d.end(ctx))
			}
			if err := move(ctx, taken); err != nil {
				return errors.Join(err, d.end(ctx))
			}
			// Of the channel, all that was delivered up to here.
			if err := s.within(context.WithoutCancel(ctx), c.cfg.CallTimeout, func() error { return d.ch.Ack(tag, true) }); err != nil {
				return fmt.Errorf("acking on %s: %w", queue, err)
			}
			moved += len(taken)
		}
	})
	return moved, err
}

type drain struct {
	c      *Client
	s      *session
	queue  string
	ch     *amqp.Channel
	in     <-chan amqp.Delivery
	closed <-chan *amqp.Error
}

func (d *drain) begin(ctx context.Context, batch int) error {
	return d.s.within(ctx, d.c.cfg.CallTimeout, func() (err error) {
		if d.ch, err = d.s.conn.Channel(); err != nil {
			return fmt.Errorf("opening a channel: %w", err)
		}
		d.closed = d.ch.NotifyClose(make(chan *amqp.Error, 1))
		if err = d.ch.Qos(2*batch, 0, false); err != nil { // the next batch comes while this one is moved
			return fmt.Errorf("setting the prefetch: %w", err)
		}
		if d.in, err = d.ch.Consume(d.queue, "", false, false, false, false, nil); err != nil {
			return fmt.Errorf("consuming from %s: %w", d.queue, err)
		}
		return nil
	})
}

// take gathers up to a batch; none when nothing came within idle.
func (d *drain) take(ctx context.Context, batch int, idle time.Duration) ([]Delivery, uint64, error) {
	taken := make([]Delivery, 0, batch)
	var last uint64
	t := time.NewTimer(idle)
	defer t.Stop()
	for len(taken) < batch {
		select {
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		case <-t.C:
			return taken, last, nil
		case m, live := <-d.in:
			if !live {
				return nil, 0, tailEnd(d.closed)
			}
			taken, last = append(taken, newDelivery(d.queue, &m, time.Now())), m.DeliveryTag
		}
	}
	return taken, last, nil
}

// end closes the channel: what is not acked goes back, and what is acked has arrived.
func (d *drain) end(ctx context.Context) error {
	if d.ch.IsClosed() {
		return nil
	}
	if err := d.s.within(context.WithoutCancel(ctx), d.c.cfg.CallTimeout, d.ch.Close); err != nil {
		return fmt.Errorf("closing the channel: %w", err)
	}
	return nil
}
