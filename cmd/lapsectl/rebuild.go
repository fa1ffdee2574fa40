package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/rebuild"
	"github.com/lapsehq/lapse/pkg/store"
)

type rebuildCommand struct {
	byFlags
	Rate        string `placeholder:"N/s" help:"At most so many triggers a second."`
	FromScratch bool   `help:"Begin again, instead of going on where an unfinished rebuild stands."`
	DryRun      bool   `help:"Count what there is to do, and do nothing."`
	JSON        bool   `name:"json" help:"Print JSON."`
}

// Help says when to use it.
func (c *rebuildCommand) Help() string {
	return `For a broker that has lost its queues or was replaced by an empty one (with delay.mechanism zset: for such a Redis). Reads every coupon that waits for its end (within the horizon) and every lock, and publishes their triggers again. Safe while everything runs, and as often as wanted: a trigger that is out already changes nothing, it only takes room in the broker. What is overdue by more than the sweep's grace is left to the sweep.`
}

// rebuildJSON is what --json prints.
type rebuildJSON struct {
	DryRun   bool   `json:"dry_run"`
	Resumed  bool   `json:"resumed"`
	Finished bool   `json:"finished"`
	Began    string `json:"began_at"`
	Until    string `json:"until"`   // end of the horizon; empty: unlimited
	Expires  int64  `json:"expires"` // published since it began; of a dry run: to be published
	Unlocks  int64  `json:"unlocks"`
	Overdue  int64  `json:"overdue"` // left to the sweep
	Beyond   int64  `json:"beyond"`  // left to the planner
	TookMS   int64  `json:"took_ms"`
}

// parseRate reads N/s or N; 0 for none.
func parseRate(text string, most int) (float64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || !(n >= 1 && n <= float64(most)) {
		return 0, fmt.Errorf("--rate: must be a number a second from 1 to %d, such as 500/s, got %q", most, clipped(text))
	}
	return n, nil
}

// target names the server that holds the triggers and what is ours there, without the password.
func target(cfg settings) string {
	address := cfg.Broker.URL
	if cfg.Delay.Mechanism == config.MechanismZSet {
		address = cfg.Delay.Redis.URL
	}
	u, err := url.Parse(address.Reveal())
	if err != nil { // the configuration was checked
		u = &url.URL{}
	}
	vhost := strings.TrimPrefix(u.Path, "/")
	if cfg.Broker.Vhost != "" && cfg.Delay.Mechanism != config.MechanismZSet {
		vhost = cfg.Broker.Vhost
	}
	const most = 128
	name := cfg.Ladder.Prefix + " at " + u.Host + "/" + vhost
	return name[:min(len(name), most)]
}

// Run rebuilds.
func (c *rebuildCommand) Run(ctx context.Context, s *system) error {
	perSecond, err := parseRate(c.Rate, operation.MaxRate)
	if err := errors.Join(err, c.check(s)); err != nil {
		return err
	}
	cfg, err := s.settings(keyInstallation, keyBroker)
	if err != nil {
		return err
	}
	switch cfg.Delay.Mechanism {
	case config.MechanismSweep:
		return errors.New("delay.mechanism is sweep: there are no triggers, the sweep finds every end by its row")
	case config.MechanismWheel:
		return errors.New("delay.mechanism is wheel: there are no triggers to lose, the wheels read the rows themselves")
	}
	ask := coupon.RebuildAsk{Target: target(cfg), FromScratch: c.FromScratch, Grace: cfg.Expiry.Sweep.Grace}
	return s.withStore(ctx, func(db *store.Store) error {
		if c.DryRun {
			return c.dryRun(ctx, s, db, ask)
		}
		return c.rebuild(ctx, s, db, cfg, ask, perSecond)
	})
}

func (c *rebuildCommand) dryRun(ctx context.Context, s *system, db *store.Store, ask coupon.RebuildAsk) error {
	op, place, err := rebuild.New(rebuild.DefaultConfig(), "", db, nil, zap.NewNop()).Peek(ctx, ask)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	n, err := db.RebuildCounts(ctx, place)
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	return c.report(s, rebuildJSON{
		DryRun: true, Resumed: op.Resumed, Began: instant(op.Created), Until: horizonEnd(place),
		Expires: n.Expires, Unlocks: n.Unlocks, Overdue: n.Overdue, Beyond: n.Beyond,
	})
}

func horizonEnd(p coupon.RebuildPlace) string {
	if coupon.IsNever(p.Until) {
		return ""
	}
	return instant(p.Until)
}

