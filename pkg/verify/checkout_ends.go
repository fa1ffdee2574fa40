package verify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// movedEnds moves ends both ways, of coupons whose first trigger is on its way, and locks around an end.
func (w *checkout) movedEnds(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		if err := w.moves(ctx, s); err != nil {
			return err
		}
		if err := w.lastLocks(ctx, s); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

const perMove = 40

// moves: what the end was, what it becomes, and what is done to the coupon besides.
func (w *checkout) moves(ctx context.Context, s *shop) error {
	template, err := s.template(ctx, nil)
	if err != nil {
		return err
	}
	base := s.soon(14 * time.Second)
	at := func(seconds int) *time.Time { end := base.Add(time.Duration(seconds) * time.Second); return &end }
	kinds := []struct {
		name     string
		was, is  *time.Time
		then     *time.Time // moved again
		lock     time.Duration
		released bool
	}{
		{name: "extended", was: at(0), is: at(9)},
		{name: "shortened", was: at(9), is: at(1)},
		{name: "moved_there_and_back", was: at(4), is: at(12), then: at(4)},
		{name: "extended_while_locked", was: at(0), is: at(10), lock: time.Hour, released: true},
		{name: "shortened_under_a_lock_that_runs_out", was: at(30), is: at(2), lock: 4 * time.Second},
	}
	n := len(kinds) * perMove
	ids, err := s.grant(ctx, template, n, func(i int, g *client.Grant) { g.UserID, g.ExpiresAt = "one", kinds[i%len(kinds)].was })
	if err != nil {
		return err
	}
	if err := drained(ctx, s.DB()); err != nil { // their triggers are on the ladder
		return err
	}
	w.cfg.View.Step(fmt.Sprintf("%d coupons whose ends are moved while their triggers are on the ladder", n))
	moving, limit := errgroup.WithContext(ctx)
	moving.SetLimit(16)
	for i, id := range ids {
		k := kinds[i%len(kinds)]
		moving.Go(func() error {
			order := client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: k.lock}
			if k.lock > 0 {
				if _, err := s.api.Lock(limit, "o-"+id, order); err != nil {
					return err
				}
			}
			for _, end := range []*time.Time{k.is, k.then} {
				if end == nil {
					continue
				}
				if _, err := s.api.Extend(limit, id, end, "verify"); err != nil {
					return err
				}
			}
			if k.released {
				_, err := s.api.Release(limit, "o-"+id, order)
				return err
			}
			return nil
		})
	}
	if err := moving.Wait(); err != nil {
		return err
	}
	want(s.t, "moved_before_the_first_end_ms", base.Sub(s.Now()).Milliseconds(), AtLeast, 0)
	if err := s.settled(ctx, n, base.Add(12*time.Second), drainFor); err != nil {
		return err
	}
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	var ds []time.Duration
	for i, k := range kinds {
		once, wrong := 0, 0
		for j := i; j < n; j += len(kinds) {
			f, end := fates[ids[j]], k.is
			if k.then != nil {
				end = k.then
			}
			if f.expired == 1 {
				once++
			}
			if !f.ends.Equal(*end) || f.expired > 0 && f.at.Before(*end) {
				wrong++
			}
			if k.lock == 0 || k.released {
				ds = append(ds, f.at.Sub(*end))
			}
		}
		want(s.t, k.name+"_expired_once", once, Equal, perMove)
		want(s.t, k.name+"_at_another_end", wrong, Equal, 0)
	}
	want(s.t, "lateness_p99_ms", late(ds, 99), AtMost, second)
	want(s.t, "sweep_recovered", countCause(fates, "sweep"), Equal, 0)
	return nil
}

const lastLocks = 400

// lastLocks locks many coupons that end in the same second around that end. What decides is the database's clock, so an answer is
// held against what that clock can have shown.
func (w *checkout) lastLocks(ctx context.Context, s *shop) error {
	template, err := s.template(ctx, nil)
	if err != nil {
		return err
	}
	end := s.soon(6 * time.Second)
	ids, err := s.grant(ctx, template, lastLocks, func(_ int, g *client.Grant) { g.UserID, g.ExpiresAt = "one", &end })
	if err != nil {
		return err
	}
	w.cfg.View.Step(fmt.Sprintf("%d coupons locked around their end", lastLocks))
	const around = 800 * time.Millisecond
	refusedEarly, other := 0, 0
	lastOK, firstNo := -time.Hour, time.Hour // from the end
	type heard struct {
		answer       string
		decided, got time.Time // decided: only of a lock
	}
	results := make(chan heard, lastLocks)
	locking, limit := errgroup.WithContext(ctx)
	locking.SetLimit(redeemers)
	for i, id := range ids {
		at := end.Add(-around + 2*around*time.Duration(i)/lastLocks)
		if err := lifecycle.Sleep(ctx, at.Sub(s.Now())); err != nil {
			return err
		}
		locking.Go(func() error {
			acted, err := s.api.Lock(limit, "last-"+strconv.Itoa(i), client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Second})
			_, got := s.Audit().Bounds()
			results <- heard{answer: answerOf(err), decided: acted.Now, got: got}
			return nil
		})
	}
	if err := locking.Wait(); err != nil {
		return err
	}
	close(results)
	locked, refused := 0, 0
	for h := range results {
		switch h.answer {
		case "ok":
			locked++
			lastOK = max(lastOK, h.decided.Sub(end))
		case string(client.CodeExpired):
			refused++
			firstNo = min(firstNo, h.got.Sub(end))
			if h.got.Before(end) {
				refusedEarly++
			}
		default:
			other++
		}
	}
	lateLocks, err := countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon_history h JOIN coupon c ON c.id = h.coupon_id
		WHERE c.template_id = ? AND h.to_status = 2 AND h.at >= c.expires_at`, template)
	if err != nil {
		return err
	}
	want(s.t, "locked_before_the_end", locked, AtLeast, lastLocks/20)
	want(s.t, "refused_from_the_end_on", refused, AtLeast, lastLocks/20)
	want(s.t, "locked_at_or_after_the_end", lateLocks, Equal, 0)
	want(s.t, "refused_before_the_end", refusedEarly, Equal, 0)
	want(s.t, "other_answers", other, Equal, 0)
	want(s.t, "last_lock_ms_before_the_end", -lastOK.Milliseconds(), AtMost, 50)
	want(s.t, "first_refusal_heard_ms_after_the_end", firstNo.Milliseconds(), AtMost, 250)
	limited, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	return until(limited, func() (bool, error) { // the run-out locks settle
		n, err := countIn(limited, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status IN (1, 2)")
		return n == 0, err
	})
}
