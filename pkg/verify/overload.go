package verify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// overload is the verification of a fleet that is asked for more than it can do.
type overload struct {
	checkout
	size overloadSize
}

type overloadSize struct {
	window time.Duration // for how long ten times the capacity is asked for
	due    int           // coupons that end each second meanwhile
}

func overloadSizeOf(scale string) (overloadSize, error) {
	switch scale {
	case ScaleSmall:
		return overloadSize{window: 15 * time.Second, due: 20}, nil
	case ScaleFull:
		return overloadSize{window: time.Minute, due: 50}, nil
	default:
		return overloadSize{}, fmt.Errorf("scale: must be %s or %s, got %q", ScaleSmall, ScaleFull, scale)
	}
}

const (
	overloadTimes  = 10
	overloadMemory = 512              // MiB a worker may hold: the limit that the chart sets
	overloadLate   = 10 * second      // a coupon that ends in the midst of it
	overloadAnswer = 12 * time.Second // the slowest answer: api.request_timeout, and what a busy machine adds
	overloadLead   = 8 * time.Second  // from the last grant beforehand to the first end
	overloadTurn   = 100 * time.Millisecond
	overloadSample = time.Second
)

// sections in the order in which they run.
func (w *overload) sections() []section {
	return []section{
		{"intake", "ten times as much is asked for as is granted: bounded memory, refusals that say when to come again, coupons that end on time, and nothing lost", w.intake},
	}
}

