package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// plannedWithin is the environment of workers with a horizon; everything else is as quick as it may be.
func plannedWithin(h time.Duration) func(worker string) map[string]string {
	return func(worker string) map[string]string {
		vars := map[string]string{"LAPSE__LADDER__HORIZON": h.String(), "LAPSE__DATABASE__TX_LIMIT": "3s"}
		if worker == demo.Publisher {
			maps.Copy(vars, map[string]string{
				"LAPSE__PLANNER__SLICE": "1s", "LAPSE__PLANNER__GUARD": guard.String(), "LAPSE__PLANNER__POLL": "200ms", "LAPSE__PLANNER__LEASE": "3s",
			})
		}
		return vars
	}
}

// planSettles is more than the longest transaction, which a planner waits for after its horizon has changed.
const planSettles = 5 * time.Second

// planner puts very many coupons into one instant, kills the planner among them, and moves the horizon while grants go on.
func (w *backstops) planner(ctx context.Context, t *tally) error {
	n := w.size.planned
	h := 30*time.Second + time.Duration(n/2500)*time.Second
	planting := 15*time.Second + time.Duration(n/15_000)*time.Second
	o := opening{ladder: func(c *ladder.Config) { c.Horizon = 2 * h }, env: plannedWithin(h)}
	return w.open(ctx, t, o, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d coupons in one instant, a horizon of %s", n, h))
		ends := s.soon(h + planting)
		first, end, err := s.plant(ctx, planted{template: template, n: n, status: statusUnused, ends: ends, granted: s.Now().Add(-time.Hour)})
		if err != nil {
			return err
		}
		granted, err := w.moveHorizon(ctx, s, template, h, ends)
		if err != nil {
			return err
		}
		last := ends.Add(h)
		if err := s.allEnded(ctx, first, end, time.Until(last)+draining(n)); err != nil {
			return err
		}
		e, err := s.endings(ctx, first, end)
		if err != nil {
			return err
		}
		e.wants(t, n)
		want(t, "taken_by_the_sweep", e.by["sweep"], Equal, 0)
		told(t, "drained_in_ms", e.lateMS)
		w.cfg.View.Step("they have ended")
		if err := s.allEnded(ctx, end, end+2*granted, time.Until(last)+2*time.Minute); err != nil {
			return err
		}
		g, err := s.endings(ctx, end, end+2*granted)
		if err != nil {
			return err
		}
		want(t, "granted_meanwhile", granted, AtLeast, 100)
		want(t, "granted_expired", g.expired, Equal, granted)
		want(t, "granted_taken_by_the_sweep", g.by["sweep"], Equal, 0)
		return nil
	})
}

// moveHorizon kills the publisher while it walks, and then runs it with a longer and a shorter horizon; grants go on meanwhile.
func (w *backstops) moveHorizon(ctx context.Context, s *shop, template string, h time.Duration, ends time.Time) (granted int, err error) {
	walked := func() error {
		limit, cancel := context.WithTimeout(ctx, h+30*time.Second)
		defer cancel()
		return until(limit, func() (bool, error) {
			n, err := countIn(limit, s.DB(), "SELECT COUNT(*) FROM plan_slice WHERE cursor_at = ? AND cursor_id > 0", ends)
			return n > 0, err
		})
	}
	grant := func(name string) error {
		const each = 100
		_, err := s.grant(ctx, template, each, func(i int, g *client.Grant) {
			at := s.soon(h/4 + time.Duration(i%20)*h/20)
			g.ExpiresAt, g.GrantKey = &at, fmt.Sprintf("%s-%d", name, i)
		})
		if err == nil {
			granted += each
		}
		return err
	}
	if err := grant("before"); err != nil {
		return granted, err
	}
	if err := walked(); err != nil {
		return granted, fmt.Errorf("the planner did not come to the instant: %w", err)
	}
	if err := s.Fleet().Kill(demo.Publisher); err != nil {
		return granted, err
	}
	w.cfg.View.Step("the publisher was killed in the middle of the instant")
	if err := s.startAgain(ctx, demo.Publisher); err != nil {
		return granted, err
	}
	for _, to := range []struct {
		name    string
		horizon time.Duration
	}{{"raised", 2 * h}, {"lowered", h / 2}} {
		name, horizon := to.name, to.horizon
		if err := s.Fleet().StopOne(ctx, demo.Publisher); err != nil {
			return granted, err
		}
		vars := plannedWithin(horizon)(demo.Publisher)
		maps.Copy(vars, s.apiEnv())
		if err := s.Add(ctx, w.cfg.Bin, demo.Publisher, demo.Publisher, vars); err != nil {
			return granted, err
		}
		if err := s.dial(); err != nil {
			return granted, err
		}
		w.cfg.View.Step("the horizon is " + name)
		if err := grant(name); err != nil {
			return granted, err
		}
		if err := lifecycle.Sleep(ctx, planSettles); err != nil {
			return granted, err
		}
		if err := grant(name + "-and-settled"); err != nil {
			return granted, err
		}
	}
	return granted, nil
}

