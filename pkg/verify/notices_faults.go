package verify

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

const endedRules = `[{"channels":["inbox","email","push"]}]`

// badDay is what goes wrong at a provider.
type badDay struct {
	name  string
	fault receive.Fault
}

func badDays() []badDay {
	return []badDay{
		{"hang", receive.Fault{Act: receive.ActHang}},
		{"500", receive.Fault{Act: receive.ActCode, Code: 500}},
		{"429", receive.Fault{Act: receive.ActCode, Code: 429, RetryAfter: "2"}},
		{"garbage", receive.Fault{Act: receive.ActGarbage}},
		{"cut", receive.Fault{Act: receive.ActCut}},
	}
}

// rates are what a round did, a second: from the instant of the ends until the last.
type rates struct {
	expired, inbox, email float64
}

const faultRounds = 3 // of each fault, with one without before each and after the last

// badProviders lets coupons end in rounds, alternately with a push provider that works and with one that does not.
func (w *notices) badProviders(ctx context.Context, t *tally) error {
	return w.openPost(ctx, t, posting{rules: endedRules}, func(ctx context.Context, p *post) error {
		if err := p.notifiers(ctx, 1); err != nil {
			return err
		}
		n := w.reach.ended
		people := make([]person, n)
		for i := range people {
			people[i] = person{id: userOf(i), locale: "en", zone: "UTC", email: userOf(i) + "@example.com", push: fmt.Sprintf("token-%06d", i)}
		}
		if err := p.profiles(ctx, people); err != nil {
			return err
		}
		if _, err := p.round(ctx, "warm-up", n); err != nil {
			return err
		}
		good, err := p.round(ctx, "before", n)
		if err != nil {
			return err
		}
		all := []rates{good}
		ratios := make(map[string][]rates)
		for k := range faultRounds {
			for _, day := range badDays() {
				p.push.Fault(day.fault)
				bad, err := p.round(ctx, fmt.Sprintf("%s-%d", day.name, k), n)
				if err != nil {
					return err
				}
				p.push.Fault(receive.Fault{})
				if err := p.settledAll(ctx, 2*time.Minute); err != nil {
					return err
				}
				after, err := p.round(ctx, fmt.Sprintf("after-%s-%d", day.name, k), n)
				if err != nil {
					return err
				}
				ratios[day.name] = append(ratios[day.name], bad.of(good, after))
				good, all = after, append(all, after)
			}
		}
		for _, day := range badDays() {
			m := middle(ratios[day.name])
			want(t, day.name+"_expiry_of_without", m.expired, AtLeast, 0.9)
			want(t, day.name+"_inbox_of_without", m.inbox, AtLeast, 0.9)
			want(t, day.name+"_email_of_without", m.email, AtLeast, 0.9)
		}
		m := middle(all)
		told(t, "expiry_a_second", int(m.expired))
		told(t, "email_a_second", int(m.email))
		return p.judgeBadDays(ctx, n*(2+2*faultRounds*len(badDays())))
	})
}

// of holds a round against those before and after it, so that what the machine does meanwhile weighs on all three.
func (r rates) of(before, after rates) rates {
	half := func(a, b float64) float64 { return (a + b) / 2 }
	return rates{
		r.expired / half(before.expired, after.expired), r.inbox / half(before.inbox, after.inbox), r.email / half(before.email, after.email),
	}
}

func middle(rs []rates) rates {
	v := make([][]float64, 3)
	for _, r := range rs {
		v[0], v[1], v[2] = append(v[0], r.expired), append(v[1], r.inbox), append(v[2], r.email)
	}
	return rates{median(v[0]), median(v[1]), median(v[2])}
}

// round grants a coupon to each of n users, lets all of them end at one instant, and measures until all are told by the channels
// that work.
func (p *post) round(ctx context.Context, name string, n int) (r rates, err error) {
	p.w.cfg.View.Step(fmt.Sprintf("%s: %d coupons end", name, n))
	template, err := p.template(ctx, nil)
	if err != nil {
		return r, err
	}
	end := p.soon(6*time.Second + time.Duration(n/1000)*time.Second)
	if _, err := p.grant(ctx, template, n, func(i int, g *client.Grant) { g.UserID, g.ExpiresAt = userOf(i), &end }); err != nil {
		return r, err
	}
	const ofRound = ` FROM notice n JOIN notice_item i ON i.window_id = n.window_id WHERE i.template_id = ? AND n.state IN ('sent', 'delivered') AND n.channel = `
	for _, channel := range []string{"inbox", "email"} {
		if err := p.counted(ctx, name+" by "+channel, "SELECT COUNT(*)"+ofRound+"?", n, 2*time.Minute, template, channel); err != nil {
			return r, err
		}
	}
	var expired, inbox, email sql.NullTime
	err = p.DB().QueryRowContext(ctx, `SELECT (SELECT MAX(expired_at) FROM coupon WHERE template_id = ?), (SELECT MAX(n.settled_at)`+ofRound+`'inbox'),
		(SELECT MAX(n.settled_at)`+ofRound+`'email')`, template, template, template).Scan(&expired, &inbox, &email)
	if err != nil {
		return r, fmt.Errorf("reading what a round took: %w", err)
	}
	rate := func(last sql.NullTime) float64 { return float64(n) / max(0.001, last.Time.Sub(end).Seconds()) }
	return rates{rate(expired), rate(inbox), rate(email)}, nil
}

func (p *post) judgeBadDays(ctx context.Context, expected int) error {
	if err := p.settledAll(ctx, 3*time.Minute); err != nil {
		return err
	}
	doubled, err := countIn(ctx, p.DB(), `SELECT COUNT(*) FROM (SELECT 1 FROM notice_item i JOIN notice n ON n.window_id = i.window_id
		WHERE i.dropped = '' GROUP BY i.coupon_id, n.channel HAVING COUNT(*) > 1) x`)
	if err != nil {
		return err
	}
	want(p.t, "coupons_told_twice_by_a_channel", doubled, Equal, 0)
	_, took := p.push.Counts()
	want(p.t, "push_distinct_ids_taken", len(took), Equal, expected)
	for channel, came := range map[string]map[string]int{"push": took, "email": p.mailed()} {
		states, err := p.states(ctx, channel)
		if err != nil {
			return err
		}
		want(p.t, channel+"_sent", states["sent"], Equal, expected)
		want(p.t, channel+"_distinct_ids_that_came", len(came), Equal, expected)
	}
	repeats := sum(p.mailed()) - len(p.mailed())
	want(p.t, "email_repeats", repeats, Equal, 0)
	return nil
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
