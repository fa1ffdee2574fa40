package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	steadyRate   = 2000
	exactMost    = 5000
	grantsEach   = 500 // in one event
	issueWithin  = 24 * time.Hour
	planHorizon  = 30 * time.Minute
	brakedMost   = 20_000
	brakedTenths = 10 // seconds that a braked spike takes
)

// siteOf says what the sites of the scenarios are like; everything that is not said is as it is by default.
func (b *bench) siteOf(name string) siteConfig {
	of := func(worker string, vars map[string]string) func(string) map[string]string {
		return func(w string) map[string]string {
			if w == worker || worker == "" {
				return vars
			}
			return nil
		}
	}
	sc := siteConfig{workers: allWorkers()}
	switch name {
	case "rivals":
		sc.workers = []string{}
	case "braked":
		sc.env = of(demo.Expirer, map[string]string{"LAPSE__EXPIRY__MAX_RATE": strconv.Itoa(b.brake())})
	case "api":
		sum := sha256.Sum256([]byte(b.cfg.token))
		sc.env = of(demo.Publisher, map[string]string{
			"LAPSE__API__TOKENS": fmt.Sprintf(`[{name: bench, hash: %s, scopes: [issue, order, read, ops]}]`, hex.EncodeToString(sum[:])),
		})
	case "horizon":
		sc.horizon = planHorizon
		sc.env = func(worker string) map[string]string {
			vars := map[string]string{"LAPSE__LADDER__HORIZON": planHorizon.String()}
			if worker == demo.Publisher { // so that the next slice is walked now, and not at the next full minute
				vars["LAPSE__PLANNER__SLICE"], vars["LAPSE__PLANNER__POLL"] = "1s", "200ms"
			}
			return vars
		}
	case "notify": // windows stay open: gathering is measured, not telling
		sc.env = of(demo.Notifier, map[string]string{"LAPSE__NOTICE__QUIET": "1h", "LAPSE__NOTICE__MAX_AGE": "2h"})
	}
	return sc
}

func (b *bench) steadies() []subject {
	n := steadyRate * int(b.cfg.Steady/time.Second)
	return []subject{
		{name: "lapse", what: "the whole fleet; ends are spread over each second", run: b.lapse(n, pace{steadyRate, 1000}, allWorkers()...)},
		{name: "full_seconds", what: "the whole fleet; all ends of a second are at its beginning", run: b.lapse(n, pace{steadyRate, 1}, allWorkers()...)},
	}
}

func (b *bench) exacts() []subject {
	return []subject{{name: "lapse", what: "the whole fleet", run: b.lapse(min(b.cfg.Size, exactMost), pace{}, allWorkers()...)}}
}

// braked is how many coupons that spike has, brake its setting.
func (b *bench) braked() int { return min(b.cfg.Size, brakedMost) }

func (b *bench) brake() int { return max(1, b.braked()/brakedTenths) }

func (b *bench) maxRates() []subject {
	run := func(ctx context.Context) (metrics, error) {
		s, err := b.fresh(ctx, "braked", twoWorkers()...)
		if err != nil {
			return nil, err
		}
		m, err := b.expire(ctx, s, b.braked(), pace{}, twoWorkers())
		if err == nil {
			m["max_rate_per_s"] = float64(b.brake())
		}
		return m, err
	}
	return []subject{{name: "lapse", what: "publisher and expirer, with expiry.max_rate set", run: run}}
}

