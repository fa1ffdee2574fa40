package verify

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	couponsEach = 5
	pods        = 3
	planAhead   = 2 * time.Minute // how long before its hour a reminder is planned
	usedOfMany  = 10              // one user in so many uses a coupon meanwhile
	inFlight    = 3 * concurrency // of a process that dies: what its three far channels had in their hands
)

// fleetRules: who has much gets an SMS, everybody else a push; all of them their inbox and, who has an address, e-mail.
const fleetRules = `[{"min_value":20000,"currency":"CNY","channels":["inbox","sms","email"]},{"channels":["inbox","push","email"]}]`

// morning is a zone where it is about nine o'clock, so that hours ahead are on the same day.
func morning(now time.Time) string {
	ahead := 9 - now.UTC().Hour() // hours east of Greenwich, at least -14
	if ahead < -11 {
		ahead += 24
	}
	return fmt.Sprintf("Etc/GMT%+d", -ahead) // the names' signs are the other way round
}

func (w *notices) fleetOfThree(ctx context.Context, t *tally) error {
	// What is planted must lie beyond the planner, whose walks begin when the publisher does: no verb tells of it.
	o := posting{rules: fleetRules, publisher: map[string]string{"LAPSE__REMINDERS__LEAD_DAYS": planAhead.String()}}
	return w.openPost(ctx, t, o, func(ctx context.Context, p *post) error {
		users := w.reach.users
		low := users * 3 / 4
		w.cfg.View.Step(fmt.Sprintf("three notifiers; %d users", users))
		if err := p.notifiers(ctx, pods); err != nil {
			return err
		}
		zone := morning(p.Now())
		people := make([]person, users)
		for i := range people {
			people[i] = person{id: userOf(i), locale: []string{"en", "zh-CN"}[i%2], zone: zone, phone: fmt.Sprintf("+86139%08d", i), push: fmt.Sprintf("token-%06d", i)}
			if i%2 == 0 {
				people[i].email = userOf(i) + "@example.com"
			}
		}
		if err := p.profiles(ctx, people); err != nil {
			return err
		}
		lead := planAhead + 2*time.Minute + time.Duration(users*couponsEach/1000)*time.Second
		ends := p.soon(day + lead)
		used, err := p.stockUp(ctx, users, low, ends)
		if err != nil {
			return err
		}
		w.cfg.View.Step("the planner reminds, the notifiers collect")
		if err := p.counted(ctx, "reminders collected", "SELECT COUNT(DISTINCT coupon_id) FROM notice_item", users*couponsEach, lead+time.Minute); err != nil {
			return err
		}
		told(t, "collected_before_the_hour_ms", int(ends.Add(-day).Sub(p.Now()).Milliseconds()))
		if err := p.useSome(ctx, used); err != nil {
			return err
		}
		expected := users + users/2 // far messages: one SMS or push each, and half of them a letter
		if err := p.killInTheMiddle(ctx, expected); err != nil {
			return err
		}
		w.cfg.View.Step("the rest is told")
		if err := p.settledAll(ctx, time.Duration(users/50)*time.Second+3*time.Minute); err != nil {
			return err
		}
		return p.judgeFleet(ctx, users, low, used)
	})
}

// stockUp plants five coupons for each user, and gives one coupon each of those who will use it, by user.
func (p *post) stockUp(ctx context.Context, users, low int, ends time.Time) (used map[string]string, err error) {
	cheap, err := p.template(ctx, nil)
	if err != nil {
		return nil, err
	}
	dear, err := p.template(ctx, func(t *client.Terms) { t.Value = 5000 })
	if err != nil {
		return nil, err
	}
	used = make(map[string]string)
	begun, base := p.Now(), 0
	for _, part := range []struct {
		template string
		users    int
	}{{cheap, low}, {dear, users - low}} {
		first, end, err := p.plant(ctx, planted{
			template: part.template, n: part.users * couponsEach, status: statusUnused, ends: ends, apart: time.Second, spread: 7, granted: begun.Add(-time.Hour),
		})
		if err != nil {
			return nil, err
		}
		if _, err := p.DB().ExecContext(ctx, `UPDATE coupon SET user_id = CONCAT('user-', LPAD(? + (id - ?) % ?, 6, '0')) WHERE id >= ? AND id < ?`,
			base, first, part.users, first, end); err != nil {
			return nil, fmt.Errorf("giving the coupons to their users: %w", err)
		}
		for i := 0; i < part.users; i += usedOfMany {
			used[userOf(base+i)] = strconv.Itoa(first + i)
		}
		base += part.users
	}
	return used, nil
}

// useSome redeems the coupons.
func (p *post) useSome(ctx context.Context, used map[string]string) error {
	p.w.cfg.View.Step(fmt.Sprintf("%d of them are used before the hour has come", len(used)))
	work, limit := errgroup.WithContext(ctx)
	work.SetLimit(16)
	for user, id := range used {
		work.Go(func() error {
			_, err := p.api.Redeem(limit, "used-"+id, client.Order{UserID: user, CouponIDs: []string{id}})
			return err
		})
	}
	return work.Wait()
}

