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

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
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

// parallelLocks asks two publishers in turns: one alone may put those who want the same coupon in a row before they meet in the
// database.
func (w *checkout) parallelLocks(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		const more = "publisher-2"
		if err := s.Add(ctx, w.cfg.Bin, more, demo.Publisher, s.apiEnv()); err != nil {
			return err
		}
		_, other, err := s.clientOf(more)
		if err != nil {
			return err
		}
		defer other.Close()
		both := [2]*client.Client{s.api, other}
		if err := w.rivalLocks(ctx, s, both); err != nil {
			return err
		}
		if err := w.rivalGrants(ctx, s, both); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// rivalLocks lets 64 orders lock one coupon, and 64 more ten coupons of which it is one: all or none.
func (w *checkout) rivalLocks(ctx context.Context, s *shop, both [2]*client.Client) error {
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
			_, err := both[i%2].Lock(ctx, fmt.Sprintf("%s-%d", name, i), client.Order{UserID: "one", CouponIDs: coupons, LockFor: time.Hour})
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
		_, err := both[i%2].Lock(ctx, fmt.Sprintf("crossed-%d", i), client.Order{UserID: "one", CouponIDs: mine, LockFor: time.Hour})
		return err
	})
	want(s.t, "crossed_locked", got["ok"], Equal, 1)
	want(s.t, "crossed_refused", got[string(client.CodeLockedByOther)], Equal, rivals-1)
	return nil
}

// rivalGrants lets 64 users at once claim ten coupons, 5 000 users a hundred, and one user his one.
func (w *checkout) rivalGrants(ctx context.Context, s *shop, both [2]*client.Client) error {
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
			_, err := both[i%2].Grant(ctx, client.Grant{GrantKey: c.name + strconv.Itoa(i), TemplateID: template, UserID: c.user(i)})
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
	perEnd      = 1000                   // rounds of one end
	aroundLeast = 800 * time.Millisecond // redeemed so long before to so long after the end
	aroundMost  = 8 * time.Second
	redeemers   = 64
	roundOrders = 10 // coupons that one order locks
	firstEndIn  = 15 * time.Second
	leastEndIn  = 3 * time.Second
)

// round is one coupon and what was said of its redemption.
type round struct {
	id, order string
	answer    string
	got, end  time.Time // the latest that the database's clock can have shown when the answer was there, and the coupon's end
}

// redeemAgainstExpiry redeems coupons around their ends, a thousand of which lie in the same second. Half of them are locked, until the
// very end.
func (w *checkout) redeemAgainstExpiry(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, func(t *client.Terms) { t.LatePayPolicy = "strict" })
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("%d coupons redeemed around their ends, %d to an end", rounds, perEnd))
		var all []*round
		endIn, around := firstEndIn, aroundLeast
		for len(all) < rounds {
			start := time.Now()
			group, err := s.prepareRounds(ctx, template, len(all), s.soon(endIn), around)
			if err != nil {
				return err
			}
			prepared := time.Since(start)
			took, err := s.redeemRounds(ctx, group, around)
			if err != nil {
				return err
			}
			// Whatever the machine needs.
			around = min(max(aroundLeast, took*6/10), aroundMost)
			endIn = max(leastEndIn, 2*prepared+around)
			all = append(all, group...)
		}
		told(t, "around_ms", int(around.Milliseconds()))
		if err := s.settled(ctx, rounds, all[len(all)-1].end, drainFor); err != nil {
			return err
		}
		if err := s.judgeRounds(ctx, all); err != nil {
			return err
		}
		return s.agreed(ctx, "", false)
	})
}

// prepareRounds grants the coupons of one end and locks half of them.
func (s *shop) prepareRounds(ctx context.Context, template string, from int, end time.Time, around time.Duration) ([]*round, error) {
	ids, err := s.grant(ctx, template, perEnd, func(i int, g *client.Grant) {
		g.UserID, g.ExpiresAt, g.GrantKey = "one", &end, "round-"+strconv.Itoa(from+i)
	})
	if err != nil {
		return nil, err
	}
	group := make([]*round, perEnd)
	for i, id := range ids {
		group[i] = &round{id: id, end: end, order: "order-" + strconv.Itoa((from+i)/roundOrders)}
	}
	locking, limit := errgroup.WithContext(ctx)
	locking.SetLimit(redeemers / 4)
	for i := 0; i < perEnd; i += 2 * roundOrders {
		locking.Go(func() error {
			// To the very end: rounded up to the second it is the end's.
			until := end.Add(-500 * time.Millisecond).Sub(s.Now())
			_, err := s.api.Lock(limit, group[i].order, client.Order{UserID: "one", CouponIDs: ids[i : i+roundOrders], LockFor: until})
			return err
		})
	}
	if err := locking.Wait(); err != nil {
		return nil, fmt.Errorf("before the end: %w", err)
	}
	if !s.Now().Before(end.Add(-around)) {
		return nil, errors.New("preparing took so long that the end has passed")
	}
	return group, nil
}

// redeemRounds redeems each coupon at its own instant around the end, and says how long it took for all of them.
func (s *shop) redeemRounds(ctx context.Context, group []*round, around time.Duration) (took time.Duration, err error) {
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
	start := s.Now()
	for i, r := range group {
		at := r.end.Add(-around + 2*around*time.Duration(i)/perEnd)
		if err = lifecycle.Sleep(ctx, at.Sub(s.Now())); err != nil {
			break
		}
		if i == 0 {
			start = s.Now()
		}
		work <- r
	}
	close(work)
	workers.Wait()
	return s.Now().Sub(start), err
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
