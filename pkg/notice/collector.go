package notice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
)

// WindowStore puts items into windows; after an error none of them is in.
type WindowStore interface {
	CollectNotices(ctx context.Context, kind coupon.NoticeKind, r coupon.WindowRules, items []coupon.NoticeItem) (added int, err error)
}

// busyDelay is how long a batch is left alone when its windows stay contended.
const busyDelay = 250 * time.Millisecond

// Collector handles the notice queue. Safe for concurrent use.
type Collector struct {
	source  string
	rules   coupon.WindowRules
	store   WindowStore
	log     *zap.Logger
	metrics *collectorMetrics
}

// NewCollector takes events of the source alone (event.Codec.Source; event ids are unique within one).
func NewCollector(c Config, source string, store WindowStore, log *zap.Logger, reg prometheus.Registerer) (*Collector, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("notice config: %w", err)
	}
	return &Collector{source: source, rules: c.Rules(), store: store, log: log, metrics: newCollectorMetrics(reg)}, nil
}

// member is an item and the place of its delivery in the batch.
type member struct {
	at   int
	item coupon.NoticeItem
}

// Handle is the broker.Handler: every event of the batch is in a window when its ack is returned. What cannot be
// read is parked with the reason. An error (the database is away) decides nothing; items that were stored before it
// are repeats when they come again.
func (c *Collector) Handle(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
	out := make([]broker.Outcome, len(batch))
	members := make([]member, 0, len(batch))
	parked := 0
	for i := range batch {
		item, err := c.decode(batch[i].Body)
		if err != nil {
			out[i] = c.park(err)
			parked++
			continue
		}
		members = append(members, member{i, item})
	}
	refused, err := c.collect(ctx, members, out)
	if parked += refused; parked > 0 {
		c.log.Warn("events parked, with their reasons: the notifier cannot take them", zap.Int("events", parked))
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (c *Collector) decode(body []byte) (coupon.NoticeItem, error) {
	e, err := event.DecodeExpired(body)
	if err != nil {
		return coupon.NoticeItem{}, err //nolint:wrapcheck // says what it decodes
	}
	if e.Source != c.source {
		return coupon.NoticeItem{}, fmt.Errorf("source: must be %s, got %q", c.source, e.Source)
	}
	return coupon.NoticeItem{
		EventID: e.EventID, UserID: e.UserID, CouponID: e.CouponID, Version: e.Version,
		ExpiresAt: e.ExpiresAt, Value: e.Value, Currency: e.Currency,
	}, nil
}

// collect stores members; a batch that holds one which the database refuses is halved until that one stands alone.
func (c *Collector) collect(ctx context.Context, members []member, out []broker.Outcome) (parked int, err error) {
	if len(members) == 0 {
		return 0, nil
	}
	items := make([]coupon.NoticeItem, len(members))
	for i := range members {
		items[i] = members[i].item
	}
	added, err := c.store.CollectNotices(ctx, coupon.NoticeExpired, c.rules, items)
	switch {
	case err == nil:
		c.count(resultAdded, added)
		c.count(resultRepeated, len(items)-added)
		for i := range members {
			out[members[i].at] = broker.Ack()
		}
		return 0, nil
	case errors.Is(err, coupon.ErrContention):
		for i := range members {
			out[members[i].at] = broker.Hold(busyDelay)
		}
		return 0, nil
	case !errors.Is(err, coupon.ErrIntegrity):
		return 0, fmt.Errorf("collect events: %w", err)
	case len(members) == 1:
		out[members[0].at] = c.park(err)
		return 1, nil
	}
	half := len(members) / 2
	first, err := c.collect(ctx, members[:half], out)
	if err != nil {
		return first, err
	}
	second, err := c.collect(ctx, members[half:], out)
	return first + second, err
}

func (c *Collector) park(err error) broker.Outcome {
	c.count(resultParked, 1)
	c.log.Debug("event parked", zap.Error(err))
	return broker.Park(err.Error())
}

func (c *Collector) count(result string, n int) {
	if n > 0 {
		c.metrics.items.WithLabelValues(string(coupon.NoticeExpired), result).Add(float64(n))
	}
}
