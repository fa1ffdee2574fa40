package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	collectAtLeast = 10_000 // events a second
	residentAtMost = 400    // MiB, however many events wait
)

// collect lets events of expired coupons wait in the queue, ends every other worker, and starts a notifier.
func (w *notices) collect(ctx context.Context, t *tally) error {
	o := posting{rules: daysRules, notifier: map[string]string{"LAPSE__NOTICE__QUIET": "1h", "LAPSE__NOTICE__MAX_AGE": "2h"}}
	return w.openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		n := w.reach.backlog
		w.cfg.View.Step(fmt.Sprintf("%d events wait in the queue", n))
		for _, worker := range []string{demo.Publisher, demo.Expirer} {
			if err := p.Fleet().StopOne(ctx, worker); err != nil {
				return err
			}
		}
		const batch = 5000
		for from := 0; from < n; from += batch {
			ms := make([]broker.Message, 0, batch)
			for i := from; i < min(n, from+batch); i++ {
				m, err := p.ended(i)
				if err != nil {
					return err
				}
				ms = append(ms, m)
			}
			bundles, _ := broker.Bundles(p.Ladder().Bundles(), p.Ladder().BundleKey, broker.BundleEvents, ms)
			if err := p.send(ctx, bundles); err != nil {
				return err
			}
		}
		w.cfg.View.Step("one notifier has the machine to itself")
		if err := p.notifiers(ctx, 1); err != nil {
			return err
		}
		// The count of a growing table would take part in what is measured.
		limit, cancel := context.WithTimeout(ctx, time.Duration(n/1000)*time.Second+time.Minute)
		defer cancel()
		client, err := p.Client()
		if err != nil {
			return err
		}
		err = until(limit, func() (bool, error) {
			waiting, err := client.Depths(limit, []string{p.Ladder().Notice()})
			return err == nil && waiting[p.Ladder().Notice()] == 0, err
		})
		if err != nil {
			return fmt.Errorf("waiting for the backlog: %w", err)
		}
		if err := p.counted(ctx, "items", "SELECT COUNT(*) FROM notice_item", n, time.Minute); err != nil {
			return err
		}
		took, err := countIn(ctx, p.DB(), "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(added_at), MAX(added_at)) DIV 1000 FROM notice_item")
		if err != nil {
			return err
		}
		want(t, "events_a_second", n*1000/max(1, took), AtLeast, collectAtLeast)
		peak, err := p.resident(notifierName(1))
		if err != nil {
			return err
		}
		want(t, "resident_peak_mib", peak, AtMost, residentAtMost)
		doubled, err := countIn(ctx, p.DB(), "SELECT COUNT(*) - COUNT(DISTINCT event_id) FROM notice_item")
		if err != nil {
			return err
		}
		want(t, "items_twice", doubled, Equal, 0)
		return nil
	})
}

// ended is the event of a coupon that has just expired; every user has five.
func (p *post) ended(i int) (broker.Message, error) {
	now := p.Now().UTC().Truncate(time.Millisecond)
	end := now.Truncate(time.Second)
	key, id, body, err := p.Codec().Transition(coupon.Transition{
		CouponID: uint64(1_000_000 + i), Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder, UserID: userOf(i / couponsEach),
		Terms: coupon.Terms{TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY", Precision: coupon.Exact}, ExpiresAt: end, DueAt: end, At: now,
	})
	if err != nil {
		return broker.Message{}, fmt.Errorf("an event: %w", err)
	}
	return broker.Event(p.Ladder().Events(), key, id, "", body), nil
}

// resident is the most memory that a worker has held, in MiB.
func (p *post) resident(worker string) (int, error) {
	u, err := p.Fleet().Usage(worker)
	return int(u.Peak >> 20), err
}
