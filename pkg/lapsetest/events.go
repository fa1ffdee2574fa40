package lapsetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// Event is one that consumers hear, as its message has it.
type Event struct {
	ID       string    // of the event; consumers drop repeats by it, with the source
	Type     string    // such as coupon.expired.v1
	Key      string    // the routing key: the type without its version
	CouponID string    // empty for coupon.refused.v1
	Time     time.Time // when it happened
	Body     []byte    // the CloudEvents JSON
}

// Data decodes the event's data.
func (e Event) Data(into any) error {
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(e.Body, &envelope); err != nil {
		return fmt.Errorf("event %s: %w", e.ID, err)
	}
	if err := json.Unmarshal(envelope.Data, into); err != nil {
		return fmt.Errorf("data of event %s: %w", e.ID, err)
	}
	return nil
}

// tell notes an event that was written.
func (m *memory) tell(key, id string, body []byte, at time.Time, couponID uint64) {
	e := Event{ID: id, Type: key + ".v1", Key: key, Time: at, Body: body}
	if couponID != 0 {
		e.CouponID = fmt.Sprint(couponID)
	}
	m.events = append(m.events, e)
}

// heard are the events from the given one on.
func (m *memory) heard(from int) []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events[from:])
}

// Deliver takes an event of the shop's as the fleet takes it from RabbitMQ: coupon.grant.v1 and order.paid|closed|payment_failed|
// refunded.v1, in CloudEvents JSON. An error says that the fleet would set it aside. The same event again changes nothing.
func (s *Server) Deliver(body []byte) error {
	var envelope struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	}
	if err := json.Unmarshal(body, &envelope); err != nil {
		return fmt.Errorf("deliver: %w", err)
	}
	if envelope.Type == event.TypeGrant {
		return s.memory.grants(body, envelope.ID)
	}
	return s.order(body, envelope.ID)
}

// grants issues what an event asks for; those that are refused are told so.
func (m *memory) grants(body []byte, id string) error {
	in, err := event.DecodeIssuance(body, event.ContentType, id)
	if err != nil {
		return err //nolint:wrapcheck // says what it reads
	}
	if len(in.Rejected) > 0 { // the fleet would grant the others, and set this one aside
		return in.Rejected[0].Err
	}
	_, err = m.Issue(context.Background(), in.Grants)
	return err
}

// order has the fleet's own handler do what an order event asks for.
func (s *Server) order(body []byte, id string) error {
	if _, err := event.DecodeOrder(body, event.ContentType, id, ""); err != nil {
		return err //nolint:wrapcheck // says what it reads
	}
	_, err := s.orders.Handle(context.Background(), []broker.Delivery{{Body: body, ContentType: event.ContentType, MessageID: id}})
	return err //nolint:wrapcheck // says what it does
}

// RecordRedeemRefused tells of paid orders that could not have their coupons.
func (m *memory) RecordRedeemRefused(_ context.Context, refusals []coupon.RedeemRefused) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range refusals {
		r := &refusals[i]
		key, id, body, err := m.codec.RedeemRefused(*r)
		if err != nil {
			return fmt.Errorf("refusal of a redemption: %w", err)
		}
		m.tell(key, id, body, r.At, r.CouponID)
	}
	return nil
}
