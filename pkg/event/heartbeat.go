package event

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// A heartbeat that has expired. It is between the fleet's own workers: no part of the contract, and no coupon.* event, so that
// nobody else hears of it.
const (
	TypeHeartbeat = "heartbeat.expired.v1"
	KeyHeartbeat  = "heartbeat.expired"
)

// Heartbeat is a heartbeat's event as the notifier reads it.
type Heartbeat struct {
	Source    string
	Precision coupon.Precision
	Ended     time.Time // the end that the coupon had
}

// heartbeat gives the event of a heartbeat's step; of all but its last one there is none, and the key is empty.
func (c *Codec) heartbeat(t *coupon.Transition) (key, id string, body []byte) {
	if t.To != coupon.Expired {
		return "", "", nil
	}
	w, id := c.ofCoupon(t, TypeHeartbeat)
	w.field("precision", string(t.Terms.Precision))
	w.instant("expires_at", t.ExpiresAt, seconds)
	w.instant("expired_at", t.At, milliseconds)
	return KeyHeartbeat, id, w.close()
}

// DecodeHeartbeat reads the event.
func DecodeHeartbeat(body []byte) (Heartbeat, error) {
	h, err := decodeHeartbeat(body)
	if err != nil {
		return Heartbeat{}, fmt.Errorf("decode %s: %w", TypeHeartbeat, err)
	}
	return h, nil
}

func decodeHeartbeat(body []byte) (Heartbeat, error) {
	o, err := document(body, MaxBody)
	if err != nil {
		return Heartbeat{}, err
	}
	in, err := open(o, TypeHeartbeat)
	if err != nil {
		return Heartbeat{}, err
	}
	o = in.data
	h := Heartbeat{Source: in.source, Precision: coupon.Precision(o.text("precision", true, MaxID)), Ended: o.end("expires_at", false)}
	if h.Precision != "" && !h.Precision.Valid() {
		o.fail("precision", "must be exact, standard or relaxed")
	}
	if err := o.err(); err != nil {
		return Heartbeat{}, err
	}
	return h, nil
}
