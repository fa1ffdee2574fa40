package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

const (
	rivals   = 64
	claimers = 5000
	claims   = 100 // coupons for the claimers
	quotaTen = 10
)

// answersOf calls n times at once and counts the answers: "ok", the code of a refusal, or "failed".
func answersOf(n int, call func(i int) error) map[string]int {
	var mu sync.Mutex
	counts := make(map[string]int)
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			err := call(i)
			mu.Lock()
			defer mu.Unlock()
			counts[answerOf(err)]++
		})
	}
	close(start)
	all.Wait()
	return counts
}

func answerOf(err error) string {
	var e *client.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e) && e.Status < 500 && e.Code != "":
		return string(e.Code)
	default:
		return "failed"
	}
}

func (w *checkout) parallelLocks(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		if err := w.rivalLocks(ctx, s); err != nil {
			return err
		}
		if err := w.rivalGrants(ctx, s); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// rivalLocks lets 64 orders lock one coupon, and 64 more ten coupons of which it is one: all or none.
func (w *checkout) rivalLocks(ctx context.Context, s *shop) error {
	template, err := s.template(ctx, nil)
	if err != nil {
		return err
	}
	ids, err := s.grant(ctx, template, 10, func(_ int, g *client.Grant) { g.UserID = "one" })
	if err != nil {
		return err
	}
	named := atomic.Int64{}
	lock := func(name string, coupons ...string) func(i int) error {
		return func(i int) error {
			_, err := s.api.Lock(ctx, fmt.Sprintf("%s-%d", name, i), client.Order{UserID: "one", CouponIDs: coupons, LockFor: time.Hour})
			var e *client.Error
			if errors.As(err, &e) && e.State == client.Locked && e.CouponID == ids[0] {
				named.Add(1)
			}
			return err
		}
	}
	w.cfg.View.Step("64 orders lock one coupon")
	got := answersOf(rivals, lock("rival", ids[0]))
	want(s.t, "locked", got["ok"], Equal, 1)
	want(s.t, "locked_by_other_order", got[string(client.CodeLockedByOther)], Equal, rivals-1)
	want(s.t, "state_named", named.Load(), Equal, rivals-1)
	named.Store(0)
	got = answersOf(rivals, lock("ten", ids...))
	want(s.t, "ten_of_which_one_is_locked", got[string(client.CodeLockedByOther)], Equal, rivals)
	moved, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE version > 1 AND id <> ?", ids[0])
	if err != nil {
		return err
	}
	want(s.t, "others_moved", moved, Equal, 0)
	// Crossed orders of ids must not stand in each other's way for long.
	got = answersOf(rivals, func(i int) error {
		mine := slices.Clone(ids[1:])
		rand.New(rand.NewPCG(w.cfg.Seed, uint64(i))).Shuffle(len(mine), func(a, b int) { mine[a], mine[b] = mine[b], mine[a] })
		_, err := s.api.Lock(ctx, fmt.Sprintf("crossed-%d", i), client.Order{UserID: "one", CouponIDs: mine, LockFor: time.Hour})
		return err
	})
	want(s.t, "crossed_locked", got["ok"], Equal, 1)
	want(s.t, "crossed_refused", got[string(client.CodeLockedByOther)], Equal, rivals-1)
	return nil
}

// rivalGrants lets 64 users at once claim ten coupons, 5 000 users a hundred, and one user his one.
func (w *checkout) rivalGrants(ctx context.Context, s *shop) error {
	for _, c := range []struct {
		name           string
		claimers       int
		quota, perUser int64
		user           func(i int) string
		code           client.Code
		most           int
	}{
		{"quota_of_ten", rivals, quotaTen, 0, userOf, client.CodeQuotaExhausted, quotaTen},
		{"one_per_user", rivals, 0, 1, func(int) string { return "greedy" }, client.CodeUserLimit, 1},
		{"claimers", claimers, claims, 1, userOf, client.CodeQuotaExhausted, claims},
	} {
		template, err := s.template(ctx, func(t *client.Terms) { t.Quota, t.PerUser = c.quota, c.perUser })
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d claims over HTTP for %d coupons", c.claimers, c.most))
		got := answersOf(c.claimers, func(i int) error {
			_, err := s.api.Grant(ctx, client.Grant{GrantKey: c.name + strconv.Itoa(i), TemplateID: template, UserID: c.user(i)})
			return err
		})
		rows, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE template_id = ?", template)
		if err != nil {
			return err
		}
		want(s.t, c.name+"_granted", got["ok"], Equal, c.most)
		want(s.t, c.name+"_refused", got[string(c.code)], Equal, c.claimers-c.most)
		want(s.t, c.name+"_rows", rows, Equal, c.most)
	}
	return nil
}

const (
	rounds      = 10_000
	endGroups   = 10                     // ends, each of so many rounds
	endsApart   = 3                      // seconds
	aroundFor   = 800 * time.Millisecond // redeemed so long before to so long after the end
	redeemers   = 64
	roundOrders = 10 // coupons that one order locks
)

// round is one coupon and what was said of its redemption.
type round struct {
	id, order string
	answer    string
	got, end  time.Time // the latest that the database's clock can have shown when the answer was there, and the coupon's end
}

// redeemAgainstExpiry redeems coupons around their ends, many ending in the same second. Half of them are locked, until the very end.
func (w *checkout) redeemAgainstExpiry(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		all, err := w.prepareRounds(ctx, s)
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d coupons redeemed around %d ends", rounds, endGroups))
		work := make(chan *round)
		var workers sync.WaitGroup
		for range redeemers {
			workers.Go(func() {
				for r := range work {
					_, err := s.api.Redeem(ctx, r.order, client.Order{UserID: "one", CouponIDs: []string{r.id}})
					_, r.got = s.Audit().Bounds()
					r.answer = answerOf(err)
				}
			})
		}
		per := rounds / endGroups
		err = nil
		for i, r := range all {
			at := r.end.Add(-aroundFor + 2*aroundFor*time.Duration(i%per)/time.Duration(per))
			if err = pause(ctx, at.Sub(s.Now())); err != nil {
				break
			}
			work <- r
		}
		close(work)
		workers.Wait()
		if err != nil {
			return err
		}
		if err := s.settled(ctx, rounds, all[len(all)-1].end, drainFor); err != nil {
			return err
		}
		if err := s.judgeRounds(ctx, all); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

func (w *checkout) prepareRounds(ctx context.Context, s *shop) ([]*round, error) {
	template, err := s.template(ctx, func(t *client.Terms) { t.LatePayPolicy = "strict" })
	if err != nil {
		return nil, err
	}
	w.cfg.View.Step(fmt.Sprintf("granting %d coupons and locking half of them", rounds))
	start := s.Now()
	first := s.soon(45 * time.Second)
	per := rounds / endGroups
	endOf := func(i int) time.Time { return first.Add(time.Duration(i/per*endsApart) * time.Second) }
	ids, err := s.grant(ctx, template, rounds, func(i int, g *client.Grant) {
		end := endOf(i)
		g.UserID, g.ExpiresAt = "one", &end
	})
	if err != nil {
		return nil, err
	}
	all := make([]*round, rounds)
	for i, id := range ids {
		all[i] = &round{id: id, end: endOf(i), order: "order-" + strconv.Itoa(i/roundOrders)}
	}
	var mu sync.Mutex
	var errs []error
	work := make(chan int)
	var lockers sync.WaitGroup
	for range redeemers / 4 {
		lockers.Go(func() {
			for i := range work {
				// To the very end: rounded up to the second it is the end's.
				until := all[i].end.Add(-500 * time.Millisecond).Sub(s.Now())
				_, err := s.api.Lock(ctx, all[i].order, client.Order{UserID: "one", CouponIDs: ids[i : i+roundOrders], LockFor: until})
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for i := 0; i < rounds; i += 2 * roundOrders {
		work <- i
	}
	close(work)
	lockers.Wait()
	if len(errs) > 0 {
		return nil, fmt.Errorf("%d of the locks failed: %w", len(errs), errs[0])
	}
	told(s.t, "prepared_in_s", int(s.Now().Sub(start).Seconds()))
	if !s.Now().Before(first.Add(-aroundFor)) {
		return nil, fmt.Errorf("preparing took %s: the first end has passed", s.Now().Sub(start))
	}
	return all, nil
}

// judgeRounds holds every answer against row and history.
func (s *shop) judgeRounds(ctx context.Context, all []*round) error {
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	var used, expired, both, neither, disagree, failed, early int
	for _, r := range all {
		f := fates[r.id]
		switch {
		case f == nil || f.status != statusUsed && f.status != statusExpired:
			neither++
			continue
		case f.used+f.expired != 1:
			both++
		case f.status == statusUsed:
			used++
		default:
			expired++
		}
		if f.expired > 0 && f.at.Before(r.end) {
			early++
		}
		switch r.answer {
		case "ok":
			if f.status != statusUsed {
				disagree++
			}
		case string(client.CodeExpired):
			if f.status != statusExpired || r.got.Before(r.end) {
				disagree++
			}
		default:
			failed++
		}
	}
	usedLate, err := countIn(ctx, s.DB(), `SELECT COUNT(*) FROM coupon_history h JOIN coupon c ON c.id = h.coupon_id WHERE h.to_status = 3 AND h.at >= c.expires_at`)
	if err != nil {
		return err
	}
	want(s.t, "rounds", len(all), Equal, rounds)
	want(s.t, "used", used, AtLeast, rounds/20)
	want(s.t, "expired", expired, AtLeast, rounds/20)
	want(s.t, "both", both, Equal, 0)
	want(s.t, "neither", neither, Equal, 0)
	want(s.t, "answers_that_disagree", disagree, Equal, 0)
	want(s.t, "calls_failed", failed, Equal, 0)
	want(s.t, "expired_early", early, Equal, 0)
	want(s.t, "used_at_or_after_the_end", usedLate, Equal, 0)
	want(s.t, "sweep_recovered", countCause(fates, "sweep"), Equal, 0)
	return nil
}

func countCause(fates map[string]*fate, cause string) int {
	n := 0
	for _, f := range fates {
		if f.expired > 0 && f.cause == cause {
			n++
		}
	}
	return n
}
