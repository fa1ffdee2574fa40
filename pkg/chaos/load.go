package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	callers   = 48               // calls at a time
	patience  = 40 * time.Second // for one answer, over all attempts
	betweenTo = 700 * time.Millisecond
)

// load drives the coupons and keeps the model: what was asked for, and what was answered.
type load struct {
	site     *site
	start    time.Time // a whole second of the database's clock
	began    time.Time // the same instant on this process's
	template string
	apis     []*client.Client
	slots    chan struct{}
	calls    atomic.Int64

	promises []model.Promise // of the plan, in its order; each is its own goroutine's until drive returns
}

// prepare makes what the load needs: a client of each publisher, a template, and users who can be told.
func (s *site) prepare(ctx context.Context, coupons int) (*load, error) {
	l := &load{site: s, slots: make(chan struct{}, callers)}
	s.aim()
	for _, w := range []string{"publisher-1", "publisher-2"} {
		api, err := client.New(client.Config{
			URL: "http://" + s.proxies[w+"/api"].addr(), Token: s.token, Actor: "chaos", Attempts: 1, Timeout: apiAttempt,
			Transport: &http.Transport{MaxConnsPerHost: callers, MaxIdleConnsPerHost: callers, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: apiAttempt},
		})
		if err != nil {
			return nil, err
		}
		l.apis = append(l.apis, api)
		s.closers = append(s.closers, func(context.Context) error { api.Close(); return nil })
	}
	t, err := l.apis[0].CreateTemplate(ctx, client.Terms{
		Name: "chaos", Rule: client.Rule{Kind: "after", After: "24h"}, Value: 500, Currency: "CNY", Precision: "exact", Reason: "chaos", LatePayWindow: "1m",
	})
	if err != nil {
		return nil, err
	}
	l.template = t.TemplateID
	return l, s.users(ctx, max(1, coupons*usersOf10/10))
}

// users tells of those who have a telephone, every third, and an address, every other one.
func (s *site) users(ctx context.Context, n int) error {
	var ms []broker.Message
	told := 0
	for i := range n {
		addresses := map[string]string{}
		if i%3 == 0 {
			addresses["phone"] = fmt.Sprintf("+86139%08d", i)
		}
		if i%2 == 0 {
			addresses["email"] = fmt.Sprintf("user-%06d@example.com", i)
		}
		if len(addresses) == 0 {
			continue
		}
		told++
		m, err := message(s.ladder().Users(), "user.profile", fmt.Sprintf("chaos-profile-%d", i), map[string]any{
			"user_id": fmt.Sprintf("user-%06d", i), "locale": []string{"en", "zh-CN"}[i%4/2], "zone": "Asia/Shanghai", "addresses": addresses,
			"at": s.installation.Now().UTC().Format(time.RFC3339Nano),
		})
		if err != nil {
			return err
		}
		ms = append(ms, m)
	}
	const batch = 1000
	for part := range slices.Chunk(ms, batch) {
		if err := errors.Join(s.publisher.Publish(ctx, part)...); err != nil {
			return fmt.Errorf("telling of users: %w", err)
		}
	}
	return until(ctx, time.Minute, func(ctx context.Context) (bool, error) {
		var have int
		err := s.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM user_profile").Scan(&have)
		return have >= told, err
	})
}

// drive does the plan. It comes back when everything has been done, or given up at the end of ctx.
func (l *load) drive(ctx context.Context, plan []planned) {
	l.start = l.site.installation.Now().Truncate(time.Second).Add(2 * time.Second).UTC()
	l.began = time.Now().Add(l.start.Sub(l.site.installation.Now()))
	l.promises = make([]model.Promise, len(plan))
	for i, p := range plan {
		l.promises[i] = model.Promise{Key: p.key, User: p.user, End: l.start.Add(p.end)}
	}
	var all sync.WaitGroup
	for from := 0; from < len(plan); from += perGrant {
		to := min(from+perGrant, len(plan))
		if lifecycle.Sleep(ctx, time.Until(l.began.Add(plan[from].grant))) != nil {
			break
		}
		all.Go(func() {
			l.grant(ctx, plan[from:to], l.promises[from:to])
			for i := from; i < to; i++ {
				if len(plan[i].acts) > 0 {
					all.Go(func() { l.live(ctx, plan[i], &l.promises[i]) })
				}
			}
		})
	}
	all.Wait()
}

