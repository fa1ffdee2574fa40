package verify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const daysRules = `[{"channels":["inbox","push"]}]`

// crowd is how many coupons of one user end on one day.
const crowd = 1000

// digest grants coupons that end on one local day of their user's, and looks for one notice that names them all.
func (w *notices) digest(ctx context.Context, t *tally) error {
	change := changeOfClocks(time.Now())
	offsets := "-1d"
	if change.days > 1 {
		offsets = fmt.Sprintf("-1d,-%dd", change.days)
	}
	o := posting{rules: daysRules, publisher: map[string]string{"LAPSE__REMINDERS__OFFSETS": offsets}}
	return w.openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		if err := p.notifiers(ctx, 2); err != nil {
			return err
		}
		begin := p.soon(45 * time.Second)
		type oneDay struct {
			name, user, zone string
			ends             []time.Time
		}
		spread := func(first time.Time, zone string, n int) []time.Time {
			room := untilMidnight(first, zone) - time.Minute
			step := min(time.Hour, room/time.Duration(max(1, min(n, couponsEach)-1))).Truncate(time.Second)
			ends := make([]time.Time, n)
			for i := range ends {
				ends[i] = first.Add(step * time.Duration(i%couponsEach))
			}
			return ends
		}
		cases := []oneDay{
			{name: "morning", zone: morning(begin), ends: spread(begin.Add(day), morning(begin), couponsEach)},
			{name: "utc14", zone: "Pacific/Kiritimati", ends: spread(begin.Add(day), "Pacific/Kiritimati", couponsEach)},
			{name: "utc12west", zone: "Etc/GMT+12", ends: spread(begin.Add(day), "Etc/GMT+12", couponsEach)},
			{name: "crowd", zone: morning(begin), ends: spread(begin.Add(day), morning(begin), crowd)},
		}
		if change.days > 1 {
			first := begin.Add(time.Duration(change.days) * day)
			w.cfg.View.Step(fmt.Sprintf("clocks change in %s in %d days", change.zone, change.days))
			cases = append(cases, oneDay{name: "clocks_change", zone: change.zone, ends: spread(first, change.zone, couponsEach)})
		}
		told(t, "days_to_a_change_of_clocks", change.days)
		people := make([]person, len(cases))
		for i := range cases {
			cases[i].user = "digest-" + cases[i].name
			people[i] = person{id: cases[i].user, zone: cases[i].zone, locale: "en", push: "token-" + cases[i].name}
		}
		if err := p.profiles(ctx, people); err != nil {
			return err
		}
		template, err := p.template(ctx, func(terms *client.Terms) { terms.Rule.After = "2400h" })
		if err != nil {
			return err
		}
		for _, c := range cases {
			w.cfg.View.Step(fmt.Sprintf("%s: %d coupons of a user in %s", c.name, len(c.ends), c.zone))
			_, err := p.grant(ctx, template, len(c.ends), func(i int, g *client.Grant) {
				g.UserID, g.GrantKey, g.ExpiresAt = c.user, fmt.Sprintf("%s-%d", c.user, i), &c.ends[i]
			})
			if err != nil {
				return err
			}
		}
		if err := lifecycle.Sleep(ctx, begin.Add(5*time.Second).Sub(p.Now())); err != nil {
			return err
		}
		if err := p.settledAll(ctx, time.Minute); err != nil {
			return err
		}
		for _, c := range cases {
			if err := p.toldOnce(ctx, c.name, c.user, len(c.ends)); err != nil {
				return err
			}
		}
		longest := 0
		for _, a := range p.push.Arrivals() {
			longest = max(longest, len(a.Text))
		}
		want(t, "longest_text", longest, AtMost, 1000)
		return nil
	})
}

