package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

// endOfDay is one row of the table: computed by another implementation (Python's zoneinfo), from the tz database of 2026.
type endOfDay struct{ zone, date, end string }

// The ends of days around gaps and overlaps, of the zones of the promise and of those whose gaps are at midnight.
func endsOfDays() []endOfDay {
	return []endOfDay{
		{"Asia/Shanghai", "2027-10-31", "2027-10-31T16:00:00Z"},
		{"America/New_York", "2027-03-13", "2027-03-14T05:00:00Z"},
		{"America/New_York", "2027-03-14", "2027-03-15T04:00:00Z"},
		{"America/New_York", "2027-11-06", "2027-11-07T04:00:00Z"},
		{"America/New_York", "2027-11-07", "2027-11-08T05:00:00Z"},
		{"Europe/London", "2027-03-27", "2027-03-28T00:00:00Z"},
		{"Europe/London", "2027-03-28", "2027-03-28T23:00:00Z"},
		{"Europe/London", "2027-10-30", "2027-10-30T23:00:00Z"},
		{"Europe/London", "2027-10-31", "2027-11-01T00:00:00Z"},
		{"America/Sao_Paulo", "2027-10-31", "2027-11-01T03:00:00Z"},
		{"America/Sao_Paulo", "2018-11-03", "2018-11-04T03:00:00Z"},
		{"America/Sao_Paulo", "2018-02-17", "2018-02-18T03:00:00Z"},
		{"America/Sao_Paulo", "2019-02-16", "2019-02-17T03:00:00Z"},
		{"Pacific/Apia", "2027-04-03", "2027-04-03T11:00:00Z"},
		{"Pacific/Apia", "2011-12-29", "2011-12-30T10:00:00Z"},
		{"Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z"},
		{"Pacific/Apia", "2011-12-31", "2011-12-31T10:00:00Z"},
		{"America/Havana", "2027-03-13", "2027-03-14T05:00:00Z"},
		{"America/Havana", "2027-11-06", "2027-11-07T04:00:00Z"},
		{"Africa/Cairo", "2027-04-29", "2027-04-29T22:00:00Z"},
		{"Africa/Cairo", "2027-10-28", "2027-10-28T22:00:00Z"},
		{"Asia/Beirut", "2027-03-27", "2027-03-27T22:00:00Z"},
		{"Asia/Beirut", "2027-10-30", "2027-10-30T22:00:00Z"},
		{"America/Santiago", "2027-09-04", "2027-09-05T04:00:00Z"},
		{"America/Santiago", "2027-04-03", "2027-04-04T04:00:00Z"},
		{"Australia/Lord_Howe", "2027-10-02", "2027-10-02T13:30:00Z"},
		{"Asia/Shanghai", "1990-04-14", "1990-04-14T16:00:00Z"},
	}
}

func (w *checkout) zones(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		right, past, told := 0, 0, 0
		for i, e := range endsOfDays() {
			end, err := time.Parse(time.RFC3339, e.end)
			if err != nil {
				return fmt.Errorf("the table of ends: %w", err)
			}
			template, err := s.template(ctx, func(t *client.Terms) { t.Rule = client.Rule{Kind: "end_of_day", Date: e.date, Zone: e.zone} })
			if err != nil {
				return err
			}
			g, err := s.api.Grant(ctx, client.Grant{GrantKey: fmt.Sprintf("zone-%d", i), TemplateID: template, UserID: "one"})
			if end.Before(s.Now()) { // history: nothing is granted, and the answer says what the end was
				past++
				if client.IsCode(err, client.CodeAlreadyEnded) && strings.Contains(g.Detail, e.end) {
					told++
				} else {
					w.cfg.View.Step(fmt.Sprintf("amiss: %s %s: %v, should tell of %s", e.zone, e.date, err, e.end))
				}
				continue
			}
			if err != nil {
				return err
			}
			c, err := s.api.Coupon(ctx, g.CouponID)
			if err != nil {
				return err
			}
			if c.ExpiresAt != nil && c.ExpiresAt.Equal(end) && g.ExpiresAt != nil && g.ExpiresAt.Equal(end) {
				right++
			} else {
				w.cfg.View.Step(fmt.Sprintf("amiss: %s %s: %v, should be %s", e.zone, e.date, c.ExpiresAt, e.end))
			}
		}
		want(t, "ends_to_come", right, Equal, len(endsOfDays())-past)
		want(t, "ends_of_history", told, Equal, past)
		return w.daysAfter(ctx, s)
	})
}

