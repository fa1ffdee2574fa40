package event

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The types of order event, and their routing keys: the type without its version.
const (
	TypeOrderPaid          = "order.paid.v1"
	TypeOrderClosed        = "order.closed.v1"
	TypeOrderPaymentFailed = "order.payment_failed.v1"
	TypeOrderRefunded      = "order.refunded.v1"

	KeyOrderPaid          = "order.paid"
	KeyOrderClosed        = "order.closed"
	KeyOrderPaymentFailed = "order.payment_failed"
	KeyOrderRefunded      = "order.refunded"
)

// OrderTypes lists the types of order event.
func OrderTypes() []string {
	return []string{TypeOrderPaid, TypeOrderClosed, TypeOrderPaymentFailed, TypeOrderRefunded}
}

// Order is an incoming order event.
type Order struct {
	Type      string
	EventID   string // as an Issuance's
	Trace     string // empty if there is none that is valid
	OrderID   string
	UserID    string   // empty: not said
	CouponIDs []uint64 // 1 to coupon.MaxOrderCoupons, distinct
	Partial   bool     // of a refund that is not full
	Reason    string
}

// DecodeOrder reads an order event: a CloudEvent in structured JSON, or its data alone; then named, the routing key,
// gives the type, with its version or without. Unknown fields are ignored.
func DecodeOrder(body []byte, contentType, messageID, named string) (Order, error) {
	e, err := decodeOrder(body, contentType, messageID, named)
	if err != nil {
		return Order{}, fmt.Errorf("decode an order event: %w", err)
	}
	return e, nil
}

func decodeOrder(body []byte, contentType, messageID, named string) (Order, error) {
	in, o, err := receive(body, contentType, messageID, OrderTypes()...)
	if err != nil {
		return Order{}, err
	}
	if in.typ == "" {
		if in.typ, err = orderType(named); err != nil {
			return Order{}, err
		}
	}
	e := Order{
		Type: in.typ, EventID: in.id, Trace: in.trace,
		OrderID:   o.text("order_id", true, MaxID),
		UserID:    o.text("user_id", false, MaxID),
		CouponIDs: o.ids("coupon_ids", coupon.MaxOrderCoupons),
		Reason:    o.words("reason", coupon.MaxReason),
	}
	if e.Type == TypeOrderRefunded {
		e.Partial = !o.boolean("full", true)
	}
	if err := o.err(); err != nil {
		return Order{}, err
	}
	return e, nil
}

// orderType is the type that a routing key names.
func orderType(key string) (string, error) { return typeOf(key, OrderTypes()) }

// typeOf is the one of the types that a routing key names, with its version or without.
func typeOf(key string, types []string) (string, error) {
	names := make([]string, len(types))
	for i, t := range types {
		names[i], _ = splitVersion(t)
		if key == names[i] || key == t {
			return t, nil
		}
	}
	last := len(names) - 1
	return "", &FieldError{
		Field: "routing key", Value: shorten([]byte(strconv.Quote(key))), Kind: unknown(key, types),
		Reason: "must name the type of what is no CloudEvent: " + strings.Join(names[:last], ", ") + " or " + names[last],
	}
}

// receive opens what others send us: the envelope and the data of a CloudEvent, or the data alone, whose type is
// empty. An event's id is the CloudEvent's, else the message's, else a hash of the body.
func receive(body []byte, contentType, messageID string, types ...string) (incoming, *object, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return incoming{}, nil, err
	}
	media := mediaType(contentType)
	if strings.HasPrefix(media, "application/cloudevents") && media != ContentType {
		return incoming{}, nil, &FieldError{Field: "content type", Value: media, Reason: "must be " + ContentType + " or application/json", Kind: ErrMalformed}
	}
	if _, cloud := o.fields["specversion"]; cloud || media == ContentType {
		in, err := open(o, types...)
		if err != nil {
			return incoming{}, nil, err
		}
		if len(in.id) > maxIncomingID {
			o.failAs(ErrTooLarge, "id", fmt.Sprintf("must have at most %d bytes, has %d", maxIncomingID, len(in.id)))
			return incoming{}, nil, o.err()
		}
		return in, in.data, nil
	}
	if messageID == "" {
		sum := sha256.Sum256(body)
		return incoming{id: hex.EncodeToString(sum[:16])}, o, nil
	}
	if len(messageID) > maxIncomingID || !printable(messageID) {
		return incoming{}, nil, &FieldError{
			Field: "message id", Value: shorten([]byte(fmt.Sprintf("%q", messageID))), Kind: ErrMalformed,
			Reason: fmt.Sprintf("must have at most %d bytes without control characters", maxIncomingID),
		}
	}
	return incoming{id: messageID}, o, nil
}

