package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/operation"
	"github.com/lapsehq/lapse/pkg/replay"
	"github.com/lapsehq/lapse/pkg/store"
)

type eventsReplay struct {
	From     string   `required:"" placeholder:"INSTANT" help:"Events of what happened from here on, RFC 3339."`
	To       string   `required:"" placeholder:"INSTANT" help:"And before this."`
	Type     []string `placeholder:"TYPE" help:"Only events of these types: coupon.expired, or expired."`
	Template string   `placeholder:"ID" help:"Only of this template's coupons."`
	Rate     string   `default:"500/s" placeholder:"N/s" help:"At most so many events a second; 0: no bound."`
	Yes      bool     `help:"Do it. Without, the events are only counted."`

	FromScratch bool `help:"Begin again, instead of going on where an unfinished run of the same command stands."`
	byFlags
	JSON bool `name:"json" help:"Print JSON."`
}

// Help says what consumers see of it.
func (c *eventsReplay) Help() string {
	return `Publishes events of coupons again, from their history and that of the archive: with the ids and bodies that they had first, in the order
of coupon and version. All that listen to the exchange get them: consumers that drop repeats by source and id, as the contract asks, take up
what they lack. Told again are the steps of coupons (issued, locked, … reinstated); refusals and reminders have no history. Without --yes events
are only counted. Interrupted, or killed, the same command goes on, and repeats a page at most.`
}

// replayJSON is what --json prints.
type replayJSON struct {
	DryRun    bool             `json:"dry_run"`
	Resumed   bool             `json:"resumed"`
	Finished  bool             `json:"finished"`
	Operation string           `json:"operation,omitempty"`
	Steps     int64            `json:"steps"`  // of history, looked at
	Events    int64            `json:"events"` // published; of a dry run: to be published
	Types     map[string]int64 `json:"types,omitempty"`
	TookMS    int64            `json:"took_ms"`
}

func (c *eventsReplay) ask() (a coupon.ReplayAsk, perSecond float64, err error) {
	from, err1 := time.Parse(time.RFC3339, c.From)
	to, err2 := time.Parse(time.RFC3339, c.To)
	if err1 != nil || err2 != nil {
		return a, 0, fmt.Errorf("--from, --to: must be instants such as 2026-11-10T00:00:00+08:00, got %q and %q", clipped(c.From), clipped(c.To))
	}
	a.From, a.To = from.UTC(), to.UTC()
	if err := a.Validate(); err != nil {
		return a, 0, fmt.Errorf("--%w", err)
	}
	if a.Keys, err = keysOf(c.Type); err != nil {
		return a, 0, err
	}
	told := make([]string, 0, len(event.LifeTypes()))
	for _, typ := range event.LifeTypes() {
		told = append(told, versioned.ReplaceAllString(typ, ""))
	}
	for _, key := range a.Keys {
		if !slices.Contains(told, key) {
			return a, 0, fmt.Errorf("--type: %s is no step of a coupon, and has no history", key)
		}
	}
	if c.Template != "" {
		if a.Template, err = parseID("--template", c.Template); err != nil {
			return a, 0, err
		}
	}
	if c.Rate != "0" {
		perSecond, err = parseRate(c.Rate, operation.MaxRate)
	}
	return a, perSecond, err
}

// Run replays, or counts.
func (c *eventsReplay) Run(ctx context.Context, s *system) error {
	a, perSecond, err := c.ask()
	if err := errors.Join(err, c.check(s)); err != nil {
		return err
	}
	keys := []string{keyInstallation}
	if c.Yes {
		keys = append(keys, keyBroker)
	}
	cfg, err := s.settings(keys...)
	if err != nil {
		return err
	}
	rc := replay.DefaultConfig()
	rc.Rate = perSecond
	owner := "lapsectl-" + uuid.NewString()
	return s.withStore(ctx, func(db *store.Store) error {
		if !c.Yes {
			r, err := replay.New(rc, owner, db, nil, "")
			if err != nil {
				return err //nolint:wrapcheck // says what it does
			}
			return c.count(ctx, s, r, &a)
		}
		var exchange string
		bundling := broker.Bundling{Most: 1} // which any release takes
		client, _, err := s.broker(cfg, func(l *ladder.Ladder) ladder.Plan {
			exchange = l.Events()
			bundling.Exchange, bundling.Key = l.Bundles(), l.BundleKey
			return replayed(l)
		})
		if err != nil {
			return err
		}
		return withPublisher(ctx, client, func(p *broker.Publisher) error {
			bundling.Publisher = p
			r, err := replay.New(rc, owner, db, bundling, exchange)
			if err != nil {
				return err //nolint:wrapcheck // says what it does
			}
			return c.replay(ctx, s, db, r, &a, exchange)
		})
	})
}