// OverloadSections names the sections, in order.
func OverloadSections() []string {
	var names []string
	for _, s := range (&overload{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// Overload verifies a fleet that is asked for more than it can do, at a scale of small or full. Its error and its result are as those
// of Walk.
func Overload(ctx context.Context, cfg Config, scale string) (Result, error) {
	size, err := overloadSizeOf(scale)
	if err := errors.Join(err, cfg.validateOnly(OverloadSections())); err != nil {
		return cfg.result("overload"), err
	}
	w := &overload{checkout: checkout{cfg: cfg}, size: size}
	return cfg.verify(ctx, "overload", w.sections(), func(i int) { w.index = uint64(i) })
}

// asking is what was asked for in the window, and what was seen meanwhile.
type asking struct {
	events *granting
	api    turnout
	seen   backlog
}

func (w *overload) intake(ctx context.Context, t *tally) error {
	// The limits of the API as they come.
	limits := publisherOnly(map[string]string{"LAPSE__API__LIMITS__ISSUE__PER_SECOND": "2000", "LAPSE__API__LIMITS__ISSUE__BURST": "4000"})
	return w.fleetOfAll(ctx, t, opening{env: limits, deaf: true}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, func(t *client.Terms) { t.Rule.After = beyondReminders.String() })
		if err != nil {
			return err
		}
		w.cfg.View.Step("what this machine does when it is not asked for more")
		can, err := s.measure(ctx, template)
		if err != nil {
			return err
		}
		caller, err := s.caller()
		if err != nil {
			return err
		}
		defer caller.Close()
		calm := s.claim(ctx, caller, template, claiming{name: "calm", over: claimsFor, callers: calmCallers})
		apiRate := float64(calm.ok) / claimsFor.Seconds()
		told(t, "grants_per_s", int(can.grants))
		told(t, "expiries_per_s", int(can.expiries))
		want(t, "claims_per_s", int(apiRate), AtLeast, 1)

		ending, err := w.endingMeanwhile(ctx, s)
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%.0f grants a second by events and %.0f by the API, for %s", overloadTimes*can.grants, overloadTimes*apiRate, w.size.window))
		a, err := w.ask(ctx, s, caller, template, overloadTimes*can.grants, overloadTimes*apiRate)
		if err != nil {
			return err
		}
		over := s.Now()
		if err := w.recovered(ctx, s, a, can.grants); err != nil {
			return err
		}
		told(t, "recovered_after_s", int(s.Now().Sub(over).Seconds()))
		return w.judge(ctx, s, a, ending, can.grants, apiRate)
	})
}

// publisherOnly gives the publisher these variables, and nobody else.
func publisherOnly(vars map[string]string) func(string) map[string]string {
	return func(worker string) map[string]string {
		if worker != demo.Publisher {
			return nil
		}
		return vars
	}
}

// endingMeanwhile grants coupons of a template of their own that end, second by second, in the window that begins now.
func (w *overload) endingMeanwhile(ctx context.Context, s *shop) (template string, err error) {
	if template, err = s.template(ctx, nil); err != nil {
		return "", err
	}
	n := w.size.due * int(w.size.window.Seconds())
	first := s.soon(overloadLead + time.Duration(n/spikeGrants)*time.Second)
	_, err = s.grant(ctx, template, n, func(i int, g *client.Grant) {
		end := first.Add(time.Duration(i/w.size.due) * time.Second)
		g.ExpiresAt = &end
	})
	if err != nil {
		return "", err
	}
	return template, lifecycle.Sleep(ctx, first.Add(-time.Second).Sub(s.Now()))
}

// ask asks for so many a second of each kind.
func (w *overload) ask(ctx context.Context, s *shop, caller *client.Client, template string, events, claims float64) (*asking, error) {
	a := &asking{events: &granting{s: s, template: template, name: "over"}}
	out, stop, err := s.Publisher(ctx)
	if err != nil {
		return nil, err
	}
	watching, enough := context.WithCancel(ctx)
	var watch errgroup.Group
	watch.Go(func() error { return a.seen.watch(watching, s) })
	var all errgroup.Group
	all.Go(func() error { return a.events.at(ctx, out, events, w.size.window) })
	all.Go(func() error {
		a.api = s.claim(ctx, caller, template, claiming{name: "crowd", over: w.size.window, callers: crowdCallers, rate: claims})
		return nil
	})
	err = all.Wait()
	enough()
	return a, errors.Join(err, watch.Wait(), stop())
}

// at asks for so many grants a second. What the broker does not take in time is asked for later, and less of it.
func (g *granting) at(ctx context.Context, out *broker.Publisher, perSecond float64, over time.Duration) error {
	began := time.Now()
	for turn := 1; time.Since(began) < over; turn++ {
		due := int(perSecond*time.Since(began).Seconds()) - g.sent
		if n := min(due/capacityChunk, mostEvents); n > 0 {
			if err := g.send(ctx, out, n); err != nil {
				return err
			}
		}
		if err := lifecycle.Sleep(ctx, time.Until(began.Add(time.Duration(turn)*overloadTurn))); err != nil {
			return err
		}
	}
	return nil
}

const mostEvents = 500 // published at once

// recovered waits until everything that was asked for is granted and told of.
func (w *overload) recovered(ctx context.Context, s *shop, a *asking, perSecond float64) error {
	w.cfg.View.Step(fmt.Sprintf("%d grants were asked for by events, %d claims were answered; waiting until all of it is done", a.events.sent, a.api.ok+a.api.refused))
	limit, cancel := context.WithTimeout(ctx, draining(a.events.sent)+time.Duration(3*float64(a.events.sent)/perSecond)*time.Second)
	defer cancel()
	client, err := s.Client()
	if err != nil {
		return err
	}
	queue := s.Ladder().Issuance()
	err = until(limit, func() (bool, error) {
		depths, err := client.Depths(limit, []string{queue})
		if err == nil && depths[queue] > 0 {
			err = lifecycle.Sleep(limit, overloadSample)
		}
		return depths[queue] == 0, err
	})
	if err == nil {
		err = s.have(limit, "SELECT COUNT(*) FROM grant_key WHERE issuer = '' AND grant_key LIKE 'over-%'", a.events.sent)
	}
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		return nil // the checks say what is missing
	}
	return err
}

const (
	dueQuery = `SELECT COUNT(*), COALESCE(SUM(c.status = 4), 0), COALESCE(SUM(h.at < h.expires_at), 0), COUNT(*) - COUNT(DISTINCT c.id),
		COALESCE(SUM(h.cause = 'sweep'), 0) FROM coupon c LEFT JOIN coupon_history h ON h.coupon_id = c.id AND h.to_status = 4 WHERE c.template_id = ?`
	// How long after its end a coupon was moved, was told of by an event that the notifier took, and was put into a notice.
	stagesQuery = `SELECT TIMESTAMPDIFF(MICROSECOND, h.expires_at, h.at), COALESCE(TIMESTAMPDIFF(MICROSECOND, h.expires_at, i.added_at), -1),
		COALESCE(TIMESTAMPDIFF(MICROSECOND, h.expires_at, n.created_at), -1)
		FROM coupon c JOIN coupon_history h ON h.coupon_id = c.id AND h.to_status = 4
		LEFT JOIN notice_item i ON i.coupon_id = c.id LEFT JOIN notice n ON n.window_id = i.window_id AND n.channel = 'inbox' WHERE c.template_id = ?`
)

