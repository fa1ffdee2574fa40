package broker

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// declareChannels work side by side: each declare is a round trip.
const declareChannels = 4

// MismatchError says that a queue or exchange exists with other arguments than ours
// (AMQP 406). Arguments cannot be changed: it must be drained and deleted, or
// the config that asks for the other value put right.
type MismatchError struct {
	Kind     string // "queue" or "exchange"
	Name     string
	Argument string // the first differing one; empty if the broker's text was not understood
	Want     string // ours
	Have     string // what the broker has
	Text     string // the broker's own
}

func (e *MismatchError) Error() string {
	if e.Argument == "" {
		return fmt.Sprintf("%s %s exists with other arguments: %s", e.Kind, e.Name, e.Text)
	}
	return fmt.Sprintf("%s %s exists with another %s: want %s, the broker has %s", e.Kind, e.Name, e.Argument, e.Want, e.Have)
}

// MissingError says that an exchange, queue or binding is not there.
type MissingError struct {
	Kind string // "queue", "exchange" or "binding"
	Name string
}

func (e *MissingError) Error() string { return fmt.Sprintf("%s %s is missing", e.Kind, e.Name) }

// "inequivalent arg 'x-message-ttl' for queue 'q' in vhost 'v': received the
// value '1000' of type 'signedint' but current is the value '2000' of type …";
// other pairs are "received 'x' but current is 'y'" and "received none but …".
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)' for \w+ '[^']*' in vhost '[^']*': received (.+?) but current is (.+)$`)

var quoted = regexp.MustCompile(`'([^']*)'`)

// explain turns the broker's refusal of a declare into a typed error.
func explain(kind, name string, err error) error {
	var e *amqp.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("declaring %s %s: %w", kind, name, err)
	}
	switch e.Code {
	case amqp.NotFound:
		return &MissingError{Kind: kind, Name: name}
	case amqp.PreconditionFailed:
		m := &MismatchError{Kind: kind, Name: name, Text: e.Reason}
		if p := inequivalent.FindStringSubmatch(e.Reason); p != nil {
			m.Argument, m.Want, m.Have = p[1], value(p[2]), value(p[3])
		}
		return m
	}
	return fmt.Errorf("declaring %s %s: %w", kind, name, err)
}

func value(text string) string {
	if p := quoted.FindStringSubmatch(text); p != nil {
		return p[1]
	}
	return text
}

// Declare makes whatever of the plan is not there yet. It is idempotent, and
// quick when there is nothing to do. What exists with other arguments is a
// *MismatchError; all of them are reported.
func (c *Client) Declare(ctx context.Context, plan ladder.Plan) error {
	return c.with(ctx, "declare", func(s *session) error { return c.declareOn(ctx, s, plan) })
}

func (c *Client) declareOn(ctx context.Context, s *session, plan ladder.Plan) error {
	err := c.onChannels(ctx, s, declareChannels, len(plan.Exchanges), func(ch *amqp.Channel, i int) error {
		return declareExchange(ch, plan.Exchanges[i])
	})
	if err != nil {
		return err
	}
	err = c.onChannels(ctx, s, declareChannels, len(plan.Queues), func(ch *amqp.Channel, i int) error {
		return declareQueue(ch, plan.Queues[i])
	})
	if err != nil {
		return err
	}
	return c.onChannels(ctx, s, declareChannels, len(plan.Bindings), func(ch *amqp.Channel, i int) error {
		return bind(ch, plan.Bindings[i])
	})
}

func declareExchange(ch *amqp.Channel, e ladder.Exchange) error {
	if err := ch.ExchangeDeclare(e.Name, e.Type, true, false, false, false, e.Args); err != nil {
		return explain("exchange", e.Name, err)
	}
	return nil
}

func declareQueue(ch *amqp.Channel, q ladder.Queue) error {
	if _, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args); err != nil {
		return explain("queue", q.Name, err)
	}
	return nil
}

func bind(ch *amqp.Channel, b ladder.Binding) error {
	var err error
	if b.ToExchange {
		err = ch.ExchangeBind(b.Destination, b.Key, b.Source, false, nil)
	} else {
		err = ch.QueueBind(b.Destination, b.Key, b.Source, false, nil)
	}
	if err != nil {
		return fmt.Errorf("binding %s: %w", Describe(b), err)
	}
	return nil
}

