package notice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// WindowStore puts items into windows; after an error none of them is in. Profiles gives what is known of those users of
// whom anything is.
type WindowStore interface {
	CollectNotices(ctx context.Context, r coupon.WindowRules, items []coupon.NoticeItem) (added int, err error)
	Profiles(ctx context.Context, users []string) (map[string]coupon.Profile, error)
	Now(ctx context.Context) (time.Time, error) // the database's clock
}

// Closes says when the window of a reminder must close: the earliest instant at which a channel may have to send. Zone is
// the user's, or that of users whose zone is not known.
type Closes interface {
	CloseAt(kind coupon.NoticeKind, offset string, notifyAt, endsAt time.Time, p *coupon.Profile) time.Time
	Zone(p *coupon.Profile) *time.Location
}

// busyDelay is how long a batch is left alone when its windows stay contended.
const busyDelay = 250 * time.Millisecond

// CollectorDeps is what a collector works with.
type CollectorDeps struct {
	Source string // events of it alone are taken (event.Codec.Source; event ids are unique within one)
	Store  WindowStore
	Policy Closes
	// AtRisk handles coupon.at_risk events and gives one outcome for each; nil: they are acked.
	AtRisk func(ctx context.Context, es []event.AtRisk) ([]broker.Outcome, error)
	// Heartbeat is told of a heartbeat that has come all the way: nil: they are acked.
	Heartbeat  func(ctx context.Context, h event.Heartbeat) error
	Log        *zap.Logger
	Registerer prometheus.Registerer
	Traces     *telemetry.Traces
}

// Collector handles the notice queue. Safe for concurrent use.
type Collector struct {
	CollectorDeps
	rules coupon.WindowRules
	stale time.Duration

	readings []reading
	metrics  *collectorMetrics
}

// NewCollector makes the handler.
func NewCollector(c Config, d CollectorDeps) (*Collector, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("notice config: %w", err)
	}
	return &Collector{
		CollectorDeps: d, rules: c.Rules(), stale: c.Policy.Stale, readings: readings(), metrics: newCollectorMetrics(d.Registerer),
	}, nil
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
	members := make(map[coupon.NoticeKind][]member)
	var risks []event.AtRisk
	var others []int // their places
	parked := 0
	var spans []*telemetry.Span
	class := "not stored" // until it is
	defer func() {
		for _, s := range spans {
			s.End(class)
		}
	}()
	for i := range batch {
		e, kind, err := c.read(&batch[i])
		switch {
		case err != nil:
			out[i] = c.park(kind, err)
			parked++
		case kind == kindHeartbeat:
			if err := c.beat(ctx, e.beat); err != nil {
				return nil, err
			}
			out[i] = broker.Ack()
		case kind == kindAtRisk:
			risks, others = append(risks, e.risk), append(others, i)
		default:
			if s := c.follow(&e, kind); s != nil {
				spans = append(spans, s)
			}
			members[e.item.Kind] = append(members[e.item.Kind], member{i, e.item})
		}
	}
	err := c.place(ctx, members)
	for _, kind := range coupon.NoticeKinds() {
		if err == nil {
			var refused int
			refused, err = c.collect(ctx, members[kind], out)
			parked += refused
		}
	}
	if err == nil {
		err = c.pass(ctx, risks, others, out)
	}
	if parked > 0 {
		c.Log.Warn("events parked, with their reasons: the notifier cannot take them", zap.Int("events", parked))
	}
	if err != nil {
		return nil, err
	}
	class = ""
	return out, nil
}

// beat notes a heartbeat: no user is told of it.
func (c *Collector) beat(ctx context.Context, h event.Heartbeat) error {
	c.count(kindHeartbeat, resultPassed, 1)
	if c.Heartbeat == nil {
		return nil
	}
	if err := c.Heartbeat(ctx, h); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}

