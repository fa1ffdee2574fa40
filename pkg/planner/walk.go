package planner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// walk is one plan and what is done with a page of it: publish it, have it confirmed, and say where it ends and how many
// rows it had.
type walk struct {
	plan  string
	page  func(ctx context.Context, place *coupon.PlanPlace) (next coupon.Cursor, rows int, err error)
	moved func(place *coupon.PlanPlace) // after the move that stored the page; nil: nothing
}

// errLost: another pod has taken the plan over.
var errLost = errors.New("plan taken over by another pod")

// round walks every slice that is due; idle says that nothing will be for long.
func (p *Planner) round(ctx context.Context, w walk) (idle bool, err error) {
	place, held, err := p.claim(ctx, w)
	if err != nil || !held {
		return false, err
	}
	defer p.release(ctx, w, place.Epoch)
	if place.Horizon == 0 && place.Frontier.IsZero() {
		return true, nil
	}
	// A verb that read the former horizon may still be in its transaction.
	if place.Now.Sub(place.HorizonSince) < p.deps.Limit {
		return false, nil
	}
	for ctx.Err() == nil {
		more, err := p.step(ctx, w, &place)
		if err != nil || !more {
			return false, err
		}
	}
	return false, nil
}

func (p *Planner) claim(ctx context.Context, w walk) (coupon.PlanPlace, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.deps.Limit)
	defer cancel()
	place, held, err := p.deps.Rows.ClaimPlan(ctx, w.plan, p.deps.Owner, p.config.Lease)
	if err != nil {
		return place, false, fmt.Errorf("claim plan: %w", err)
	}
	return place, held, nil
}

func (p *Planner) release(ctx context.Context, w walk, epoch uint64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.deps.Limit)
	defer cancel()
	if err := p.deps.Rows.ReleasePlan(ctx, w.plan, p.deps.Owner, epoch); err != nil {
		p.deps.Log.Debug("plan not released; its lease runs out", zap.String("plan", w.plan), zap.Error(err))
	}
}

// step opens the next slice or publishes one page of the open one. more is false when there is nothing to do now.
func (p *Planner) step(ctx context.Context, w walk, place *coupon.PlanPlace) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.config.Lease)
	defer cancel()
	// A finite horizon was set again while all of the rest was being published: back to slices.
	endless := place.Horizon != 0 && !place.End.Before(coupon.Never)
	if endless || !place.Start.Before(place.End) {
		if more, err = p.open(ctx, w, place); err != nil || !more {
			return false, err
		}
	}
	next, rows, err := w.page(ctx, place)
	if err != nil {
		return false, err
	}
	place.Cursor = next
	if rows < p.config.Page {
		place.Frontier, place.Start = place.End, place.End
		if place.Horizon == 0 && place.End.Equal(coupon.Never) {
			place.Frontier = time.Time{}
		}
	}
	if err := p.move(ctx, w, place); err != nil {
		return false, err
	}
	if w.moved != nil {
		w.moved(place)
	}
	place.Skipped = coupon.Skipped{}
	return true, nil
}

func (p *Planner) move(ctx context.Context, w walk, place *coupon.PlanPlace) error {
	held, err := p.deps.Rows.MovePlan(ctx, w.plan, p.deps.Owner, *place, p.config.Lease)
	if err != nil {
		return fmt.Errorf("move plan: %w", err)
	}
	if !held {
		return errLost
	}
	return nil
}

// open finds the next slice: the lowest from the frontier on that holds a coupon and begins within the horizon. Slices
// wholly past are the sweep's, empty ones are jumped over by one index read.
func (p *Planner) open(ctx context.Context, w walk, place *coupon.PlanPlace) (bool, error) {
	if place.Horizon == 0 {
		// The horizon was lifted: what waits behind the last frontier is published once, all of it.
		if place.Frontier.IsZero() {
			return false, nil
		}
		place.Start, place.End, place.Cursor = place.Frontier, coupon.Never, coupon.Cursor{At: place.Frontier}
		return true, nil
	}
	if place.Fresh > 0 && place.Frontier.IsZero() {
		place.Frontier = place.Now.Add(place.Fresh).Truncate(p.config.Slice).Add(p.config.Slice)
	}
	from := place.Now.Truncate(p.config.Slice)
	if place.Frontier.After(from) {
		from = place.Frontier
	}
	next, now, err := p.deps.Rows.NextDue(ctx, from)
	if err != nil {
		return false, fmt.Errorf("find next slice: %w", err)
	}
	place.Now = now
	lag := p.metrics.lag.WithLabelValues(w.plan)
	end := now.Add(place.Horizon).Truncate(p.config.Slice).Add(p.config.Slice)
	if !next.Before(end) {
		lag.Set(0)
		if end.After(place.Frontier) {
			place.Frontier, place.Start, place.End, place.Cursor = end, end, end, coupon.Cursor{At: end}
			return false, p.move(ctx, w, place)
		}
		return false, nil
	}
	place.Start = next.Truncate(p.config.Slice)
	place.End = place.Start.Add(p.config.Slice)
	if place.Start.Before(from) {
		place.Start = from
	}
	place.Cursor = coupon.Cursor{At: place.Start}
	lag.Set(max(0, now.Add(place.Horizon).Sub(place.Start).Seconds()))
	return true, nil
}
