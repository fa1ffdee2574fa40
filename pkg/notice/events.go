package notice

import (
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// reading is how events of one type are read.
type reading struct {
	key    string // routing key
	kind   string
	decode func(body []byte) (e read, source string, err error)
}

// read is an event: an item, a user at risk, or a heartbeat.
type read struct {
	item coupon.NoticeItem
	risk event.AtRisk
	beat event.Heartbeat

	trace string // traceparent
}

func readings() []reading {
	return []reading{
		{"coupon.expired", string(coupon.NoticeExpired), readExpired},
		{event.KeyExpiring, string(coupon.NoticeExpiring), readExpiring},
		{event.KeyAtRisk, kindAtRisk, readAtRisk},
		{event.KeyHeartbeat, kindHeartbeat, readHeartbeat},
	}
}

var errUnknown = fmt.Errorf("%w: must be one of coupon.expired, coupon.expiring and coupon.at_risk", event.ErrUnknownType)

// read gives the event of a delivery and its kind. The routing key tells what it should be; one that
// came by another way is what it says itself.
func (c *Collector) read(d *broker.Delivery) (read, string, error) {
	all := c.readings
	for i := range all {
		if all[i].key == d.Key {
			return c.readAs(&all[i], d.Body)
		}
	}
	for i := range all {
		e, kind, err := c.readAs(&all[i], d.Body)
		if !errors.Is(err, event.ErrUnknownType) {
			return e, kind, err
		}
	}
	return read{}, reasonOther, errUnknown
}

func (c *Collector) readAs(r *reading, body []byte) (read, string, error) {
	e, source, err := r.decode(body)
	if err == nil && source != c.Source {
		err = fmt.Errorf("source: must be %s, got %q", c.Source, source)
	}
	return e, r.kind, err
}

func readExpired(body []byte) (read, string, error) {
	e, err := event.DecodeExpired(body)
	return read{trace: e.Trace, item: coupon.NoticeItem{
		EventID: e.EventID, Kind: coupon.NoticeExpired, UserID: e.UserID, CouponID: e.CouponID, TemplateID: e.TemplateID,
		Version: e.Version, ExpiresAt: e.ExpiresAt, Value: e.Value, Currency: e.Currency,
	}}, e.Source, err //nolint:wrapcheck // says what it decodes
}

func readExpiring(body []byte) (read, string, error) {
	e, err := event.DecodeExpiring(body)
	return read{trace: e.Trace, item: coupon.NoticeItem{
		EventID: e.EventID, Kind: coupon.NoticeExpiring, UserID: e.UserID, CouponID: e.CouponID, TemplateID: e.TemplateID,
		Version: e.Version, ExpiresAt: e.ExpiresAt, Value: e.Value, Currency: e.Currency,
		Offset: e.Offset, NotifyAt: e.NotifyAt, Late: e.Late,
	}}, e.Source, err //nolint:wrapcheck // says what it decodes
}

func readAtRisk(body []byte) (read, string, error) {
	e, err := event.DecodeAtRisk(body)
	return read{risk: e}, e.Source, err //nolint:wrapcheck // says what it decodes
}

func readHeartbeat(body []byte) (read, string, error) {
	e, err := event.DecodeHeartbeat(body)
	return read{beat: e}, e.Source, err //nolint:wrapcheck // says what it decodes
}