// daysAfter counts local dates, in a zone where it is another day than in UTC for half of the time.
func (w *checkout) daysAfter(ctx context.Context, s *shop) error {
	right := 0
	zones := []string{"Pacific/Apia", "Pacific/Kiritimati", "America/Sao_Paulo", "Asia/Shanghai", "Pacific/Pago_Pago"}
	for i, zone := range zones {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			return fmt.Errorf("a zone: %w", err)
		}
		template, err := s.template(ctx, func(t *client.Terms) { t.Rule = client.Rule{Kind: "days_after", Days: 7, Zone: zone} })
		if err != nil {
			return err
		}
		g, err := s.api.Grant(ctx, client.Grant{GrantKey: fmt.Sprintf("days-%d", i), TemplateID: template, UserID: "one"})
		if err != nil {
			return err
		}
		c, err := s.api.Coupon(ctx, g.CouponID)
		if err != nil {
			return err
		}
		// None of these zones changes its clock any more: the day after is a midnight.
		y, m, d := c.GrantedAt.In(loc).Date()
		if c.ExpiresAt != nil && c.ExpiresAt.Equal(time.Date(y, m, d+8, 0, 0, 0, 0, loc)) {
			right++
		}
	}
	want(s.t, "days_after", right, Equal, len(zones))
	return nil
}

const (
	walletCoupons = 10_000
	walletPage    = 200
)

// wallet pages through a user's coupons, of one state and of all.
func (w *checkout) wallet(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		w.cfg.View.Step(fmt.Sprintf("granting %d coupons to one user", walletCoupons))
		random := rand.New(rand.NewPCG(w.cfg.Seed, w.index))
		base := s.soon(time.Hour)
		ids, err := s.grant(ctx, template, walletCoupons, func(i int, g *client.Grant) {
			end := base.Add(time.Duration(random.IntN(walletCoupons/4)) * time.Second) // several to a second
			g.UserID, g.ExpiresAt, g.Never = "rich", &end, i%100 == 0
			if g.Never {
				g.ExpiresAt = nil
			}
		})
		if err != nil {
			return err
		}
		for _, state := range []client.State{client.Unused, ""} {
			prefix := "all_"
			if state != "" {
				prefix = string(state) + "_"
			}
			seen := make(map[string]bool)
			var took []time.Duration
			pages, disorder := 0, 0
			var last *client.Coupon
			for page := ""; ; {
				start := time.Now()
				p, err := s.api.UserCoupons(ctx, "rich", client.WalletQuery{State: state, Limit: walletPage, Page: page})
				if err != nil {
					return err
				}
				took = append(took, time.Since(start))
				pages++
				for i := range p.Coupons {
					c := &p.Coupons[i]
					seen[c.CouponID] = true
					if last != nil && !inOrder(last, c) {
						disorder++
					}
					last = c
				}
				if page = p.Next; page == "" || pages > walletCoupons {
					break
				}
			}
			want(t, prefix+"coupons", len(seen), Equal, len(ids))
			want(t, prefix+"out_of_order", disorder, Equal, 0)
			want(t, prefix+"pages", pages, AtMost, walletCoupons/walletPage+5)
			want(t, prefix+"page_p99_ms", late(took, 99), AtMost, second/4)
		}
		start := time.Now()
		sum, err := s.api.Summary(ctx, "rich")
		if err != nil {
			return err
		}
		want(t, "summary_ms", time.Since(start).Milliseconds(), AtMost, second)
		want(t, "summary_usable", boolean(sum.Usable == walletCoupons || sum.More), Equal, 1)
		return nil
	})
}

// inOrder: by the end, never last, then by id.
func inOrder(a, b *client.Coupon) bool {
	switch {
	case a.ExpiresAt == nil && b.ExpiresAt != nil:
		return false
	case b.ExpiresAt != nil && a.ExpiresAt.After(*b.ExpiresAt):
		return false
	case b.ExpiresAt == nil && a.ExpiresAt != nil, b.ExpiresAt != nil && a.ExpiresAt.Before(*b.ExpiresAt):
		return true
	default:
		return len(a.CouponID) < len(b.CouponID) || len(a.CouponID) == len(b.CouponID) && a.CouponID < b.CouponID
	}
}

