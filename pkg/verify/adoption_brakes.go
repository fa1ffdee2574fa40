package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	brakeFor   = 10 * time.Second // a pause lasts
	brakeAfter = 2 * time.Second  // it is in force everywhere
	brakeFirst = 5 * time.Second  // of ends before the pause
	brakeTotal = 25 * time.Second // of ends
	caughtUp   = 2 * time.Minute  // after the last end
	extendLead = 10 * time.Second // before the ends
	extendBy   = time.Hour
	// Grants a second at least, by which the ends are far enough away.
	grantPace = 1000
)

const endedQuery = "SELECT COUNT(*) FROM coupon_history WHERE to_status = 4"

// pause pauses expiry while coupons end, and lets it go on.
func (w *adoption) pause(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.adopt.braked * int(brakeTotal.Seconds())
		first := s.soon(time.Duration(n/grantPace)*time.Second + brakeFirst)
		w.cfg.View.Step(fmt.Sprintf("%d coupons, %d of which end each second", n, w.adopt.braked))
		if _, err := s.grant(ctx, template, n, func(i int, g *client.Grant) {
			at := first.Add(time.Duration(i/w.adopt.braked) * time.Second)
			g.ExpiresAt = &at
		}); err != nil {
			return err
		}
		last := first.Add(brakeTotal)
		if err := lifecycle.Sleep(ctx, first.Add(brakeFirst).Sub(s.Now())); err != nil {
			return err
		}
		if err := w.must(ctx, s, "pause", "expiry", "--reason=verify"); err != nil {
			return err
		}
		from := s.Now().Add(brakeAfter)
		if err := lifecycle.Sleep(ctx, brakeAfter); err != nil {
			return err
		}
		before, err := countIn(ctx, s.DB(), endedQuery)
		if err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, brakeFor); err != nil {
			return err
		}
		still, err := countIn(ctx, s.DB(), endedQuery)
		if err != nil {
			return err
		}
		later, err := countIn(ctx, s.DB(), endedQuery+" AND at > ?", from.UTC())
		if err != nil {
			return err
		}
		want(t, "before", before, AtLeast, 1)
		want(t, "while_paused", still-before, Equal, 0)
		want(t, "decided_while_paused", later, Equal, 0)
		owed, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status = 1 AND expires_at <= UTC_TIMESTAMP(3)")
		if err != nil {
			return err
		}
		want(t, "owed", owed, AtLeast, w.adopt.braked)
		if err := w.must(ctx, s, "resume", "expiry", "--reason=verify"); err != nil {
			return err
		}
		if err := s.settled(ctx, n, last, caughtUp); err != nil {
			return err
		}
		return s.afterPause(ctx, t, n)
	})
}

// afterPause holds that every coupon has ended once, and says how late.
func (s *shop) afterPause(ctx context.Context, t *tally, n int) error {
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	ended := tallyOf(fates, nil)
	want(t, "coupons", len(fates), Equal, n)
	want(t, "lost", len(fates)-ended.expired, Equal, 0)
	want(t, "early", ended.early, Equal, 0)
	want(t, "twice", ended.doubled, Equal, 0)
	want(t, "late_p50_ms", late(ended.lateness, 50), AtLeast, 0)
	want(t, "late_p99_ms", late(ended.lateness, 99), AtLeast, 0)
	if err := errors.Join(drained(ctx, s.DB()), lifecycle.Sleep(ctx, lateEvents)); err != nil {
		return err
	}
	want(t, "expired_events", s.ears.of("expired"), Equal, n)
	return nil
}

// must calls lapsectl, which must answer well.
func (w *adoption) must(ctx context.Context, s *shop, args ...string) error {
	said, err := w.lapsectl(ctx, s, nil, args...)
	if err == nil && said.code != 0 {
		err = fmt.Errorf("lapsectl %v: exit code %d: %s%s", args, said.code, said.out, said.errors)
	}
	return err
}

// extend moves the ends of coupons that are about to end.
func (w *adoption) extend(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		n := w.adopt.extended
		ends := s.soon(time.Duration(n/grantPace)*time.Second + 2*extendLead)
		w.cfg.View.Step(fmt.Sprintf("%d coupons that end in one instant", n))
		if _, err := s.grant(ctx, template, n, func(_ int, g *client.Grant) { g.ExpiresAt, g.BatchID = &ends, "wrong-end" }); err != nil {
			return err
		}
		if err := lifecycle.Sleep(ctx, ends.Add(-extendLead).Sub(s.Now())); err != nil {
			return err
		}
		said, err := w.lapsectl(ctx, s, nil, "extend", "--batch=wrong-end", "--by="+extendBy.String(), "--reason=verify", "--rate=0", "--yes", "--json")
		if err != nil {
			return err
		}
		var got struct {
			Finished bool `json:"finished"`
			Counts   map[string]struct {
				Coupons int `json:"coupons"`
			} `json:"counts"`
		}
		if err := said.json(&got); err != nil {
			return err
		}
		moved, gone := got.Counts["change"].Coupons, got.Counts["expired"].Coupons
		want(t, "finished", boolean(got.Finished), Equal, 1)
		told(t, "extended", moved)
		told(t, "reported_as_ended", gone)
		want(t, "accounted_for", moved+gone, Equal, n)
		// Whatever is on its way for the old end has come by then, and the sweep has been there.
		if err := lifecycle.Sleep(ctx, max(0, ends.Sub(s.Now()))+decidedLimit); err != nil {
			return err
		}
		for _, q := range []struct {
			name, query string
			bound       int
		}{
			{"unused_with_the_new_end", "SELECT COUNT(*) FROM coupon WHERE status = 1 AND expires_at = ? + INTERVAL 1 HOUR", moved},
			{"expired_at_the_old_end", "SELECT COUNT(*) FROM coupon WHERE status = 4 AND expires_at = ?", gone},
			{"extended_after_their_end", "SELECT COUNT(*) FROM coupon_history WHERE version > 1 AND to_status = 1 AND at >= ?", 0},
			{"extended_and_expired", "SELECT COUNT(*) FROM coupon c JOIN coupon_history h ON h.coupon_id = c.id WHERE c.status = 4 AND h.previous = ?", 0},
		} {
			have, err := countIn(ctx, s.DB(), q.query, ends)
			if err != nil {
				return err
			}
			want(t, q.name, have, Equal, q.bound)
		}
		return nil
	})
}