// toldOnce holds a user to have got one notice by each channel, of so many coupons.
func (p *post) toldOnce(ctx context.Context, name, user string, coupons int) error {
	for _, channel := range []string{"inbox", "push"} {
		n, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM notice WHERE user_id = ? AND channel = ? AND state = 'sent'", []byte(user), channel)
		if err != nil {
			return err
		}
		want(p.t, name+"_"+channel, n, Equal, 1)
	}
	items, err := countIn(ctx, p.DB(), "SELECT COALESCE(MAX(items), 0) FROM inbox WHERE user_id = ?", []byte(user))
	if err != nil {
		return err
	}
	want(p.t, name+"_coupons", items, Equal, coupons)
	said := 0
	for _, a := range p.push.Arrivals() {
		if a.UserID == user && a.Params["count"] == strconv.Itoa(coupons) {
			said++
		}
	}
	want(p.t, name+"_said", said, Equal, 1)
	return nil
}

// untilMidnight is how long the local day goes on.
func untilMidnight(at time.Time, zone string) time.Duration {
	place, err := time.LoadLocation(zone)
	if err != nil {
		return time.Hour // the profile will say that there is no such zone
	}
	y, m, d := at.In(place).Date()
	return time.Date(y, m, d+1, 0, 0, 0, 0, place).Sub(at)
}

// clockChange is a day ahead on which the clocks of a zone change.
type clockChange struct {
	zone string
	days int // from now; 0: none within the reach of offsets
}

// changeOfClocks looks for a zone whose clocks change within the five hours that begin so many whole days from now, or at least on that
// day. There nearly always is one.
func changeOfClocks(now time.Time) clockChange {
	zones := []string{
		"Europe/Berlin", "America/New_York", "America/Santiago", "America/Asuncion", "Africa/Cairo", "Africa/Casablanca", "Asia/Jerusalem",
		"Asia/Beirut", "Australia/Lord_Howe", "Australia/Sydney", "Pacific/Auckland", "Pacific/Norfolk", "America/Havana", "Europe/Chisinau",
		"Atlantic/Azores", "America/Nuuk", "America/Los_Angeles", "America/St_Johns", "Pacific/Chatham", "Antarctica/Troll", "Africa/El_Aaiun",
	}
	const farthest = 89
	var onTheDay clockChange
	for _, zone := range zones {
		place, err := time.LoadLocation(zone)
		if err != nil {
			continue
		}
		for days := 2; days <= farthest; days++ {
			first := now.Add(time.Duration(days)*day + 45*time.Second)
			last := first.Add(min(4*time.Hour, untilMidnight(first, zone)-time.Minute))
			_, before := first.In(place).Zone()
			_, after := last.In(place).Zone()
			if before != after {
				return clockChange{zone, days}
			}
			y, m, d := first.In(place).Date()
			_, morning := time.Date(y, m, d, 0, 0, 0, 0, place).Zone()
			_, night := time.Date(y, m, d+1, 0, 0, 0, 0, place).Zone()
			if morning != night && onTheDay.days == 0 && untilMidnight(first, zone) > time.Hour {
				onTheDay = clockChange{zone, days}
			}
		}
	}
	return onTheDay
}

// fateOfOne is what happens to a coupon around the hour of its reminder, and how often its user is to be told.
type fateOfOne struct {
	name   string
	ends   time.Duration // from the hour's day on; zero: exactly a day after it
	before func(ctx context.Context, p *post, user, id string) error
	after  func(ctx context.Context, p *post, user, id string) error
	told   int
}