// lazy lets ends pass without an expirer: whoever reads sees expired coupons all the same.
func (w *checkout) lazy(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		if err := s.Fleet().StopOne(ctx, demo.Expirer); err != nil {
			return err
		}
		const n = 30
		end := s.soon(5 * time.Second)
		ids, err := s.grant(ctx, template, n, func(_ int, g *client.Grant) { g.UserID, g.ExpiresAt = "one", &end })
		if err != nil {
			return err
		}
		for _, id := range ids[:n/3] { // locks that run out with the coupon
			if _, err := s.api.Lock(ctx, "lazy-"+id, client.Order{UserID: "one", CouponIDs: []string{id}, LockFor: time.Second}); err != nil {
				return err
			}
		}
		w.cfg.View.Step("the expirer is away; the end passes")
		if err := lifecycle.Sleep(ctx, end.Sub(s.Now())+5*time.Millisecond); err != nil {
			return err
		}
		if err := s.seenExpired(ctx, ids); err != nil {
			return err
		}
		stored, err := countIn(ctx, s.DB(), "SELECT COUNT(*) FROM coupon WHERE status IN (1, 2)")
		if err != nil {
			return err
		}
		want(t, "stored_as_live", stored, Equal, n)
		if err := s.Start(ctx, demo.Expirer); err != nil {
			return err
		}
		if err := s.settled(ctx, n, end, drainFor); err != nil {
			return err
		}
		fates, err := s.fates(ctx)
		if err != nil {
			return err
		}
		causes := make(map[string]int)
		for _, f := range fates {
			if f.expired == 1 {
				causes[f.cause]++
			}
		}
		want(t, "expired_by_lazy_ladder_or_lock", causes["lazy"]+causes["ladder"]+causes["lock"], Equal, n)
		told(t, "expired_by_lazy", causes["lazy"])
		if err := s.agreed(ctx, "", false); err != nil {
			return err
		}
		return w.rung(ctx, s, template)
	})
}

// rung reads ended coupons whose triggers the ladder has lost: the reader's own expires each, long before the sweep would.
func (w *checkout) rung(ctx context.Context, s *shop, template string) error {
	const n = 20
	first, end, err := s.plant(ctx, planted{
		template: template, n: n, status: statusUnused, ends: s.Now().Add(-time.Second).Truncate(time.Second), granted: s.Now().Add(-time.Hour), user: "rung",
	})
	if err != nil {
		return err
	}
	w.cfg.View.Step(fmt.Sprintf("%d ended coupons without a trigger are read", n))
	for id := first; id < end; id++ {
		if _, err := s.api.Coupon(ctx, strconv.Itoa(id)); err != nil {
			return err
		}
	}
	if err := s.allEnded(ctx, first, end, drainFor); err != nil {
		return err
	}
	e, err := s.endings(ctx, first, end)
	if err != nil {
		return err
	}
	want(s.t, "rung_expired_by_lazy", e.by["lazy"], Equal, n)
	want(s.t, "rung_twice", e.twice, Equal, 0)
	want(s.t, "rung_early", e.early, Equal, 0)
	return nil
}

// seenExpired asks by every way there is.
func (s *shop) seenExpired(ctx context.Context, ids []string) error {
	got, valid := 0, 0
	for _, id := range ids {
		c, err := s.api.Coupon(ctx, id)
		if err != nil {
			return err
		}
		v, err := s.api.Validate(ctx, id, "one", "", &client.Basket{Amount: 10_000, Currency: "CNY"})
		if err != nil {
			return err
		}
		got += boolean(c.State == client.Expired)
		valid += boolean(!v.Usable && v.Code == client.CodeExpired && v.State == client.Expired)
	}
	want(s.t, "get_says_expired", got, Equal, len(ids))
	want(s.t, "validate_says_expired", valid, Equal, len(ids))
	for state, n := range map[client.State]int{client.Expired: len(ids), client.Unused: 0, client.Locked: 0, "": len(ids)} {
		seen := 0
		for page, more := "", true; more; more = page != "" {
			p, err := s.api.UserCoupons(ctx, "one", client.WalletQuery{State: state, Limit: 7, Page: page})
			if err != nil {
				return err
			}
			for _, c := range p.Coupons {
				seen += boolean(c.State == client.Expired)
			}
			page = p.Next
		}
		name := string(state)
		if name == "" {
			name = "all"
		}
		want(s.t, "list_"+name, seen, Equal, n)
	}
	choice, err := s.api.Best(ctx, "one", client.Basket{Amount: 10_000, Currency: "CNY"})
	if err != nil {
		return err
	}
	want(s.t, "best_finds_one", boolean(choice.Best != nil), Equal, 0)
	_, err = s.api.Redeem(ctx, "too-late", client.Order{UserID: "one", CouponIDs: ids[len(ids)-1:]})
	var e *client.Error
	want(s.t, "redeem_refused_as_expired", boolean(errors.As(err, &e) && e.Code == client.CodeExpired && e.State == client.Expired), Equal, 1)
	sum, err := s.api.Summary(ctx, "one")
	if err != nil {
		return err
	}
	want(s.t, "summary_usable", sum.Usable, Equal, 0)
	return nil
}
