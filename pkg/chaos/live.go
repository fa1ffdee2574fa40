package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// live does to a coupon what its plan says, one after the other, and writes down what came of it.
func (l *load) live(ctx context.Context, plan planned, p *model.Promise) {
	id := p.ID
	if id == 0 && (p.Answer == model.Refused || p.Answer == model.Unknown && plan.by == byHTTP) {
		return
	}
	if id == 0 {
		select {
		case id = <-l.site.ears.wait(p.Key):
		case <-ctx.Done():
			return
		}
	}
	if id == 0 {
		return
	}
	name := strconv.FormatUint(id, 10)
	for n, a := range plan.acts {
		wait := a.wait
		if a.atEnd {
			wait += time.Until(l.began.Add(plan.end))
		}
		if lifecycle.Sleep(ctx, max(0, wait)) != nil {
			return
		}
		order := fmt.Sprintf("%s-%d", p.Key, a.order)
		c := model.Call{Verb: a.verb, Order: order}
		if a.verb == model.Extend {
			c.End = p.End.Add(a.move)
		}
		c.Sent, _ = l.bounds()
		if told(a.verb) {
			l.tellOrder(ctx, &c, a, p, name)
		} else {
			l.call(ctx, &c, a, p, name, n)
		}
		p.Calls = append(p.Calls, c)
	}
}

func told(v model.Verb) bool {
	return v == model.Paid || v == model.Closed || v == model.Failed || v == model.Refunded
}

// call makes a call and everything that it takes to have an answer.
func (l *load) call(ctx context.Context, c *model.Call, a act, p *model.Promise, id string, n int) {
	repeated := false
	o := client.Order{UserID: p.User, CouponIDs: []string{id}, LockFor: a.lock}
	ctx = client.WithIdempotencyKey(ctx, fmt.Sprintf("%s-%d", p.Key, n))
	c.Answer, c.Code, c.Attempts = l.ask(ctx, rand.IntN(len(l.apis)), func(ctx context.Context, api *client.Client) error {
		var acted client.Acted
		var err error
		switch c.Verb {
		case model.Lock:
			acted, err = api.Lock(ctx, c.Order, o)
		case model.Renew:
			acted, err = api.Renew(ctx, c.Order, o)
		case model.Redeem:
			acted, err = api.Redeem(ctx, c.Order, o)
		case model.Release:
			acted, err = api.Release(ctx, c.Order, o)
		case model.Refund:
			acted, err = api.Refund(ctx, c.Order, o)
		case model.Extend:
			_, err = api.Extend(ctx, id, &c.End, "chaos")
		case model.Void:
			_, err = api.Void(ctx, id, "chaos", true)
		default:
			return fmt.Errorf("no call for %s", c.Verb)
		}
		repeated = len(acted.Coupons) > 0 && acted.Coupons[0].Repeated
		return err
	})
	if c.Answer == model.Done && repeated {
		c.Answer = model.Repeated
	}
	if c.Answer != model.Unknown {
		_, c.Got = l.bounds()
	}
}

// tellOrder publishes an event of the order.
func (l *load) tellOrder(ctx context.Context, c *model.Call, a act, p *model.Promise, id string) {
	name := fmt.Sprintf("%s-%s", c.Order, a.verb)
	m, err := message(l.site.ladder().Orders(), "order."+string(a.verb), name, map[string]any{
		"order_id": c.Order, "user_id": p.User, "coupon_ids": []string{id},
	})
	c.Answer, c.Attempts = model.Unknown, 1
	if err != nil {
		return
	}
	times := 1
	if a.twice {
		times = 2
	}
	for range times {
		if l.tell(ctx, m) {
			c.Answer = model.Done
		}
	}
}

// message is a CloudEvent as another system publishes it.
func message(exchange, key, id string, data any) (broker.Message, error) {
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": id, "source": "/chaos", "type": key + ".v1", "datacontenttype": "application/json", "data": data,
	})
	if err != nil {
		return broker.Message{}, fmt.Errorf("an event: %w", err)
	}
	return broker.Message{Exchange: exchange, Key: key, ID: id, Body: body, ContentType: event.ContentType, Mandatory: true}, nil
}

// until asks again and again, errors included, until the answer is yes or the limit is over.
func until(ctx context.Context, limit time.Duration, ask func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		ok, err := ask(ctx)
		if err == nil && ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		const poll = 200 * time.Millisecond
		if err := lifecycle.Sleep(ctx, poll); err != nil {
			return fmt.Errorf("waiting: %w", errors.Join(err, last))
		}
	}
}
