package broker

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Headers of ours.
const (
	HeaderAttempt = "x-lapse-attempt" // deliveries that ended in a retry so far
	HeaderReason  = "x-lapse-reason"  // why the message was parked
	HeaderOrigin  = "x-lapse-origin"  // the queue it was parked from
	// HeaderTrace is W3C trace context; it is carried like any other header.
	HeaderTrace = "traceparent"
)

const (
	maxShortString = 255 // bytes of an AMQP short string
	// maxHeaders is how many bytes of headers are sent. They travel in one frame, of 128 KiB with RabbitMQ's default
	// frame_max; a larger one costs the whole connection, with every confirm that is open on it.
	maxHeaders = 120 << 10
)

// Message is what is published. It is always sent persistent.
type Message struct {
	Exchange string
	Key      string
	// ID is the message id, used by consumers to tell repeats.
	ID   string
	Body []byte
	// Headers are copied; those that dead-lettering left (x-death …), the
	// delivery count, CC and BCC are left out, and HeaderAttempt is Attempt.
	Headers map[string]any
	// Expiration is the message's own TTL; 0 = none. Rounded up to the
	// millisecond. A negative one is refused here: the broker would close the
	// channel for it, and lose every confirm on it.
	Expiration time.Duration
	// Mandatory makes a message that no binding takes an error (ErrReturned)
	// instead of nothing.
	Mandatory bool
	// Optional makes a mandatory message that no binding takes count, and be no error.
	Optional bool
	// Attempt goes into HeaderAttempt if above 0.
	Attempt int
	// ContentType defaults to application/json.
	ContentType string
	// Type is the AMQP type property, if any.
	Type string
	// Timestamp, if not zero, is sent (seconds).
	Timestamp time.Time
}

// Delivery is a message as it came from a queue.
type Delivery struct {
	Body      []byte
	MessageID string
	// Key is the routing key that it was first published with.
	Key         string
	Exchange    string // it was last published or dead-lettered to
	Queue       string
	ContentType string
	Type        string
	Headers     map[string]any // as received; do not change
	Redelivered bool
	// DeliveryCount is how often the broker has delivered it before without
	// an ack (a crash, a disconnect, a requeue).
	DeliveryCount int
	// Attempt is HeaderAttempt.
	Attempt    int
	ReceivedAt time.Time // on this host's clock, with its monotonic reading
}

// maxTrace is more than a traceparent has; whatever else comes under its name is not carried on.
const maxTrace = 64

// Trace is HeaderTrace, empty if there is none.
func (d Delivery) Trace() string {
	trace, ok := d.Headers[HeaderTrace].(string)
	if !ok || len(trace) > maxTrace {
		return ""
	}
	return trace
}

// Again is the delivery as a fresh message with the same body, id, headers and
// attempt.
func (d Delivery) Again(exchange, key string) Message {
	return Message{
		Exchange: exchange, Key: key, ID: d.MessageID, Body: d.Body, Headers: d.Headers,
		Attempt: d.Attempt, ContentType: d.ContentType, Type: d.Type, Mandatory: true,
	}
}

func newDelivery(queue string, d *amqp.Delivery, now time.Time) Delivery {
	return Delivery{
		Body: d.Body, MessageID: d.MessageId, Key: d.RoutingKey, Exchange: d.Exchange, Queue: queue,
		ContentType: d.ContentType, Type: d.Type, Headers: d.Headers, Redelivered: d.Redelivered,
		DeliveryCount: number(d.Headers["x-delivery-count"]), Attempt: number(d.Headers[HeaderAttempt]),
		ReceivedAt: now,
	}
}

// number reads a header that the broker or a client may have sent in any
// integer width; anything else, and what is below 0, is 0.
func number(v any) int {
	var n int64
	switch v := v.(type) {
	case int:
		n = int64(v)
	case int8:
		n = int64(v)
	case int16:
		n = int64(v)
	case int32:
		n = int64(v)
	case int64:
		n = v
	case uint8:
		n = int64(v)
	case uint16:
		n = int64(v)
	case uint32:
		n = int64(v)
	}
	const most = 1 << 31
	return int(min(max(n, 0), most))
}

// leftover says whether a header tells of a message's earlier life. A message
// that keeps its x-death headers and dead-letters into the same queue again is
// dropped as a cycle; CC and BCC would route it to more places than its key.
func leftover(name string) bool {
	switch name {
	case "x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC", HeaderAttempt:
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

func (m *Message) publishing() (amqp.Publishing, error) {
	headers := make(amqp.Table, len(m.Headers)+1)
	maps.Copy(headers, m.Headers)
	maps.DeleteFunc(headers, func(k string, _ any) bool { return leftover(k) })
	if m.Attempt > 0 {
		headers[HeaderAttempt] = int64(m.Attempt)
	}
	p := amqp.Publishing{
		Headers: headers, ContentType: m.ContentType, DeliveryMode: amqp.Persistent,
		MessageId: m.ID, Timestamp: m.Timestamp, Type: m.Type, Body: m.Body,
	}
	if p.ContentType == "" {
		p.ContentType = "application/json"
	}
	if m.Expiration < 0 {
		return p, fmt.Errorf("%w: expiration must be 0 or more, got %s", ErrInvalid, m.Expiration)
	}
	if m.Expiration > 0 {
		ms := (m.Expiration + time.Millisecond - 1) / time.Millisecond
		p.Expiration = strconv.FormatInt(int64(ms), 10)
	}
	for _, f := range []struct{ name, value string }{
		{"exchange", m.Exchange}, {"key", m.Key}, {"id", m.ID}, {"content type", p.ContentType}, {"type", m.Type},
	} {
		if len(f.value) > maxShortString {
			return p, fmt.Errorf("%w: %s must be at most %d bytes, got %d", ErrInvalid, f.name, maxShortString, len(f.value))
		}
	}
	for k := range headers {
		if len(k) > maxShortString {
			return p, fmt.Errorf("%w: a header name must be at most %d bytes, got %d", ErrInvalid, maxShortString, len(k))
		}
	}
	if err := headers.Validate(); err != nil {
		return p, fmt.Errorf("%w: headers: %w", ErrInvalid, err)
	}
	if n := sizeOf(headers); n > maxHeaders {
		return p, fmt.Errorf("%w: headers must have at most %d bytes, have %d", ErrInvalid, maxHeaders, n)
	}
	return p, nil
}

// sizeOf is about what a header's value takes on the wire, and never less.
func sizeOf(v any) int {
	const scalar = 9 // a type and eight bytes
	switch v := v.(type) {
	case string:
		return scalar + len(v)
	case []byte:
		return scalar + len(v)
	case []any:
		n := scalar
		for _, member := range v {
			n += sizeOf(member)
		}
		return n
	case amqp.Table:
		return sizeOf(map[string]any(v))
	case map[string]any:
		n := scalar
		for name, member := range v {
			n += 1 + len(name) + sizeOf(member)
		}
		return n
	}
	return scalar
}