// Describe names a binding, as errors and findings do.
func Describe(b ladder.Binding) string {
	return fmt.Sprintf("%s -> %s (key %q)", b.Source, b.Destination, b.Key)
}

// Verify looks whether the plan is there, without making anything: every
// exchange and queue by name, then its arguments; bindings and policies
// through the management API if its URL is configured. All findings are
// reported: *MissingError, *MismatchError, *PolicyError.
func (c *Client) Verify(ctx context.Context, plan ladder.Plan) error {
	err := c.with(ctx, "verify", func(s *session) error {
		return errors.Join(
			c.onChannels(ctx, s, declareChannels, len(plan.Exchanges), func(ch *amqp.Channel, i int) error {
				e := plan.Exchanges[i]
				if err := ch.ExchangeDeclarePassive(e.Name, e.Type, true, false, false, false, e.Args); err != nil {
					return explain("exchange", e.Name, err)
				}
				return compare(declareExchange(ch, e))
			}),
			c.onChannels(ctx, s, declareChannels, len(plan.Queues), func(ch *amqp.Channel, i int) error {
				q := plan.Queues[i]
				if _, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, q.Args); err != nil {
					return explain("queue", q.Name, err)
				}
				return compare(declareQueue(ch, q))
			}))
	})
	if c.cfg.ManagementURL.Reveal() == "" {
		return err
	}
	return errors.Join(err, c.verifyBindings(ctx, plan), c.CheckPolicies(ctx, plan))
}

// compare judges a declare of what is known to exist: it changes nothing, but
// the broker compares the arguments. Who may not configure cannot ask that.
func compare(err error) error {
	var e *amqp.Error
	if errors.As(err, &e) && e.Code == amqp.AccessRefused {
		return nil
	}
	return err
}

// Delete removes the queues and exchanges of the plan, with what they hold.
// What is not there is not missed. One after the other: RabbitMQ 3.10 crashes
// the channel when exchanges bound to each other are deleted side by side.
//
// Nobody may be declaring them meanwhile: a queue deleted within moments of
// its declaration can take RabbitMQ 3.10's dead-letter supervisor down, for
// the whole node until its restart.
func (c *Client) Delete(ctx context.Context, plan ladder.Plan) error {
	return c.with(ctx, "delete", func(s *session) error {
		return errors.Join(
			c.onChannels(ctx, s, 1, len(plan.Queues), func(ch *amqp.Channel, i int) error {
				if _, err := ch.QueueDelete(plan.Queues[i].Name, false, false, false); err != nil {
					return fmt.Errorf("deleting queue %s: %w", plan.Queues[i].Name, err)
				}
				return nil
			}),
			c.onChannels(ctx, s, 1, len(plan.Exchanges), func(ch *amqp.Channel, i int) error {
				if err := ch.ExchangeDelete(plan.Exchanges[i].Name, false, false); err != nil {
					return fmt.Errorf("deleting exchange %s: %w", plan.Exchanges[i].Name, err)
				}
				return nil
			}))
	})
}

// onChannels calls f for 0 … n-1 on width channels side by side. A refusal
// closes the channel, so the next call gets a fresh one. All errors are
// joined; the time for all of it is limited, and the session killed beyond it.
func (c *Client) onChannels(ctx context.Context, s *session, width, n int, f func(*amqp.Channel, int) error) error {
	errs := make([]error, n)
	err := s.within(ctx, c.cfg.CallTimeout, func() error {
		var g errgroup.Group
		for k := range min(width, n) {
			g.Go(func() error {
				ch, err := s.conn.Channel()
				if err != nil {
					return fmt.Errorf("opening a channel: %w", err)
				}
				for i := k; i < n; i += width {
					if ch.IsClosed() {
						if ch, err = s.conn.Channel(); err != nil {
							return fmt.Errorf("opening a channel: %w", err)
						}
					}
					errs[i] = f(ch, i)
				}
				if !ch.IsClosed() {
					return ch.Close()
				}
				return nil
			})
		}
		return g.Wait()
	})
	return errors.Join(errors.Join(errs...), err)
}
