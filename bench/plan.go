package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

func (b *bench) promotes() []subject {
	return []subject{{name: "lapse", what: "the planner of one publisher", run: b.promote}}
}

// promote plants coupons just beyond the horizon, in one instant, and watches the planner's cursor go through them.
func (b *bench) promote(ctx context.Context) (metrics, error) {
	s, err := b.fresh(ctx, "horizon", demo.Publisher)
	if err != nil {
		return nil, err
	}
	n := b.cfg.Size
	lead := b.lead(n) + 12*time.Second // a planner that was just started lets the longest transaction end first
	due, err := s.soon(ctx, planHorizon+lead)
	if err != nil {
		return nil, err
	}
	c, err := s.plant(ctx, n, pace{}, due)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, lead+time.Minute+time.Duration(n/1000)*time.Second)
	defer cancel()
	// What is seen first is the cursor behind the first page: how far it was then, and when.
	var begun, ended time.Time
	var before, done int
	err = rig.Until(limited, 2*time.Millisecond, func() (bool, error) {
		var at, start time.Time
		var id uint64
		err := s.db.QueryRowContext(limited, "SELECT cursor_at, cursor_id, slice_start FROM plan_slice WHERE plan = 'promote'").Scan(&at, &id, &start)
		if err != nil {
			return false, fmt.Errorf("reading the planner's place: %w", err)
		}
		now := time.Now()
		switch {
		case start.After(due), at.After(due):
			done, ended = n, now
			return true, nil
		case !at.Equal(due) || id < c.first:
			return false, s.Fleet().Ended()
		case begun.IsZero():
			before, begun = int(id-c.first)+1, now
		}
		done, ended = int(id-c.first)+1, now
		return done == n, s.Fleet().Ended()
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for the planner: %w", err)
	}
	waiting, err := s.purge(ctx)
	if err != nil {
		return nil, err
	}
	m := metrics{"coupons": float64(n), "lost": float64(max(0, n-waiting)), "doubled": float64(max(0, waiting-n))}
	if took := ended.Sub(begun); !begun.IsZero() && done > before && took > 0 {
		m["took_s"], m["per_s"] = took.Seconds(), float64(done-before)/took.Seconds()
	}
	m["rss_publisher_mib"], err = s.peak(demo.Publisher)
	return m, err
}
