package planner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
)

// Remind publishes the reminders of every slice that is due, at each of the stored offsets in turn; idle says that the
// installation has none.
func (p *Planner) Remind(ctx context.Context) (idle bool, err error) {
	if err := p.announce(ctx); err != nil {
		return false, err
	}
	r, err := p.stored(ctx)
	if err != nil {
		return false, err
	}
	p.metrics.plans(r)
	var errs []error
	for _, o := range r.Offsets {
		rem := &reminding{p: p, offset: o, zone: r.Zone}
		_, err := p.round(ctx, walk{plan: o.Plan(), page: rem.page, moved: rem.moved})
		if err != nil && !errors.Is(err, errLost) {
			errs = append(errs, fmt.Errorf("reminders at %s: %w", o.Name, err))
		}
		rem.report()
	}
	return len(r.Offsets) == 0, errors.Join(errs...)
}

// stored reads what all pods go by, which may be another's configuration.
func (p *Planner) stored(ctx context.Context) (coupon.Reminders, error) {
	ctx, cancel := context.WithTimeout(ctx, p.deps.Limit)
	defer cancel()
	r, err := p.deps.Rows.Reminders(ctx)
	if err != nil {
		return r, fmt.Errorf("read when to remind: %w", err)
	}
	return r, nil
}

// reminding is a round at one offset.
type reminding struct {
	p      *Planner
	offset coupon.Offset
	zone   *time.Location

	skipped coupon.Skipped // in this round, and recorded
}

// page publishes a page of reminders.
func (r *reminding) page(ctx context.Context, place *coupon.PlanPlace) (next coupon.Cursor, rows int, err error) {
	d := &r.p.deps
	page, err := d.Rows.RemindPage(ctx, r.offset, r.zone, place.End, place.Cursor, r.p.config.Page)
	if err != nil {
		return next, 0, fmt.Errorf("read slice: %w", err)
	}
	if len(page.Expiring) > 0 {
		ms := make([]broker.Message, len(page.Expiring))
		for i := range page.Expiring {
			key, id, body := d.Encoder.Expiring(page.Expiring[i])
			ms[i] = broker.Event(d.Exchange, key, id, page.Expiring[i].Trace, body)
		}
		crash.Before(crash.Publish, "reminders")
		if err := errors.Join(d.Events.Publish(ctx, ms)...); err != nil {
			return next, 0, fmt.Errorf("publish %d reminders: %w", len(ms), firstOf(err))
		}
		crash.After(crash.Publish, "reminders")
		r.p.metrics.told.WithLabelValues(r.offset.Name).Add(float64(len(ms)))
	}
	place.Skipped = coupon.Skipped{Offset: r.offset.Name}
	for i := range page.Skipped {
		at := page.Skipped[i].NotifyAt
		place.Skipped.Add(1, at, at)
	}
	return page.Next, page.Rows, nil
}

// moved counts what the move recorded as skipped.
func (r *reminding) moved(place *coupon.PlanPlace) {
	k := &place.Skipped
	if k.N == 0 {
		return
	}
	r.p.metrics.skipped.WithLabelValues(r.offset.Name).Add(float64(k.N))
	r.skipped.Add(k.N, k.From, k.To)
}

// report says once in a round how many reminders came too late to be told of.
func (r *reminding) report() {
	if k := &r.skipped; k.N > 0 {
		r.p.deps.Log.Warn("reminders skipped: the planner came to them too long after their instants",
			zap.String("offset", r.offset.Name), zap.Int("skipped", k.N), zap.Time("from", k.From), zap.Time("to", k.To))
	}
}