func fatesOfOne(hour time.Time) []fateOfOne {
	lock := func(d time.Duration) func(ctx context.Context, p *post, user, id string) error {
		return func(ctx context.Context, p *post, user, id string) error {
			_, err := p.api.Lock(ctx, "order-"+id, client.Order{UserID: user, CouponIDs: []string{id}, LockFor: d})
			return err
		}
	}
	both := func(fs ...func(ctx context.Context, p *post, user, id string) error) func(ctx context.Context, p *post, user, id string) error {
		return func(ctx context.Context, p *post, user, id string) error {
			for _, f := range fs {
				if err := f(ctx, p, user, id); err != nil {
					return err
				}
			}
			return nil
		}
	}
	release := func(ctx context.Context, p *post, user, id string) error {
		_, err := p.api.Release(ctx, "order-"+id, client.Order{UserID: user, CouponIDs: []string{id}})
		return err
	}
	redeem := func(ctx context.Context, p *post, user, id string) error {
		_, err := p.api.Redeem(ctx, "order-"+id, client.Order{UserID: user, CouponIDs: []string{id}})
		return err
	}
	refund := func(ctx context.Context, p *post, user, id string) error {
		_, err := p.api.Refund(ctx, "order-"+id, client.Order{UserID: user, CouponIDs: []string{id}})
		return err
	}
	extend := func(by time.Duration) func(ctx context.Context, p *post, user, id string) error {
		return func(ctx context.Context, p *post, _, id string) error {
			end := hour.Add(day + by)
			_, err := p.api.Extend(ctx, id, &end, "verify")
			return err
		}
	}
	void := func(ctx context.Context, p *post, _, id string) error {
		_, err := p.api.Void(ctx, id, "verify", false)
		return err
	}
	return []fateOfOne{
		{name: "left_alone", told: 1},
		{name: "granted_inside_the_offset", ends: -2 * time.Hour, told: 0},
		{name: "released_before", before: both(lock(time.Hour), release), told: 1},
		{name: "released_after", before: lock(time.Hour), after: release, told: 1},
		{name: "ran_out_after", before: lock(time.Until(hour) + 10*time.Second), told: 1},
		{name: "locked_throughout", before: lock(90 * time.Minute), told: 0},
		{name: "refunded_before", before: both(redeem, refund), told: 1},
		{name: "refunded_after", before: redeem, after: refund, told: 1},
		{name: "used", before: redeem, told: 0},
		{name: "voided", before: void, told: 0},
		{name: "extended_before", before: extend(30 * time.Second), told: 1},
		{name: "extended_after", after: extend(time.Minute), told: 1},
		{name: "released_after_it_was_told", after: both(lock(time.Hour), release), told: 1},
	}
}

// lateOnes lets coupons go through what others do to them around the hour of their reminder.
func (w *notices) lateOnes(ctx context.Context, t *tally) error {
	o := posting{rules: daysRules, notifier: map[string]string{"LAPSE__NOTICE__POLICY__LATE__SEND": "true"}}
	return w.openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		if err := p.notifiers(ctx, 2); err != nil {
			return err
		}
		hour := p.soon(40 * time.Second)
		fates := fatesOfOne(hour)
		people := make([]person, len(fates))
		for i, f := range fates {
			people[i] = person{id: f.name, zone: morning(hour), locale: "en", push: "token-" + f.name}
		}
		if err := p.profiles(ctx, people); err != nil {
			return err
		}
		template, err := p.template(ctx, func(terms *client.Terms) { terms.Rule.After = "2400h" })
		if err != nil {
			return err
		}
		ids, err := p.grant(ctx, template, len(fates), func(i int, g *client.Grant) {
			end := hour.Add(day + fates[i].ends)
			g.UserID, g.ExpiresAt = fates[i].name, &end
		})
		if err != nil {
			return err
		}
		w.cfg.View.Step("before the hour")
		for i, f := range fates {
			if f.before != nil {
				if err := f.before(ctx, p, f.name, ids[i]); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
		}
		told(t, "left_until_the_hour_ms", int(hour.Sub(p.Now()).Milliseconds()))
		if err := lifecycle.Sleep(ctx, hour.Add(5*time.Second).Sub(p.Now())); err != nil {
			return err
		}
		if err := p.settledAll(ctx, time.Minute); err != nil {
			return err
		}
		w.cfg.View.Step("after the hour")
		for i, f := range fates {
			if f.after != nil {
				if err := f.after(ctx, p, f.name, ids[i]); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
		}
		if err := lifecycle.Sleep(ctx, 15*time.Second); err != nil { // a lock runs out 10 s after the hour; nothing else is to come
			return err
		}
		if err := p.settledAll(ctx, time.Minute); err != nil {
			return err
		}
		for _, f := range fates {
			for _, channel := range []string{"inbox", "push"} {
				n, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM notice WHERE user_id = ? AND channel = ? AND state = 'sent'", []byte(f.name), channel)
				if err != nil {
					return err
				}
				want(t, f.name+"_"+channel, n, Equal, f.told)
			}
		}
		came, _ := p.push.Counts()
		want(t, "push_repeats", sum(came)-len(came), Equal, 0)
		return nil
	})
}
