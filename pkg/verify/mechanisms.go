package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// mechanism is a demo by another delay mechanism, which leaves nothing to the sweep.
func (w *walk) mechanism(name string) func(context.Context, *tally) error {
	return func(ctx context.Context, t *tally) error {
		var found causes
		cfg := w.base(t, w.small, 12*time.Second)
		cfg.Mechanism = name
		cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
			found, err = readCauses(ctx, s.DB())
			return err
		}
		r, err := w.run(ctx, cfg)
		if err != nil {
			return err
		}
		walked(t, "", &r.Report, r.Failures)
		undisturbed(t, "", &r.Report)
		want(t, "expired_by_trigger", found.by["ladder"], Equal, r.Report.Coupons)
		return nil
	}
}

const (
	redisAway  = time.Minute
	lateAtMost = 40 * time.Second // the outage is noticed, then the sweep's grace for one: 10 s each, and its rounds
)

// redisDown puts the workers' connections to Redis behind a proxy, which refuses them for a minute while coupons end.
func (w *walk) redisDown(ctx context.Context, t *tally) (err error) {
	u, err := url.Parse(w.cfg.Stack.RedisURL.Reveal())
	if err != nil || u.Host == "" {
		return errors.New("no Redis in this stack: scripts/stack up --redis")
	}
	proxy, err := rig.NewProxy(u.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Close()) }()
	u.Host = proxy.Addr()

	var found causes
	cfg := w.base(t, w.small, redisAway)
	cfg.First, cfg.Closing = 15*time.Second, lateAtMost
	cfg.Mechanism, cfg.Allow.Sweep, cfg.Allow.MaxLate = config.MechanismZSet, true, lateAtMost
	cfg.Env = func(string) map[string]string { return map[string]string{"LAPSE__DELAY__REDIS__URL": u.String()} }
	cfg.During = func(ctx context.Context, s *demo.Stage) error {
		proxy.Refuse(true)
		defer proxy.Refuse(false)
		began := s.Now()
		s.Step(fmt.Sprintf("Redis is out of the workers' reach for %s, %d connections cut", redisAway, proxy.Cut()))
		limit, cancel := context.WithTimeout(ctx, redisAway+30*time.Second)
		defer cancel()
		return until(limit, func() (bool, error) { return s.Now().Sub(began) >= redisAway, nil })
	}
	cfg.Inspect = func(ctx context.Context, s *demo.Stage, _ *audit.Report) (err error) {
		found, err = readCauses(ctx, s.DB())
		return err
	}
	r, err := w.run(ctx, cfg)
	if err != nil {
		return err
	}
	walked(t, "", &r.Report, r.Failures)
	want(t, "expired_by_sweep", found.by["sweep"], AtLeast, r.Report.Coupons/10)
	want(t, "events", r.Report.Events, Equal, r.Report.Coupons)
	want(t, "transition_max_ms", r.Report.TransitionLateness.Max, Below, int(lateAtMost.Milliseconds()))
	return nil
}