func (w *overload) judge(ctx context.Context, s *shop, a *asking, ending string, grants, claims float64) error {
	t := s.t
	granted, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM grant_key WHERE issuer = '' AND grant_key LIKE 'over-%'")
	if err != nil {
		return err
	}
	claimed, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM grant_key WHERE issuer = '' AND grant_key LIKE 'crowd-%'")
	if err != nil {
		return err
	}
	seconds := w.size.window.Seconds()
	want(t, "events_times_capacity", float64(a.events.sent)/seconds/grants, AtLeast, overloadTimes/2)
	told(t, "claims_offered_percent_of_capacity", int(100*float64(a.api.all())/seconds/claims))
	want(t, "confirmed_events_lost", max(0, a.events.sent-granted), Equal, 0)
	want(t, "answered_claims_lost", max(0, a.api.ok-claimed), Equal, 0)
	told(t, "claims_granted", a.api.ok)
	told(t, "claims_refused", a.api.refused)
	want(t, "claims_refused_without_retry_after", a.api.bare, Equal, 0)
	want(t, "claims_failed", a.api.failed, Equal, 0)
	want(t, "slowest_answer_ms", a.api.slowest.Milliseconds(), AtMost, overloadAnswer.Milliseconds())
	for _, worker := range []string{demo.Publisher, demo.Expirer, demo.Notifier} {
		u, err := s.Fleet().Usage(worker)
		if err != nil {
			return err
		}
		want(t, worker+"_peak_mib", int(u.Peak>>20), AtMost, overloadMemory)
	}
	if broker, here, err := w.cfg.Stack.ServerUsage("rabbitmq"); err == nil && here {
		told(t, "broker_peak_mib", int(broker.Peak>>20))
	}
	told(t, "intake_waiting_most", a.seen.intake)
	told(t, "outbox_rows_most", a.seen.rows)
	told(t, "events_oldest_ms", a.seen.events)
	want(t, "triggers_oldest_ms", a.seen.triggers, AtMost, max(a.seen.events, second))
	return w.punctual(ctx, s, ending)
}

// punctual holds the coupons that ended meanwhile against their ends: triggers come first, then events, then notices.
func (w *overload) punctual(ctx context.Context, s *shop, template string) error {
	t := s.t
	n := w.size.due * int(w.size.window.Seconds())
	limit, cancel := context.WithTimeout(ctx, draining(n))
	defer cancel()
	err := until(limit, func() (bool, error) {
		have, err := countIn(limit, s.DB(), "SELECT COUNT(*) FROM coupon c JOIN notice_item i ON i.coupon_id = c.id JOIN notice n ON n.window_id = i.window_id AND n.channel = 'inbox' WHERE c.template_id = ?", template)
		return have >= n, err
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	var rows, expired, early, twice, swept int
	if err := s.DB().QueryRowContext(ctx, dueQuery, template).Scan(&rows, &expired, &early, &twice, &swept); err != nil {
		return fmt.Errorf("reading what ended meanwhile: %w", err)
	}
	want(t, "ended_meanwhile", expired, Equal, n)
	want(t, "early", early, Equal, 0)
	want(t, "doubled", twice, Equal, 0)
	told(t, "by_the_sweep", swept)
	stages, err := s.stages(ctx, template)
	if err != nil {
		return err
	}
	moved, heard, noticed := stages[0], stages[1], stages[2]
	told(t, "lateness_p50_ms", int(late(moved, 50)))
	want(t, "lateness_p99_ms", late(moved, 99), AtMost, overloadLate)
	want(t, "told", len(noticed), Equal, n)
	want(t, "event_p99_ms", late(heard, 99), AtLeast, late(moved, 99))
	want(t, "notice_p99_ms", late(noticed, 99), AtLeast, late(heard, 99))
	return nil
}

func (s *shop) stages(ctx context.Context, template string) (by [3][]time.Duration, err error) {
	rows, err := s.DB().QueryContext(ctx, stagesQuery, template)
	if err != nil {
		return by, fmt.Errorf("reading lateness: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var us [3]int64
		if err := rows.Scan(&us[0], &us[1], &us[2]); err != nil {
			return by, fmt.Errorf("reading lateness: %w", err)
		}
		for i, n := range us {
			if n != -1 {
				by[i] = append(by[i], time.Duration(n)*time.Microsecond)
			}
		}
	}
	return by, rows.Err()
}

// claimKey is the grant key of a claim.
func claimKey(name string, i int64) string { return name + "-" + strconv.FormatInt(i, 10) }
