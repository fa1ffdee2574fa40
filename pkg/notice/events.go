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
	decode func(body []byte) (item coupon.NoticeItem, source string, err error)
}

func readings() []reading {
	return []reading{
		{"coupon.expired", string(coupon.NoticeExpired), readExpired},
		{event.KeyExpiring, string(coupon.NoticeExpiring), readExpiring},
		{event.KeyAtRisk, kindAtRisk, readAtRisk},
	}
}

var errUnknown = fmt.Errorf("%w: must be one of coupon.expired, coupon.expiring and coupon.at_risk", event.ErrUnknownType)

// read gives the item of a delivery, or says by its kind that it is none. The routing key tells what it should be; one that
// came by another way is what it says itself.
func (c *Collector) read(d *broker.Delivery) (coupon.NoticeItem, string, error) {
	all := c.readings
	for i := range all {
		if all[i].key == d.Key {
			return c.readAs(&all[i], d.Body)
		}
	}
	for i := range all {
		item, kind, err := c.readAs(&all[i], d.Body)
		if !errors.Is(err, event.ErrUnknownType) {
			return item, kind, err
		}
	}
	return coupon.NoticeItem{}, reasonOther, errUnknown
}

func (c *Collector) readAs(r *reading, body []byte) (coupon.NoticeItem, string, error) {
	item, source, err := r.decode(body)
	if err == nil && source != c.Source {
		err = fmt.Errorf("source: must be %s, got %q", c.Source, source)
	}
	return item, r.kind, err
}

func readExpired(body []byte) (coupon.NoticeItem, string, error) {
	e, err := event.DecodeExpired(body)
	return coupon.NoticeItem{
		EventID: e.EventID, Kind: coupon.NoticeExpired, UserID: e.UserID, CouponID: e.CouponID, TemplateID: e.TemplateID,
		Version: e.Version, ExpiresAt: e.ExpiresAt, Value: e.Value, Currency: e.Currency,
	}, e.Source, err //nolint:wrapcheck // says what it decodes
}

func readExpiring(body []byte) (coupon.NoticeItem, string, error) {
	e, err := event.DecodeExpiring(body)
	return coupon.NoticeItem{
		EventID: e.EventID, Kind: coupon.NoticeExpiring, UserID: e.UserID, CouponID: e.CouponID, TemplateID: e.TemplateID,
		Version: e.Version, ExpiresAt: e.ExpiresAt, Value: e.Value, Currency: e.Currency,
		Offset: e.Offset, NotifyAt: e.NotifyAt, Late: e.Late,
	}, e.Source, err //nolint:wrapcheck // says what it decodes
}

func readAtRisk(body []byte) (coupon.NoticeItem, string, error) {
	e, err := event.DecodeAtRisk(body)
	return coupon.NoticeItem{}, e.Source, err //nolint:wrapcheck // says what it decodes
}
