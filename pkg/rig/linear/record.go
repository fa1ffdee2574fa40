package linear

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// Recorder makes calls about one pair and keeps what came of them. Safe for concurrent use.
type Recorder struct {
	pair *Pair
	pods []*client.Client

	mu      sync.Mutex
	history []Event
	away    int
}

// NewRecorder asks pods of one fleet, by clients that make one attempt a call: one that repeats by itself would be two calls.
func NewRecorder(p *Pair, pods ...*client.Client) *Recorder { return &Recorder{pair: p, pods: pods} }

// History gives the calls so far, and how many were sent away unheard: too many at once, or one with the same key at work. Those did nothing,
// and are not in the history.
func (r *Recorder) History() (history []Event, away int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.history), r.away
}

// Do makes a call; of whom says which pod it goes to. The error is of an answer that nobody may give, whatever the order of calls.
func (r *Recorder) Do(ctx context.Context, by int, c Call) error {
	e := Event{Client: by, Call: c, Sent: time.Now()}
	answer, err := r.ask(ctx, r.pods[by%len(r.pods)], c)
	e.Got = time.Now()
	var refused *client.Error
	switch {
	case err == nil:
		e.Answer = &answer
	case errors.As(err, &refused) && refused.Code == client.CodeInternal:
		return fmt.Errorf("%s: %w", c, err)
	case client.IsCode(err, client.CodeBusy, client.CodeUnavailable, client.CodeRateLimited, client.CodeInProgress):
		r.mu.Lock()
		defer r.mu.Unlock()
		r.away++
		return nil
	case client.Uncertain(err):
	case refused != nil && refused.Status < http.StatusInternalServerError:
		if e.Answer, err = r.refusal(c, refused); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s: %w", c, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, e)
	return nil
}

func (r *Recorder) ask(ctx context.Context, api *client.Client, c Call) (Answer, error) {
	if c.Key != NoKey {
		ctx = client.WithIdempotencyKey(ctx, r.pair.KeyText(c.Key))
	}
	one := func(got client.Coupon, err error) (Answer, error) {
		if err != nil {
			return Answer{}, err
		}
		return Answer{Shown: [2]Shown{shownOf(&got)}}, nil
	}
	first := r.id(c.Of[0])
	switch c.Verb {
	case Show:
		return one(api.Coupon(ctx, first))
	case coupon.VerbExtend:
		return one(api.Extend(ctx, first, &c.EndsAt, "linear"))
	case coupon.VerbVoid:
		return one(api.Void(ctx, first, "linear", c.BreakLock))
	default:
	}
	ask := client.Order{UserID: r.pair.UserOf(c), LockFor: c.LockFor, Partial: c.Partial}
	for _, i := range c.Of {
		ask.CouponIDs = append(ask.CouponIDs, r.id(i))
	}
	verbs := map[coupon.Verb]func(context.Context, string, client.Order) (client.Acted, error){
		coupon.VerbLock: api.Lock, coupon.VerbRenew: api.Renew, coupon.VerbRedeem: api.Redeem, coupon.VerbRelease: api.Release,
		coupon.VerbRefund: api.Refund,
	}
	verb, ok := verbs[c.Verb]
	if !ok {
		return Answer{}, fmt.Errorf("the client has no %s", c.Verb)
	}
	got, err := verb(ctx, r.pair.OrderID(c.Order), ask)
	if err != nil {
		return Answer{}, err
	}
	if len(got.Coupons) != len(c.Of) {
		return Answer{}, fmt.Errorf("asked of %d coupons, %d answered", len(c.Of), len(got.Coupons))
	}
	out := Answer{Now: got.Now.UTC()}
	for i := range got.Coupons {
		if got.Coupons[i].CouponID != ask.CouponIDs[i] {
			return Answer{}, fmt.Errorf("asked of coupon %s, answered of %s", ask.CouponIDs[i], got.Coupons[i].CouponID)
		}
		out.Shown[i] = shownOf(&got.Coupons[i].Coupon)
		out.Shown[i].Repeated = got.Coupons[i].Repeated
	}
	return out, nil
}

func (r *Recorder) id(i int) string { return strconv.FormatUint(r.pair.Coupons[i].ID, 10) }

func (r *Recorder) refusal(c Call, e *client.Error) (*Answer, error) {
	if len(e.Coupons) != len(c.Of) {
		return nil, fmt.Errorf("%s: %w: it tells of %d coupons", c, e, len(e.Coupons))
	}
	out := &Answer{Code: coupon.Code(e.Code)}
	for i, one := range e.Coupons {
		if one.CouponID != r.id(c.Of[i]) {
			return nil, fmt.Errorf("%s: %w: it tells of coupon %s", c, e, one.CouponID)
		}
		out.Shown[i] = Shown{Code: coupon.Code(one.Code), State: string(one.State)}
	}
	return out, nil
}

func shownOf(c *client.Coupon) Shown {
	s := Shown{State: string(c.State), Stored: string(c.StoredState), Version: c.Version, OrderID: c.OrderID}
	for _, at := range []struct {
		from *time.Time
		to   *time.Time
	}{{c.LockUntil, &s.LockUntil}, {c.ExpiresAt, &s.ExpiresAt}} {
		if at.from != nil {
			*at.to = at.from.UTC()
		}
	}
	return s
}