// killInTheMiddle kills one notifier when three in ten of the messages have come, and starts it again.
func (p *post) killInTheMiddle(ctx context.Context, expected int) error {
	limit, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	come := func() int {
		pushed, _ := p.push.Total()
		texted, _ := p.sms.Total()
		letters, _ := p.mail.Total()
		return pushed + texted + letters
	}
	err := until(limit, func() (bool, error) { return come() >= expected*3/10, nil })
	if err != nil {
		return fmt.Errorf("waiting for the messages to be under way: %w", err)
	}
	p.w.cfg.View.Step("kill -9 of a notifier in the middle")
	if err := p.Fleet().Kill(notifierName(2)); err != nil {
		return err
	}
	want(p.t, "come_at_the_kill", come(), Below, expected*9/10)
	if err := lifecycle.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	return p.Start(ctx, notifierName(2))
}

func (p *post) judgeFleet(ctx context.Context, users, low int, used map[string]string) error {
	t := p.t
	doubled, err := countIn(ctx, p.DB(), moreThanOne)
	if err != nil {
		return err
	}
	want(t, "notices_of_one_window_and_channel_twice", doubled, Equal, 0)
	windows, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM notice_window")
	if err != nil {
		return err
	}
	want(t, "windows", windows, Equal, users)
	dropped, err := countIn(ctx, p.DB(), "SELECT COUNT(DISTINCT coupon_id) FROM notice_item WHERE dropped = 'changed'")
	if err != nil {
		return err
	}
	want(t, "used_meanwhile_dropped", dropped, Equal, len(used))

	inbox, err := p.states(ctx, "inbox")
	if err != nil {
		return err
	}
	want(t, "inbox_sent", inbox["sent"], Equal, users)
	rows, err := countIn(ctx, p.DB(), "SELECT COUNT(*) FROM inbox")
	if err != nil {
		return err
	}
	want(t, "inbox_rows", rows, Equal, users)
	pushed, _ := p.push.Counts()
	if err := p.judgeFar(ctx, "push", pushed, low); err != nil {
		return err
	}
	if err := p.judgeFar(ctx, "email", p.mailed(), users/2); err != nil {
		return err
	}
	p.judgeWords(used)
	return p.judgeSMS(ctx, users-low)
}

// judgeFar holds what came by a channel that may repeat against its rows.
func (p *post) judgeFar(ctx context.Context, channel string, came map[string]int, expected int) error {
	states, err := p.states(ctx, channel)
	if err != nil {
		return err
	}
	unknown, missing, repeats, unexplained, err := p.arrived(ctx, channel, came)
	if err != nil {
		return err
	}
	t := p.t
	want(t, channel+"_sent", states["sent"], Equal, expected)
	want(t, channel+"_distinct_ids_that_came", len(came), Equal, expected)
	want(t, channel+"_ids_without_a_row", unknown, Equal, 0)
	want(t, channel+"_sent_but_not_come", missing, Equal, 0)
	want(t, channel+"_repeats_only_at_the_kill", repeats, AtMost, inFlight)
	want(t, channel+"_repeats_without_a_second_try", unexplained, Equal, 0)
	return nil
}

func (p *post) judgeSMS(ctx context.Context, expected int) error {
	states, err := p.states(ctx, "sms")
	if err != nil {
		return err
	}
	came, _ := p.sms.Counts()
	most := 0
	for _, n := range came {
		most = max(most, n)
	}
	_, missing, _, _, err := p.arrived(ctx, "sms", came)
	t := p.t
	want(t, "sms_sent_or_unknown", states["sent"]+states["unknown"], Equal, expected)
	want(t, "sms_most_of_one", most, Equal, 1)
	want(t, "sms_unknown_only_at_the_kill", states["unknown"], AtMost, inFlight)
	want(t, "sms_distinct_ids_that_came", len(came), AtLeast, states["sent"])
	want(t, "sms_sent_but_not_come", missing, Equal, 0)
	return err
}

// judgeWords holds the counts in what came against what the users had.
func (p *post) judgeWords(used map[string]string) {
	expected := func(user string) string {
		if _, ok := used[user]; ok {
			return strconv.Itoa(couponsEach - 1)
		}
		return strconv.Itoa(couponsEach)
	}
	wrong, letters := 0, 0
	for _, a := range append(p.push.Arrivals(), p.sms.Arrivals()...) {
		if a.Params["count"] != expected(a.UserID) {
			wrong++
		}
	}
	for _, l := range p.mail.Letters() {
		letters++
		user, _, _ := strings.Cut(strings.Join(l.To, ""), "@")
		if !strings.Contains(l.Subject, expected(user)) {
			wrong++
		}
	}
	want(p.t, "messages_with_a_wrong_count", wrong, Equal, 0)
	want(p.t, "letters_read", letters, AtLeast, 1)
}
