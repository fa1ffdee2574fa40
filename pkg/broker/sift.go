package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Sift looks through the first limit messages of a queue, in order, in pages of at most page. choose says of each whether
// it is removed; what is not stays in the queue, where it was. A message is removed only after choose has answered for its
// page; when choose fails nothing of its page is. It gives how many messages were seen and how many were removed.
//
// The messages in hand are nobody else's meanwhile, so limit bounds what consumers miss and what is held in memory.
func (c *Client) Sift(ctx context.Context, queue string, limit, page int, choose func([]Delivery) ([]bool, error)) (seen, removed int, err error) {
	err = c.with(ctx, "sift", func(s *session) error {
		var ch *amqp.Channel
		err := s.within(ctx, c.cfg.CallTimeout, func() (err error) {
			ch, err = s.conn.Channel()
			return err
		})
		if err != nil {
			return fmt.Errorf("opening a channel: %w", err)
		}
		for more := true; more && seen < limit; {
			var tags []uint64
			var batch []Delivery
			if tags, batch, err = c.getPage(ctx, s, ch, queue, min(page, limit-seen)); err != nil || len(batch) == 0 {
				break
			}
			more = len(batch) == page
			seen += len(batch)
			var drop []bool
			if drop, err = choose(batch); err != nil {
				break
			}
			for i := range min(len(drop), len(tags)) {
				if !drop[i] {
					continue
				}
				if err = ch.Ack(tags[i], false); err != nil {
					return fmt.Errorf("acking on %s: %w", queue, err)
				}
				removed++
			}
		}
		// Closing the channel makes sure that the acks have arrived, and puts the rest back.
		return errors.Join(err, s.within(ctx, c.cfg.CallTimeout, ch.Close))
	})
	return seen, removed, err
}

func (c *Client) getPage(ctx context.Context, s *session, ch *amqp.Channel, queue string, n int) (tags []uint64, batch []Delivery, err error) {
	for len(batch) < n {
		var d amqp.Delivery
		var ok bool
		err := s.within(ctx, c.cfg.CallTimeout, func() (err error) {
			d, ok, err = ch.Get(queue, false)
			return err
		})
		if err != nil {
			return tags, batch, fmt.Errorf("getting from %s: %w", queue, err)
		}
		if !ok {
			break
		}
		tags, batch = append(tags, d.DeliveryTag), append(batch, newDelivery(queue, &d, time.Now()))
	}
	return tags, batch, nil
}

// Aside tells why a message was set aside and from which queue, by what parking or dead-lettering left in its headers;
// empty where neither did.
func (d Delivery) Aside() (origin, reason string) {
	origin, _ = d.Headers[HeaderOrigin].(string)
	reason, _ = d.Headers[HeaderReason].(string)
	if origin != "" {
		return origin, reason
	}
	deaths, _ := d.Headers["x-death"].([]any)
	if len(deaths) == 0 {
		return "", reason
	}
	last, _ := deaths[0].(amqp.Table)
	origin, _ = last["queue"].(string)
	if reason == "" {
		why, _ := last["reason"].(string)
		reason = "dead-lettered: " + why
	}
	return origin, reason
}

// Revived is the delivery as a fresh message to an exchange, without what parking left in its headers and with no attempt
// counted.
func (d Delivery) Revived(exchange, key string) Message {
	m := d.Again(exchange, key)
	m.Attempt = 0
	m.Headers = make(map[string]any, len(d.Headers))
	for k, v := range d.Headers {
		if k != HeaderReason && k != HeaderOrigin {
			m.Headers[k] = v
		}
	}
	return m
}