// pass hands the at_risk events on.
func (c *Collector) pass(ctx context.Context, risks []event.AtRisk, others []int, out []broker.Outcome) error {
	if len(others) == 0 {
		return nil
	}
	c.count(kindAtRisk, resultPassed, len(others))
	if c.AtRisk == nil {
		for _, i := range others {
			out[i] = broker.Ack()
		}
		return nil
	}
	outcomes, err := c.AtRisk(ctx, risks)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	if len(outcomes) != len(risks) {
		return fmt.Errorf("at_risk: %d outcomes of %d events", len(outcomes), len(risks))
	}
	for k, i := range others {
		out[i] = outcomes[k]
	}
	return nil
}

// place decides what is too late to be told, by the database's clock, and where reminders belong.
func (c *Collector) place(ctx context.Context, members map[coupon.NoticeKind][]member) error {
	if len(members) == 0 {
		return nil
	}
	now, err := c.Store.Now(ctx)
	if err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	c.leaveOut(now, members[coupon.NoticeExpired])
	return c.remindIn(ctx, now, members[coupon.NoticeExpiring])
}

// leaveOut marks what ended too long ago to be told: it is recorded.
func (c *Collector) leaveOut(now time.Time, members []member) {
	for i := range members {
		if it := &members[i].item; now.Sub(it.ExpiresAt) > c.stale {
			it.Dropped = coupon.ReasonStale
		}
	}
}

// remindIn puts the reminders into their users' zones: slot, hour and the window's end. What comes too late to be of use is
// recorded and not told.
func (c *Collector) remindIn(ctx context.Context, now time.Time, members []member) error {
	if len(members) == 0 {
		return nil
	}
	users := make([]string, 0, len(members))
	for i := range members {
		users = append(users, members[i].item.UserID)
	}
	slices.Sort(users)
	profiles, err := c.Store.Profiles(ctx, slices.Compact(users))
	if err != nil {
		return fmt.Errorf("read profiles: %w", err)
	}
	for i := range members {
		it := &members[i].item
		p := profiles[it.UserID]
		p.UserID = it.UserID
		c.remind(now, it, &p)
	}
	return nil
}

func (c *Collector) remind(now time.Time, it *coupon.NoticeItem, p *coupon.Profile) {
	offset, err := coupon.ParseOffset(it.Offset)
	if err != nil {
		return // it was read as one
	}
	zone := c.Policy.Zone(p)
	it.Slot = offset.Slot(it.ExpiresAt, zone)
	if !it.Late {
		it.NotifyAt = offset.NotifyAt(it.ExpiresAt, zone)
		if now.Sub(it.NotifyAt) > it.ExpiresAt.Sub(it.NotifyAt)/skipPart {
			it.Dropped = coupon.ReasonSkipped
		}
	}
	it.CloseAt = c.Policy.CloseAt(it.Kind, it.Offset, it.NotifyAt, it.ExpiresAt, p)
}

// skipPart: a reminder that is found later than this part of its offset is skipped.
const skipPart = 4

// collect stores members; a batch that holds one which the database refuses is halved until that one stands alone.
func (c *Collector) collect(ctx context.Context, members []member, out []broker.Outcome) (parked int, err error) {
	if len(members) == 0 {
		return 0, nil
	}
	items := make([]coupon.NoticeItem, len(members))
	for i := range members {
		items[i] = members[i].item
	}
	added, err := c.Store.CollectNotices(ctx, c.rules, items)
	switch {
	case err == nil:
		c.added(items, added)
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
		out[members[0].at] = c.park(string(items[0].Kind), err)
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

func (c *Collector) park(kind string, err error) broker.Outcome {
	c.count(kind, resultParked, 1)
	c.Log.Debug("event parked", zap.Error(err))
	return broker.Park(err.Error())
}

// added counts a stored batch of one kind.
func (c *Collector) added(items []coupon.NoticeItem, added int) {
	kind := string(items[0].Kind)
	c.count(kind, resultAdded, added)
	c.count(kind, resultRepeated, len(items)-added)
	for i := range items {
		if reason := items[i].Dropped; reason != "" {
			c.count(kind, reason, 1)
		}
	}
}

func (c *Collector) count(kind, result string, n int) {
	if n > 0 {
		c.metrics.items.WithLabelValues(kind, result).Add(float64(n))
	}
}
