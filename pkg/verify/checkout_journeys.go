package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	perJourney    = 30
	journeyEnds   = 40 * time.Second // from the grant to the earliest end
	journeySpread = 12               // seconds, over which the ends lie
	shortHorizon  = 10 * time.Second
)

// journey is what a coupon goes through before its end.
type journey struct {
	name string
	walk func(ctx context.Context, s *shop, id string) error
}

// journeysOf are those of the promise. Every one leaves the coupon unused before its end.
func journeysOf() []journey {
	ask := func(id string, lock time.Duration) client.Order {
		return client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: lock}
	}
	return []journey{
		{"left alone", func(context.Context, *shop, string) error { return nil }},
		{"locked and released", func(ctx context.Context, s *shop, id string) error {
			if _, err := s.api.Lock(ctx, "a-"+id, ask(id, time.Hour)); err != nil {
				return err
			}
			_, err := s.api.Release(ctx, "a-"+id, ask(id, 0))
			return err
		}},
		{"locked, renewed, run out", func(ctx context.Context, s *shop, id string) error {
			if _, err := s.api.Lock(ctx, "a-"+id, ask(id, 5*time.Second)); err != nil {
				return err
			}
			_, err := s.api.Renew(ctx, "a-"+id, ask(id, 8*time.Second))
			return err
		}},
		{"redeemed and refunded", func(ctx context.Context, s *shop, id string) error {
			if _, err := s.api.Lock(ctx, "a-"+id, ask(id, time.Minute)); err != nil {
				return err
			}
			if _, err := s.api.Redeem(ctx, "a-"+id, ask(id, 0)); err != nil {
				return err
			}
			_, err := s.api.Refund(ctx, "a-"+id, ask(id, 0))
			return err
		}},
		{"two rounds by two orders", func(ctx context.Context, s *shop, id string) error {
			if _, err := s.api.Lock(ctx, "a-"+id, ask(id, time.Minute)); err != nil {
				return err
			}
			if _, err := s.api.Release(ctx, "a-"+id, ask(id, 0)); err != nil {
				return err
			}
			if _, err := s.api.Lock(ctx, "b-"+id, ask(id, 6*time.Second)); err != nil {
				return err
			}
			// A's late cancel: B keeps it, and lets it run out.
			if _, err := s.api.Release(ctx, "a-"+id, ask(id, 0)); err != nil && !client.IsCode(err, client.CodeLockedByOther) {
				return err
			}
			return nil
		}},
	}
}

// journeys runs two shops at once: one whose triggers all go to the broker at once, and one with a short horizon, where the planner
// brings them in time.
func (w *checkout) journeys(ctx context.Context, t *tally) error {
	both, ctx := errgroup.WithContext(ctx)
	beside := *w
	beside.cfg.View = oneAtATime(w.cfg.View)
	unlimited := &tally{section: t.section, view: silent{}}
	short := &tally{section: t.section, view: silent{}}
	both.Go(func() error {
		return beside.open(ctx, unlimited, opening{logs: "-unlimited"}, func(ctx context.Context, s *shop) error {
			return beside.travel(ctx, s, "unlimited_")
		})
	})
	both.Go(func() error {
		return beside.open(ctx, short, shortOpening(), func(ctx context.Context, s *shop) error {
			return beside.travel(ctx, s, "short_")
		})
	})
	err := both.Wait()
	for _, c := range append(unlimited.checks, short.checks...) {
		t.checks = append(t.checks, c)
		t.view.Check(c)
	}
	return err
}

func shortOpening() opening {
	return opening{
		logs:   "-short",
		ladder: func(c *ladder.Config) { c.Horizon = shortHorizon },
		env: func(worker string) map[string]string {
			vars := map[string]string{"LAPSE__LADDER__HORIZON": shortHorizon.String(), "LAPSE__DATABASE__TX_LIMIT": "3s"}
			if worker == demo.Publisher {
				vars["LAPSE__PLANNER__SLICE"], vars["LAPSE__PLANNER__GUARD"] = "1s", guard.String()
				vars["LAPSE__PLANNER__POLL"], vars["LAPSE__PLANNER__LEASE"] = "200ms", "3s"
			}
			return vars
		},
	}
}

// travel sends coupons of two classes on every journey and holds their ends against the promise.
func (w *checkout) travel(ctx context.Context, s *shop, prefix string) error {
	routes := journeysOf()
	n := perJourney * len(routes)
	first := s.soon(journeyEnds)
	classes := []struct {
		name  string
		bound float64 // of the lateness, in ms
		ids   []string
	}{{name: "exact", bound: second}, {name: "standard", bound: 60 * second}}
	for k := range classes {
		c := &classes[k]
		template, err := s.template(ctx, func(t *client.Terms) { t.Precision = c.name })
		if err != nil {
			return err
		}
		c.ids, err = s.grant(ctx, template, n, func(i int, g *client.Grant) {
			end := first.Add(time.Duration(i%journeySpread) * time.Second)
			g.UserID, g.ExpiresAt = "one", &end
		})
		if err != nil {
			return err
		}
	}
	w.cfg.View.Step(fmt.Sprintf("%s: %d coupons of each class on %d journeys", s.Ladder().Events(), n, len(routes)))
	travelling, limit := errgroup.WithContext(ctx)
	travelling.SetLimit(16)
	for k := range classes {
		for i, id := range classes[k].ids {
			wait := time.Duration(rand.New(rand.NewPCG(w.cfg.Seed, uint64(k*n+i))).IntN(200)) * time.Millisecond
			travelling.Go(func() error {
				if err := lifecycle.Sleep(limit, wait); err != nil {
					return err
				}
				if err := routes[i%len(routes)].walk(limit, s, id); err != nil {
					return fmt.Errorf("%s: %w", routes[i%len(routes)].name, err)
				}
				return nil
			})
		}
	}
	if err := travelling.Wait(); err != nil {
		return err
	}
	want(s.t, prefix+"travelled_before_the_first_end_s", int(first.Sub(s.Now()).Seconds()), AtLeast, 10) // else locks outlive the ends
	const slowest = time.Minute                                                                          // the widest spread of the classes
	if err := s.settled(ctx, len(classes)*n, first.Add(journeySpread*time.Second), slowest+drainFor); err != nil {
		return err
	}
	fates, err := s.fates(ctx)
	if err != nil {
		return err
	}
	for _, c := range classes {
		var ds []time.Duration
		ladders, twice, early := 0, 0, 0
		for _, id := range c.ids {
			f := fates[id]
			if f == nil || f.expired == 0 {
				continue
			}
			ds = append(ds, f.at.Sub(f.ends))
			if f.cause == "ladder" {
				ladders++
			}
			if f.expired > 1 {
				twice++
			}
			if f.at.Before(f.ends) {
				early++
			}
		}
		name := prefix + c.name + "_"
		want(s.t, name+"expired", len(ds), Equal, n)
		want(s.t, name+"cause_ladder", ladders, Equal, n)
		want(s.t, name+"twice", twice, Equal, 0)
		want(s.t, name+"early", early, Equal, 0)
		want(s.t, name+"lateness_p99_ms", late(ds, 99), AtMost, c.bound)
	}
	want(s.t, prefix+"sweep_recovered", countCause(fates, "sweep"), Equal, 0)
	if prefix == "short_" {
		found, err := readCauses(ctx, s.DB())
		if err != nil {
			return err
		}
		want(s.t, prefix+"by_a_trigger_of_the_planner", found.planner, AtLeast, n/len(routes))
	}
	return s.agreed(ctx, prefix, false)
}
