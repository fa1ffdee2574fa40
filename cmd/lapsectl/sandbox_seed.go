package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

// seedIssuer is whose grant keys the sandbox's first coupons have. Asked for again they are the same coupons.
const seedIssuer = "seed"

// seedLast is the key of the coupon that is made last: it is there, so all of them are.
const seedLast = "voided"

// seeded is a coupon of the seed as it is now.
type seeded struct {
	what   string
	coupon client.Coupon
}

// seed is a coupon to be made.
type seed struct {
	key, user, template, what string
	later                     time.Duration // until it is valid
	then                      func(ctx context.Context, c *client.Client, id, user string) error
}

// seedTemplates are one of each kind, by a name of the seed's own.
func seedTemplates(now time.Time) map[string]client.Terms {
	const shanghai = "Asia/Shanghai"
	last := now.Add(3 * 24 * time.Hour).UTC().Format(time.DateOnly)
	return map[string]client.Terms{
		"amount": {Name: "5.00 off", Rule: client.Rule{Kind: "after", After: "168h"}, Value: 500, Currency: "CNY"},
		"percent": {
			Name: "15 % off books", Rule: client.Rule{Kind: "days_after", Days: 7, Zone: shanghai}, Currency: "CNY",
			Offer: &client.Offer{Kind: "percent", BasisPoints: 1500, Cap: 3000, MinSpend: 1000, Scopes: []string{"books"}},
		},
		"midnight": {
			Name: "20.00 off until midnight", Rule: client.Rule{Kind: "end_of_day", Date: last, Zone: shanghai}, Value: 2000, Currency: "CNY",
			LatePayPolicy: "strict", Offer: &client.Offer{Kind: "amount", MinSpend: 10_000},
		},
		"reminded": {Name: "with reminders", Rule: client.Rule{Kind: "after", After: "48h"}, Value: 800, Currency: "CNY", Reminders: "-1d,-30m"},
		"limited": {
			Name: "one for each user", Rule: client.Rule{Kind: "after", After: "72h"}, Value: 300, Currency: "EUR",
			Quota: 100, PerUser: 1, QuotaBack: "total_and_user",
		},
	}
}

// seeds are one in each state, and of each template; the last one is seedLast.
func seeds() []seed {
	return []seed{
		{key: "unused", user: "mei", template: "amount", what: "5.00 off, a week from its grant"},
		{key: "percent", user: "mei", template: "percent", what: "15 % off books, ends at midnight in Shanghai"},
		{key: "midnight", user: "li", template: "midnight", what: "20.00 off, strict, ends at midnight in Shanghai"},
		{key: "reminded", user: "li", template: "reminded", what: "reminded a day and half an hour before its end"},
		{key: "limited", user: "li", template: "limited", what: "one for each user, comes back to quota and user"},
		{key: "later", user: "anna", template: "amount", what: "valid from tomorrow", later: 24 * time.Hour},
		{key: "locked", user: "anna", template: "amount", what: "held by order seed-locked", then: seedLock},
		{key: "used", user: "tom", template: "amount", what: "used by order seed-used", then: seedUse},
		{key: "refunded", user: "tom", template: "amount", what: "used by order seed-refunded, and given back", then: seedRefund},
		{key: "expired", user: "tom", template: "amount", what: "its end was brought forward", then: seedExpire},
		{key: seedLast, user: "mei", template: "amount", what: "withdrawn by an operator", then: seedVoid},
	}
}

// seedSandbox makes the seed, unless it is there, and gives it as it is now.
func seedSandbox(ctx context.Context, c *client.Client, now time.Time) ([]seeded, error) {
	_, err := c.CouponByGrantKey(ctx, seedIssuer, seedLast)
	switch {
	case client.IsCode(err, client.CodeNotFound):
		if err := makeSeed(ctx, c, now); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err //nolint:wrapcheck // names the request
	}
	out := make([]seeded, 0, len(seeds()))
	for _, s := range seeds() {
		coupon, err := c.CouponByGrantKey(ctx, seedIssuer, s.key)
		if err != nil {
			return nil, err //nolint:wrapcheck // names the request
		}
		out = append(out, seeded{what: s.what, coupon: coupon})
	}
	return out, nil
}

func makeSeed(ctx context.Context, c *client.Client, now time.Time) error {
	ids, templates := map[string]string{}, seedTemplates(now)
	for _, name := range slices.Sorted(maps.Keys(templates)) {
		terms := templates[name]
		terms.Reason = "the sandbox's seed"
		t, err := c.CreateTemplate(client.WithIdempotencyKey(ctx, "seed-"+name), terms)
		if err != nil {
			return err //nolint:wrapcheck // names the request
		}
		ids[name] = t.TemplateID
	}
	for _, s := range seeds() {
		g := client.Grant{GrantKey: s.key, Issuer: seedIssuer, TemplateID: ids[s.template], UserID: s.user, BatchID: "seed"}
		if s.later > 0 {
			from := now.Add(s.later).Truncate(time.Second)
			g.ValidFrom = &from
		}
		got, err := c.Grant(ctx, g)
		if err != nil {
			return err //nolint:wrapcheck // names the request
		}
		if s.then == nil {
			continue
		}
		if err := s.then(ctx, c, got.CouponID, s.user); err != nil {
			return fmt.Errorf("coupon %s: %w", s.key, err)
		}
	}
	return nil
}

func seedLock(ctx context.Context, c *client.Client, id, user string) error {
	_, err := c.Lock(ctx, "seed-locked", client.Order{UserID: user, CouponIDs: []string{id}, LockFor: 24 * time.Hour})
	return err //nolint:wrapcheck // names the request
}

func seedUse(ctx context.Context, c *client.Client, id, user string) error {
	_, err := c.Redeem(ctx, "seed-used", client.Order{UserID: user, CouponIDs: []string{id}})
	return err //nolint:wrapcheck // names the request
}

func seedRefund(ctx context.Context, c *client.Client, id, user string) error {
	order := client.Order{UserID: user, CouponIDs: []string{id}}
	if _, err := c.Redeem(ctx, "seed-refunded", order); err != nil {
		return err //nolint:wrapcheck // names the request
	}
	_, err := c.Refund(ctx, "seed-refunded", order)
	return err //nolint:wrapcheck // names the request
}

func seedVoid(ctx context.Context, c *client.Client, id, _ string) error {
	_, err := c.Void(ctx, id, "the sandbox's seed", false)
	return err //nolint:wrapcheck // names the request
}

const (
	seedWait = 30 * time.Second // for the fleet to expire a coupon
	seedPoll = 200 * time.Millisecond
)

// seedExpire brings the end forward and waits until the fleet has expired the coupon: that it does is the sandbox's proof.
func seedExpire(ctx context.Context, c *client.Client, id, _ string) error {
	if _, err := c.Forward(ctx, id, client.AheadEnd, time.Second); err != nil {
		return err //nolint:wrapcheck // names the request
	}
	ctx, cancel := context.WithTimeout(ctx, seedWait)
	defer cancel()
	tick := time.NewTicker(seedPoll)
	defer tick.Stop()
	for {
		coupon, err := c.Coupon(ctx, id)
		if err != nil {
			return err //nolint:wrapcheck // names the request
		}
		if coupon.StoredState == client.Expired {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the fleet has not expired it: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}