// clock sets the database's clock ahead for new sessions of this installation alone, as if somebody had set the server's.
func (w *backstops) clock(ctx context.Context, t *tally) (err error) {
	return w.open(ctx, t, opening{env: graced(0)}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		const n = 100
		end := s.soon(10 * time.Minute)
		ids, err := s.grant(ctx, template, n, grantUntil(end))
		if err != nil {
			return err
		}
		first, last := atoi(ids[0]), atoi(ids[n-1])+1
		stopped, code, err := w.anHourAhead(ctx, s)
		if err != nil {
			return err
		}
		e, err := s.endings(ctx, first, last)
		if err != nil {
			return err
		}
		want(t, "stopped", boolean(stopped), Equal, 1)
		want(t, "status_exit", code, Equal, 1)
		want(t, "expired_meanwhile", e.expired, Equal, 0)
		want(t, "early", e.early, Equal, 0)
		// It goes on once the clock is right: coupons that end now expire.
		// The audit's own reading may be of the hour ahead.
		var now time.Time
		if err := s.DB().QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(3)").Scan(&now); err != nil {
			return fmt.Errorf("reading the clock: %w", err)
		}
		soon := now.Add(6 * time.Second).Truncate(time.Second)
		more, err := s.grant(ctx, template, n, func(i int, g *client.Grant) { g.ExpiresAt, g.GrantKey = &soon, fmt.Sprintf("after-%d", i) })
		if err != nil {
			return err
		}
		first, last = atoi(more[0]), atoi(more[n-1])+1
		if err := s.allEnded(ctx, first, last, time.Minute); err != nil {
			return err
		}
		if e, err = s.endings(ctx, first, last); err != nil {
			return err
		}
		want(t, "expired_afterwards", e.expired, Equal, n)
		want(t, "early_afterwards", e.early, Equal, 0)
		return nil
	})
}

// anHourAhead sets the clock ahead for a while: whether the expirer was seen to stop, and the exit code of status.
func (w *backstops) anHourAhead(ctx context.Context, s *shop) (stopped bool, code int, err error) {
	back, err := w.aheadBy(ctx, s, time.Hour)
	if err != nil {
		return false, 0, err
	}
	defer func() { err = errors.Join(err, back()) }()
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = until(limit, func() (bool, error) {
		said, err := w.lapsectl(limit, s, nil, "clock", "status", "--json")
		stopped = said.code == 1
		return stopped, err
	})
	if err != nil && (ctx.Err() != nil || limit.Err() == nil) {
		return false, 0, err
	}
	status, err := w.lapsectl(ctx, s, nil, "status", "--json")
	if err != nil {
		return false, 0, err
	}
	return stopped, status.code, lifecycle.Sleep(ctx, 10*time.Second)
}