// replayed is where replayed events go: to whoever listens, and to the queues of our own.
func replayed(l *ladder.Ladder) ladder.Plan {
	return part(l, l.Events(), l.Bundles(), l.Ledger(), l.Notice())
}

func (c *eventsReplay) count(ctx context.Context, s *system, r *replay.Replay, a *coupon.ReplayAsk) error {
	began := time.Now()
	bar := newProgress(s, "steps looked at", 0, 0)
	p, types, err := r.Count(ctx, a, func(p coupon.ReplayPlace) { bar.set(p.Seen) })
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	return c.report(s, replayJSON{DryRun: true, Steps: p.Seen, Events: p.Events, Types: types, TookMS: time.Since(began).Milliseconds()})
}

func (c *eventsReplay) replay(ctx context.Context, s *system, db *store.Store, r *replay.Replay, a *coupon.ReplayAsk, exchange string) error {
	began := time.Now()
	w, p, err := r.Claim(ctx, a, c.FromScratch)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	id := strconv.FormatUint(w.ID, 10)
	if w.Resumed {
		s.note("going on with operation %s, begun at %s, %s events published so far (--from-scratch begins again)", id, instant(w.Created), grouped(int(p.Events)))
	}
	deed := store.Deed{Actor: c.Actor, Reason: c.Reason, Action: replay.Kind, Subject: "operation " + id, Detail: map[string]any{
		"from": instant(a.From), "to": instant(a.To), "types": a.Keys, "template": c.Template, "exchange": exchange, "resumed": w.Resumed,
	}}
	if err := db.RecordDeed(ctx, deed); err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	bar := newProgress(s, "events published", 0, p.Events)
	p, err = r.Run(ctx, a, w, p, func(p coupon.ReplayPlace) { bar.set(p.Events) })
	deed.Action, deed.Detail = replay.Kind+".done", map[string]any{"finished": p.Done, "events": p.Events}
	if told := db.RecordDeed(context.WithoutCancel(ctx), deed); err == nil {
		err = told
	}
	if err != nil {
		return fmt.Errorf("%w; %s events are published, the same command goes on", err, grouped(int(p.Events)))
	}
	return c.report(s, replayJSON{Resumed: w.Resumed, Finished: p.Done, Operation: id, Steps: p.Seen, Events: p.Events, TookMS: time.Since(began).Milliseconds()})
}

func (c *eventsReplay) report(s *system, x replayJSON) error {
	if c.JSON {
		return s.printJSON(x)
	}
	word := "published"
	if x.DryRun {
		word = "to publish"
	}
	rows := table{{word, grouped(int(x.Events)) + " events"}, {"looked at", grouped(int(x.Steps)) + " steps"}}
	for _, key := range slices.Sorted(maps.Keys(x.Types)) {
		rows = append(rows, []string{"  " + key, grouped(int(x.Types[key]))})
	}
	text := rows.String()
	if x.DryRun {
		text += "nothing was published; --yes does it\n"
	}
	return s.print(text)
}

type eventsSample struct {
	Type string `arg:"" help:"The type: coupon.expired.v1, coupon.expired, or expired."`
}

// Help says where they come from.
func (c *eventsSample) Help() string {
	return "Valid events of the type, one a line: the ones that this release's tests hold against code and schemas."
}

// Run prints them.
func (c *eventsSample) Run(_ context.Context, s *system) error {
	types := append(append([]string{event.TypeGrant}, event.OutTypes()...), append(event.OrderTypes(), event.UserTypes()...)...)
	for _, typ := range types {
		name := versioned.ReplaceAllString(typ, "")
		if c.Type != typ && c.Type != name && "coupon."+c.Type != name && "coupon."+c.Type != typ {
			continue
		}
		samples, err := event.Samples(typ)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		for _, sample := range samples {
			if err := s.print(string(compacted(sample.Body)) + "\n"); err != nil {
				return err
			}
		}
		return nil
	}
	slices.Sort(types)
	return fmt.Errorf("there is no event type %q; there are %v", clipped(c.Type), types)
}
