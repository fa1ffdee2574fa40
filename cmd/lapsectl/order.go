package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
)

type orderCommand struct {
	Send orderSend `cmd:"" help:"Say that an order was paid, closed or refunded, or that its payment failed."`
}

type orderSend struct {
	Type    string   `arg:"" placeholder:"TYPE" help:"paid, closed, payment_failed or refunded."`
	Order   string   `required:"" placeholder:"ID" help:"The order."`
	Coupon  []string `required:"" placeholder:"ID" help:"Its coupons, up to ten: --coupon 7 --coupon 8, or 7,8."`
	User    string   `placeholder:"ID" help:"Whose coupons they must be; by default that is not looked at."`
	Partial bool     `help:"Of refunded: only a part of the order was; its coupons stay used."`
	Reason  string   `help:"Why, for the coupons' history."`
	ID      string   `name:"id" placeholder:"ID" help:"The event's id; by default one is made."`
}

// Help tells what the sent event does, and who answers.
func (c *orderSend) Help() string {
	return `Publishes an order event to the exchange P.orders, as a shop's order system does. Sent means that RabbitMQ has stored it; the publisher does what it says, and a coupon that a paid order cannot have is answered by coupon.redeem_refused (lapsectl events tail). The same event again changes nothing.`
}

// event is what the flags ask for; its error names every fault.
func (c *orderSend) event() (event.Order, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	e := event.Order{OrderID: c.Order, UserID: c.User, Partial: c.Partial, Reason: c.Reason, EventID: c.ID}
	if e.EventID == "" {
		e.EventID = "lapsectl-" + uuid.NewString()
	}
	name := "order." + versioned.ReplaceAllString(strings.TrimPrefix(c.Type, "order."), "")
	if i := slices.IndexFunc(event.OrderTypes(), func(t string) bool { return versioned.ReplaceAllString(t, "") == name }); i >= 0 {
		e.Type = event.OrderTypes()[i]
	} else {
		bad("TYPE: must be paid, closed, payment_failed or refunded, got %q", clipped(c.Type))
	}
	if c.Order == "" {
		bad("--order: must not be empty")
	}
	for _, f := range []struct{ name, value string }{{"--order", c.Order}, {"--user", c.User}} {
		if reason := wrongText(f.value); reason != "" {
			bad("%s: %s, got %q", f.name, reason, clipped(f.value))
		}
	}
	for _, text := range c.Coupon {
		id, err := parseID("--coupon", text)
		switch {
		case err != nil:
			errs = append(errs, err)
		case slices.Contains(e.CouponIDs, id):
			bad("--coupon: %d is given twice", id)
		default:
			e.CouponIDs = append(e.CouponIDs, id)
		}
	}
	if len(c.Coupon) > coupon.MaxOrderCoupons {
		bad("--coupon: must be given at most %d times, got %d", coupon.MaxOrderCoupons, len(c.Coupon))
	}
	if c.Partial && e.Type != event.TypeOrderRefunded {
		bad("--partial goes with refunded")
	}
	return e, errors.Join(errs...)
}

// Run sends one event.
func (c *orderSend) Run(ctx context.Context, s *system) error {
	e, err := c.event()
	if err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	codec, err := event.NewCodec(cfg.Installation)
	if err != nil {
		return err //nolint:wrapcheck // names the field
	}
	key, body, err := codec.Order(e, time.Now())
	if err != nil {
		return err //nolint:wrapcheck // names the field
	}
	if _, err := event.DecodeOrder(body, event.ContentType, "", ""); err != nil {
		return fmt.Errorf("this is no event that the publisher would take: %w", err)
	}
	client, l, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan {
		return part(l, l.Orders(), l.ParkExchange(), l.Parked())
	})
	if err != nil {
		return err
	}
	m := broker.Message{
		Exchange: l.Orders(), Key: key, ID: e.EventID, Body: body, ContentType: event.ContentType, Type: e.Type, Mandatory: true,
	}
	if err := s.deliver(ctx, client, m); err != nil {
		return fmt.Errorf("sending event %s: %w", e.EventID, err)
	}
	return s.print(fmt.Sprintf("sent %s of order %s, coupons %s: event %s\n", key, shown(e.OrderID), strings.Join(c.Coupon, ", "), shown(e.EventID)))
}

// deliver publishes one message and waits for the broker's confirm.
func (s *system) deliver(ctx context.Context, client *broker.Client, m broker.Message) error {
	reach, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	if err := client.Ping(reach); err != nil { // says why, if it cannot be reached
		return err //nolint:wrapcheck // by the caller
	}
	publisher := client.NewPublisher()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- publisher.Run(running) }()
	err := publisher.WaitReady(reach)
	if err == nil {
		err = publisher.Publish(context.WithoutCancel(ctx), []broker.Message{m})[0]
	}
	stop()
	err = errors.Join(err, <-ended)
	switch {
	case errors.Is(err, broker.ErrReturned):
		return fmt.Errorf("exchange %s has no queue: declare the topology (topology.declare, or start the publisher): %w", m.Exchange, err)
	case errors.Is(err, broker.ErrUnknown):
		return fmt.Errorf("%w; it may have arrived: with --id %s it can be sent again without harm", err, m.ID)
	default:
		return err
	}
}