func (c *rebuildCommand) rebuild(ctx context.Context, s *system, db *store.Store, cfg settings, ask coupon.RebuildAsk, perSecond float64) error {
	rc := rebuild.DefaultConfig()
	rc.Rate = perSecond
	walk := func(d rebuild.Deliverer) error {
		return c.walk(ctx, s, db, rebuild.New(rc, "lapsectl-"+uuid.NewString(), db, d, zap.NewNop()), ask)
	}
	if cfg.Delay.Mechanism == config.MechanismZSet {
		z, err := delay.NewZSet(cfg.Delay.Redis, delay.ZSetDeps{Prefix: cfg.Ladder.Prefix})
		if err != nil {
			return fmt.Errorf("delay.redis.%w", err)
		}
		return errors.Join(walk(z), z.Close())
	}
	client, l, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan { return l.Plan() })
	if err != nil {
		return err
	}
	reach, cancel := context.WithTimeout(ctx, readyLimit)
	err = client.Prepare(reach)
	cancel()
	if err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	return withPublisher(ctx, client, func(p *broker.Publisher) error { return walk(delay.NewLadder(l, p)) })
}

func (c *rebuildCommand) walk(ctx context.Context, s *system, db *store.Store, r *rebuild.Rebuild, ask coupon.RebuildAsk) error {
	began := time.Now()
	w, place, err := r.Claim(ctx, ask)
	if err != nil {
		return fmt.Errorf("claim the rebuild: %w", err)
	}
	if w.Resumed {
		s.note("going on with the rebuild begun at %s, %s triggers published so far (--from-scratch begins again)",
			instant(w.Created), grouped(int(place.Expires+place.Unlocks)))
	}
	n, err := db.RebuildCounts(ctx, place)
	known := err == nil
	if err != nil {
		s.note("how many there are cannot be counted: %v", err)
	}
	first := place.Expires + place.Unlocks
	deed := store.Deed{Actor: c.Actor, Reason: c.Reason, Action: store.DeedRebuild, Subject: ask.Target, Detail: map[string]any{
		"resumed": w.Resumed, "began_at": instant(w.Created), "until": horizonEnd(place),
		"expires": n.Expires, "unlocks": n.Unlocks, "overdue": n.Overdue, "beyond": n.Beyond,
	}}
	if err = db.RecordDeed(ctx, deed); err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	var total int64
	if known {
		total = first + n.Expires + n.Unlocks
	}
	bar := newProgress(s, "triggers", total, first)
	place, err = r.Run(ctx, w, place, func(p coupon.RebuildPlace) { bar.set(p.Expires + p.Unlocks) })
	bar.close()
	deed.Action, deed.Detail = store.DeedRebuildDone, map[string]any{
		"finished": place.Done, "began_at": instant(w.Created), "expires": place.Expires, "unlocks": place.Unlocks,
	}
	if told := db.RecordDeed(context.WithoutCancel(ctx), deed); err == nil {
		err = told
	}
	if err != nil {
		return fmt.Errorf("%w; %s triggers are published, the same command goes on", err, grouped(int(place.Expires+place.Unlocks)))
	}
	return c.report(s, rebuildJSON{
		Resumed: w.Resumed, Finished: place.Done, Began: instant(w.Created), Until: horizonEnd(place),
		Expires: place.Expires, Unlocks: place.Unlocks, Overdue: n.Overdue, Beyond: n.Beyond, TookMS: time.Since(began).Milliseconds(),
	})
}

func (c *rebuildCommand) report(s *system, x rebuildJSON) error {
	if c.JSON {
		return s.printJSON(x)
	}
	word, until := "published", "unlimited"
	if x.DryRun {
		word = "to publish"
	}
	if x.Until != "" {
		until = "until " + x.Until
	}
	return s.print(table{
		{word, fmt.Sprintf("%s expire triggers, %s unlock triggers", grouped(int(x.Expires)), grouped(int(x.Unlocks)))},
		{"horizon", until},
		{"to the sweep", grouped(int(x.Overdue)) + " overdue"},
		{"to the planner", grouped(int(x.Beyond)) + " beyond the horizon"},
	}.String())
}

// withPublisher runs a publisher while f works with it.
func withPublisher(ctx context.Context, client *broker.Client, f func(*broker.Publisher) error) error {
	publisher := client.NewPublisher()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- publisher.Run(running) }()
	ready, cancel := context.WithTimeout(ctx, readyLimit)
	err := publisher.WaitReady(ready)
	cancel()
	if err == nil {
		err = f(publisher)
	}
	stop()
	return errors.Join(err, <-ended)
}