// ids reads distinct ids of ours: strings, or numbers that are exact.
func (o *object) ids(field string, most int) []uint64 {
	raw, ok := o.get(field)
	if !ok {
		o.fail(field, "is required")
		return nil
	}
	if raw[0] != '[' {
		o.fail(field, "must be an array")
		return nil
	}
	members, ok := elements(raw, most)
	if !ok || len(members) == 0 {
		kind := ErrMalformed
		if !ok {
			kind = ErrTooLarge
		}
		o.failAs(kind, field, fmt.Sprintf("must have between 1 and %d members", most))
		return nil
	}
	out := make([]uint64, 0, len(members))
	for i, member := range members {
		at := fmt.Sprintf("%s[%d]", field, i)
		one := object{path: o.path, fields: map[string][]byte{at: member}}
		id := one.id(at, true)
		if len(one.errs) == 0 && slices.Contains(out, id) {
			one.fail(at, occursTwice)
		}
		if len(one.errs) > 0 {
			o.errs = append(o.errs, one.errs...)
			continue
		}
		out = append(out, id)
	}
	return out
}

// boolean reads true or false.
func (o *object) boolean(field string, absent bool) bool {
	raw, ok := o.get(field)
	if !ok {
		return absent
	}
	if raw[0] != 't' && raw[0] != 'f' {
		o.fail(field, "must be true or false")
		return absent
	}
	return raw[0] == 't'
}

// words reads what a person wrote: it is kept, not compared, so what is too long for us is cut and what does not print
// becomes a space.
func (o *object) words(field string, limit int) string {
	raw, ok := o.get(field)
	if !ok {
		return ""
	}
	if raw[0] != '"' {
		o.fail(field, "must be a string")
		return ""
	}
	clean := strings.Map(func(r rune) rune {
		if !printable(string(r)) {
			return ' '
		}
		return r
	}, unquote(raw))
	return cut(strings.TrimSpace(clean), limit)
}

// Order gives routing key and body of an order event, as the command line and tests send it.
func (c *Codec) Order(e Order, at time.Time) (key string, body []byte, err error) {
	if !slices.Contains(OrderTypes(), e.Type) {
		return "", nil, fmt.Errorf("type: must be one of %s, got %q", strings.Join(OrderTypes(), ", "), e.Type)
	}
	w := c.begin(envelope{typ: e.Type, id: e.EventID, subject: "order/" + e.OrderID, at: at, user: e.UserID, trace: e.Trace})
	w.field("order_id", e.OrderID)
	if e.UserID != "" {
		w.field("user_id", e.UserID)
	}
	w.name("coupon_ids")
	w.raw("[")
	for i, id := range e.CouponIDs {
		if i > 0 {
			w.raw(",")
		}
		w.raw(`"`)
		w.b = strconv.AppendUint(w.b, id, 10)
		w.raw(`"`)
	}
	w.raw("]")
	if e.Type == TypeOrderRefunded {
		w.name("full")
		w.b = strconv.AppendBool(w.b, !e.Partial)
	}
	if e.Reason != "" {
		w.field("reason", e.Reason)
	}
	key, _ = splitVersion(e.Type)
	return key, w.close(), nil
}