// fresh gives a site that is empty, with workers that have just been started.
func (b *bench) fresh(ctx context.Context, name string, workers ...string) (*site, error) {
	s, err := b.site(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := s.clear(ctx); err != nil {
		return nil, err
	}
	return s, s.work(ctx, workers...)
}

func (b *bench) issues() []subject {
	return []subject{{name: "lapse", what: "the publisher, of the whole fleet", run: b.issue}}
}

// issue sends grants as an issuer does, 500 in an event, and waits for issued events and an empty outbox.
func (b *bench) issue(ctx context.Context) (m metrics, err error) {
	s, err := b.fresh(ctx, "lapse", allWorkers()...)
	if err != nil {
		return nil, err
	}
	n := b.cfg.Size
	end, err := s.soon(ctx, issueWithin)
	if err != nil {
		return nil, err
	}
	var ms []broker.Message
	for from := 0; from < n; from += grantsEach {
		grants := make([]coupon.Grant, 0, grantsEach)
		for i := from; i < min(from+grantsEach, n); i++ {
			grants = append(grants, coupon.Grant{
				Key: "bench-" + strconv.Itoa(i), TemplateID: s.template, UserID: "user-" + strconv.Itoa(i%100_000), BatchID: "bench", ExpiresAt: end,
			})
		}
		id := "bench-grants-" + strconv.Itoa(from)
		body, err := s.Codec().Grants(id, time.Now().UTC(), grants)
		if err != nil {
			return nil, fmt.Errorf("a grant event: %w", err)
		}
		ms = append(ms, broker.Message{
			Exchange: s.Ladder().Issuance(), Key: event.KeyGrant, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true,
		})
	}
	e, err := listen(s.stack.AMQPURL.Reveal(), s.Ladder().Events())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	e.expectAmong(1, 20*n, n, "issued")
	start := time.Now()
	if err := errors.Join(s.publisher.Publish(ctx, ms)...); err != nil {
		return nil, fmt.Errorf("sending grants: %w", err)
	}
	if err := e.wait(ctx, start, s.Fleet().Ended); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := rig.Until(limited, 5*time.Millisecond, func() (bool, error) {
		left, err := s.count(limited, "SELECT EXISTS(SELECT 1 FROM outbox)")
		return left == 0, err
	}); err != nil {
		return nil, fmt.Errorf("waiting for an empty outbox: %w", err)
	}
	took := time.Since(start)
	rows, err := s.count(ctx, "SELECT COUNT(*) FROM coupon")
	if err != nil {
		return nil, err
	}
	waiting, err := s.purge(ctx)
	if err != nil {
		return nil, err
	}
	m = metrics{"coupons": float64(n), "took_s": took.Seconds(), "per_s": float64(n) / took.Seconds()}
	heard, twice, _ := e.sum()
	m["lost"], m["doubled"] = float64(max(0, n-heard, n-rows, n-waiting)), float64(max(0, rows-n)+twice)
	m["rss_publisher_mib"], err = s.peak(demo.Publisher)
	return m, err
}

func (b *bench) sweeps() []subject {
	return []subject{{name: "lapse", what: "publisher and one expirer, sweeping as it does by default", run: b.sweep}}
}

// sweep plants coupons that ended long ago and starts an expirer.
func (b *bench) sweep(ctx context.Context) (m metrics, err error) {
	s, err := b.fresh(ctx, "lapse", demo.Publisher)
	if err != nil {
		return nil, err
	}
	due, err := s.soon(ctx, -time.Hour)
	if err != nil {
		return nil, err
	}
	c, err := s.plant(ctx, b.cfg.Size, pace{}, due)
	if err != nil {
		return nil, err
	}
	e, err := listen(s.stack.AMQPURL.Reveal(), s.Ladder().Events())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	e.expect(c.first, c.n)
	if err := s.Start(ctx, demo.Expirer); err != nil {
		return nil, err
	}
	if err := e.wait(ctx, time.Now(), s.Fleet().Ended); err != nil {
		return nil, err
	}
	ahead, err := s.ahead(ctx)
	if err != nil {
		return nil, err
	}
	if m, err = b.weigh(ctx, s, e, c); err != nil {
		return nil, err
	}
	var first time.Time
	if err := s.db.QueryRowContext(ctx, "SELECT MIN(at) FROM coupon_history WHERE to_status = 4").Scan(&first); err != nil {
		return nil, fmt.Errorf("reading the first transition: %w", err)
	}
	heard, _, last := e.sum()
	took := last.Add(ahead).Sub(first)
	for name := range m { // the lateness of what is an hour late says nothing
		switch name {
		case "coupons", "lost", "doubled", "early", "not_expired", "swept":
		default:
			delete(m, name)
		}
	}
	m["took_s"], m["per_s"] = took.Seconds(), float64(heard)/took.Seconds()
	m["rss_expirer_mib"], err = s.peak(demo.Expirer)
	return m, err
}