// bounds of the database's clock now.
func (l *load) bounds() (low, high time.Time) { return l.site.installation.Audit().Bounds() }

// grant asks for coupons of one instant, by one call or one event, until there is an answer.
func (l *load) grant(ctx context.Context, plan []planned, promises []model.Promise) {
	sent, _ := l.bounds()
	for i := range promises {
		promises[i].Sent, promises[i].Answer = sent, model.Unknown
	}
	if plan[0].by == byEvent {
		l.grantByEvent(ctx, promises)
		return
	}
	grants := make([]client.Grant, len(promises))
	for i, p := range promises {
		grants[i] = client.Grant{GrantKey: p.Key, TemplateID: l.template, UserID: p.User, BatchID: "chaos", ExpiresAt: &promises[i].End}
	}
	for try := range 2 { // once more, as who has lost the answer: the same coupons
		var results []client.Granted
		answer, _, _ := l.ask(ctx, try, func(ctx context.Context, api *client.Client) (err error) {
			results, err = api.Grants(ctx, grants...)
			return err
		})
		if answer != model.Done {
			return
		}
		_, got := l.bounds()
		for i, r := range results {
			l.granted(&promises[i], r, got)
		}
		if promises[0].ID%4 != 0 {
			return
		}
	}
}

func (l *load) granted(p *model.Promise, r client.Granted, got time.Time) {
	id, err := strconv.ParseUint(r.CouponID, 10, 64)
	switch {
	case r.Result == client.ResultRefused:
		p.Answer, p.Code = model.Refused, string(r.Code)
	case err != nil:
		p.Answer, p.Code = model.Refused, "an answer without a coupon"
	case p.ID != 0 && p.ID != id:
		p.ID = id // the judge will find that the key stands for another one
		return
	default:
		p.Answer, p.ID = model.Done, id
	}
	p.Got = got
}

func (l *load) grantByEvent(ctx context.Context, promises []model.Promise) {
	id, err := strconv.ParseUint(l.template, 10, 64)
	if err != nil {
		return
	}
	grants := make([]coupon.Grant, len(promises))
	for i, p := range promises {
		grants[i] = coupon.Grant{Key: p.Key, TemplateID: id, UserID: p.User, BatchID: "chaos", ExpiresAt: p.End}
	}
	name := "chaos-grants-" + promises[0].Key
	body, err := l.site.installation.Codec().Grants(name, l.site.installation.Now(), grants)
	if err != nil {
		return
	}
	m := broker.Message{Exchange: l.site.ladder().Issuance(), Key: event.KeyGrant, ID: name, Body: body, ContentType: event.ContentType, Mandatory: true}
	if !l.tell(ctx, m) {
		return
	}
	for i := range promises {
		promises[i].Answer = model.Done // the broker has it
	}
}

// tell publishes until the broker has it, or patience ends.
func (l *load) tell(ctx context.Context, m broker.Message) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for ctx.Err() == nil {
		if l.site.publisher.Publish(ctx, []broker.Message{m})[0] == nil {
			return true
		}
		_ = lifecycle.Sleep(ctx, betweenTo) // ctx tells
	}
	return false
}

// ask calls one publisher after the other until there is an answer that is one.
func (l *load) ask(ctx context.Context, first int, call func(context.Context, *client.Client) error) (answer model.Answer, code string, attempts int) {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-limit.Done():
		return model.Unknown, "", 0
	}
	for i := first; limit.Err() == nil; i++ {
		attempts++
		l.calls.Add(1)
		err := call(limit, l.apis[i%len(l.apis)])
		var e *client.Error
		switch {
		case err == nil:
			return model.Done, "", attempts
		case client.Uncertain(err), client.IsCode(err, client.CodeRateLimited), limit.Err() != nil:
		case errors.As(err, &e) && e.Code != "":
			return model.Refused, string(e.Code), attempts
		}
		_ = lifecycle.Sleep(limit, drawnWait(i)) // limit tells
	}
	return model.Unknown, "", attempts
}

func drawnWait(i int) time.Duration {
	return time.Duration(50+rand.IntN(100)*min(i+1, 8)) * time.Millisecond
}
