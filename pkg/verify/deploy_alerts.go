package verify

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	hurry       = 2 * time.Second // how long a condition must hold, see watch.Options
	firesWithin = 2 * time.Minute
	settleIn    = 15 * time.Second // until everything was scraped while all was well
)

// harm is a fleet to which something is done, with a proxy before each server.
type harm struct {
	*watched
	w                *deploy
	broker, database *rig.Proxy
	undo             []func() error // what must not outlive the fleet, last first
}

// provocation makes an alert true. do returns when it has done so; again is done every second until the alert fires.
type provocation struct {
	alert   string
	env     map[string]map[string]string // by worker
	without string
	before  func(ctx context.Context, h *harm) error // before Prometheus starts
	do      func(ctx context.Context, h *harm) error
	again   func(ctx context.Context, h *harm) error
}

// ProvokedAlerts names the alerts that can be provoked on one machine. For the others, which need a cluster, a clock that jumps, or a
// fault of ours, there are the unit tests of the rules alone.
func ProvokedAlerts() []string {
	var names []string
	for _, p := range provocations() {
		names = append(names, p.alert)
	}
	return names
}

func (w *deploy) provokeNamed(ctx context.Context, t *tally) error {
	for _, p := range provocations() {
		if p.alert == w.alert {
			return w.provoke(ctx, t, p)
		}
	}
	return fmt.Errorf("no provocation of %s", w.alert)
}

func (w *deploy) provokeAll(ctx context.Context, t *tally) error {
	for _, p := range provocations() {
		if err := w.provoke(ctx, t, p); err != nil {
			return fmt.Errorf("%s: %w", p.alert, err)
		}
	}
	return nil
}

// provoke opens a fleet, sees that the alert is silent, provokes it, and waits until it fires.
func (w *deploy) provoke(ctx context.Context, t *tally, p provocation) (err error) {
	h := &harm{w: w}
	env, err := h.proxies()
	defer func() { err = errors.Join(err, h.away()) }()
	if err != nil {
		return err
	}
	o := watching{hurry: hurry, without: p.without, env: func(worker string) map[string]string {
		vars := map[string]string{}
		for name, value := range env {
			vars[name] = value
		}
		for name, value := range p.env[worker] {
			vars[name] = value
		}
		return vars
	}}
	if p.before != nil {
		o.before = func(ctx context.Context, s *shop) error {
			h.watched = &watched{shop: s}
			return p.before(ctx, h)
		}
	}
	return w.watch(ctx, t, o, func(ctx context.Context, x *watched) (err error) {
		h.watched = x
		defer func() { err = errors.Join(err, h.mend()) }()
		if p.do != nil {
			if _, err := x.liveUntil(ctx, settleIn, func() (bool, error) { return false, nil }); err != nil {
				return err
			}
			early, err := x.raised(ctx)
			if err != nil {
				return err
			}
			want(t, p.alert+"_before", boolean(slices.Contains(early, p.alert)), Equal, 0)
			w.cfg.View.Step("provoking " + p.alert)
			if err := p.do(ctx, h); err != nil {
				return err
			}
		}
		fired := false
		for deadline := time.Now().Add(firesWithin); !fired && time.Now().Before(deadline); {
			if p.again != nil {
				if err := p.again(ctx, h); err != nil {
					return err
				}
			}
			if fired, err = x.fires(ctx, p.alert, time.Second); err != nil {
				return err
			}
		}
		want(t, p.alert+"_fires", boolean(fired), Equal, 1)
		return nil
	})
}

// proxies stand between the workers and both servers; the environment says where.
func (h *harm) proxies() (map[string]string, error) {
	u, err := url.Parse(h.w.cfg.Stack.AMQPURL.Reveal())
	if err != nil {
		return nil, errors.New("TEST_AMQP_URL is malformed")
	}
	c, err := mysql.ParseDSN(h.w.cfg.Stack.DSN.Reveal())
	if err != nil {
		return nil, errors.New("TEST_MYSQL_DSN is malformed")
	}
	if h.broker, err = rig.NewProxy(u.Host); err != nil {
		return nil, err
	}
	if h.database, err = rig.NewProxy(c.Addr); err != nil {
		return nil, err
	}
	u.Host = h.broker.Addr()
	return map[string]string{"LAPSE__BROKER__URL": u.String(), "LAPSE__DATABASE__ADDRESS": h.database.Addr()}, nil
}

// away closes the proxies.
func (h *harm) away() error {
	var errs []error
	for _, p := range []*rig.Proxy{h.broker, h.database} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// mend takes back what would keep the fleet from stopping in order.
func (h *harm) mend() error {
	h.broker.Refuse(false)
	h.database.Refuse(false)
	var errs []error
	for _, undo := range slices.Backward(h.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// cut takes a server away.
func cut(p *rig.Proxy) {
	p.Refuse(true)
	p.Cut()
}

// stop stops a worker in order.
func stop(worker string) func(context.Context, *harm) error {
	return func(ctx context.Context, h *harm) error { return h.Fleet().StopOne(ctx, worker) }
}

// hold keeps rows locked until the fleet is done.
func (h *harm) hold(ctx context.Context, where string) error {
	tx, err := h.DB().BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("holding rows: %w", err)
	}
	h.undo = append(h.undo, tx.Rollback)
	if _, err := tx.ExecContext(ctx, "SELECT id FROM coupon WHERE "+where+" FOR UPDATE"); err != nil {
		return fmt.Errorf("holding rows: %w", err)
	}
	return nil
}

// exec changes the database behind the fleet's back.
func (h *harm) exec(ctx context.Context, statement string, args ...any) error {
	if _, err := h.DB().ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// pauseExpirer lets coupons end while the expirer stands still.
func pauseExpirer(ctx context.Context, h *harm) error {
	if err := h.ending(ctx, 200, 5*time.Second); err != nil {
		return err
	}
	if err := h.Fleet().Pause(demo.Expirer); err != nil {
		return err
	}
	return errors.Join(lifecycle.Sleep(ctx, 12*time.Second), h.Fleet().Resume(demo.Expirer))
}
