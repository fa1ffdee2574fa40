package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Depths counts the messages that are ready in each of the queues (not those
// that a consumer holds). A queue that does not exist is a *MissingError; the
// others' counts are returned all the same.
func (c *Client) Depths(ctx context.Context, queues []string) (map[string]int, error) {
	counts := make([]int, len(queues))
	err := c.with(ctx, "depths", func(s *session) error {
		return c.onChannels(ctx, s, declareChannels, len(queues), func(ch *amqp.Channel, i int) error {
			q, err := ch.QueueDeclarePassive(queues[i], true, false, false, false, nil)
			if err != nil {
				counts[i] = -1
				return explain("queue", queues[i], err)
			}
			counts[i] = q.Messages
			return nil
		})
	})
	depths := make(map[string]int, len(queues))
	for i, q := range queues {
		if counts[i] >= 0 {
			depths[q] = counts[i]
		}
	}
	return depths, err
}

// Purge empties a queue and says how many messages were ready in it.
func (c *Client) Purge(ctx context.Context, queue string) (int, error) {
	var n int
	err := c.with(ctx, "purge", func(s *session) error {
		return c.onChannels(ctx, s, 1, 1, func(ch *amqp.Channel, _ int) error {
			var err error
			if n, err = ch.QueuePurge(queue, false); err != nil {
				return fmt.Errorf("purging %s: %w", queue, err)
			}
			return nil
		})
	})
	return n, err
}

// Take hands up to limit messages of a queue, in order, to keep, and removes
// each one for which keep answers nil. It ends at the first error, at the end
// of the queue, or after limit; what was not removed is put back.
func (c *Client) Take(ctx context.Context, queue string, limit int, keep func(Delivery) error) (int, error) {
	taken := 0
	err := c.with(ctx, "take", func(s *session) error {
		var ch *amqp.Channel
		err := s.within(ctx, c.cfg.CallTimeout, func() (err error) {
			ch, err = s.conn.Channel()
			return err
		})
		if err != nil {
			return fmt.Errorf("opening a channel: %w", err)
		}
		for taken < limit {
			var (
				d  amqp.Delivery
				ok bool
			)
			err := s.within(ctx, c.cfg.CallTimeout, func() (err error) {
				d, ok, err = ch.Get(queue, false)
				return err
			})
			if err != nil {
				return fmt.Errorf("getting from %s: %w", queue, err)
			}
			if !ok {
				break
			}
			if err := keep(newDelivery(queue, &d, time.Now())); err != nil {
				return errors.Join(err, s.within(ctx, c.cfg.CallTimeout, ch.Close))
			}
			if err := ch.Ack(d.DeliveryTag, false); err != nil {
				return fmt.Errorf("acking on %s: %w", queue, err)
			}
			taken++
		}
		// Closing the channel makes sure that the acks have arrived.
		if err := s.within(ctx, c.cfg.CallTimeout, ch.Close); err != nil {
			return fmt.Errorf("closing the channel: %w", err)
		}
		return nil
	})
	return taken, err
}

// Get removes and returns the first message of a queue; false = it is empty.
func (c *Client) Get(ctx context.Context, queue string) (Delivery, bool, error) {
	var got Delivery
	n, err := c.Take(ctx, queue, 1, func(d Delivery) error {
		got = d
		return nil
	})
	return got, n == 1 && err == nil, err
}

// WatchParked keeps lapse_parked_messages up to date for the queues, looking
// every so often, until ctx ends. A queue that cannot be read keeps its value.
func (c *Client) WatchParked(ctx context.Context, queues []string, every time.Duration) error {
	for {
		depths, err := c.Depths(ctx, queues)
		for q, n := range depths {
			c.metrics.parked.WithLabelValues(q).Set(float64(n))
		}
		if err != nil && ctx.Err() == nil {
			c.log.Debug("cannot count parked messages", zap.Error(err))
		}
		if lifecycle.Sleep(ctx, every) != nil {
			return nil
		}
	}
}
