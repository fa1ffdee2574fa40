package api

import (
	"context"
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// limits bounds what each scope may take, so that none takes what another needs.
type limits struct {
	rates map[rateKey]*rate.Limiter // read only once made
	gates map[Scope]*gate
}

type rateKey struct {
	token string
	scope Scope
}

func newLimits(c Config) *limits {
	l := &limits{rates: map[rateKey]*rate.Limiter{}, gates: map[Scope]*gate{}}
	for _, s := range lanes() {
		of := c.Limits.of(s)
		l.gates[s] = newGate(of.Concurrent, of.Waiting, c.QueueTimeout)
		for key := range c.Providers {
			if s == laneProviders && of.PerSecond > 0 {
				l.rates[rateKey{providerName(key), s}] = rate.NewLimiter(rate.Limit(of.PerSecond), of.Burst)
			}
		}
		for _, t := range c.Tokens {
			if of.PerSecond > 0 {
				l.rates[rateKey{t.Name, s}] = rate.NewLimiter(rate.Limit(of.PerSecond), of.Burst)
			}
		}
	}
	return l
}

// rate takes n from the token's allowance.
func (l *limits) rate(name string, s Scope, now time.Time) *Problem {
	limiter := l.rates[rateKey{name, s}]
	if limiter == nil || limiter.AllowN(now, 1) {
		return nil
	}
	seconds := 1
	if r := limiter.ReserveN(now, 1); r.OK() {
		seconds = max(1, int(math.Ceil(r.DelayFrom(now).Seconds())))
		r.CancelAt(now)
	}
	return problem(http.StatusTooManyRequests, CodeRateLimited, "more requests come than this token or key may send of the kind").after(seconds)
}

// gate is a bulkhead: so many at work, so many waiting, the others refused.
type gate struct {
	slots    chan struct{}
	waiting  chan struct{} // those at work included
	patience time.Duration
}

func newGate(slots, waiting int, patience time.Duration) *gate {
	return &gate{slots: make(chan struct{}, slots), waiting: make(chan struct{}, slots+waiting), patience: patience}
}

// enter waits for a turn; leave gives it back and must be called if there is no problem. A lender of ctx gets it to lend.
func (g *gate) enter(ctx context.Context) (leave func(), p *Problem) {
	select {
	case g.waiting <- struct{}{}:
	default:
		return nil, busy()
	}
	if p := g.slot(ctx); p != nil {
		<-g.waiting
		return nil, p
	}
	l := lenderOf(ctx)
	l.gate = g
	return func() {
		if l.gate != nil {
			l.gate = nil
			<-g.slots
		}
		<-g.waiting
	}, nil
}

func busy() *Problem {
	return problem(http.StatusServiceUnavailable, CodeBusy, "too many requests at once").after(1)
}

func (g *gate) slot(ctx context.Context) *Problem {
	select {
	case g.slots <- struct{}{}:
		return nil
	default:
	}
	patience := time.NewTimer(g.patience)
	defer patience.Stop()
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-patience.C:
		return busy()
	case <-ctx.Done():
		return problemOf(ctx, ctx.Err())
	}
}

// lender lends a request's slot while it waits for a coupon that another request is asking for. One goroutine uses it.
type lender struct {
	gate *gate // whose slot the request has; nil: it has none
	lent *gate // whose slot it has lent
}

type lenderKey struct{}

func withLender(ctx context.Context) context.Context {
	l := &lender{}
	return coupon.WithLender(context.WithValue(ctx, lenderKey{}, l), l)
}

func lenderOf(ctx context.Context) *lender {
	if l, ok := ctx.Value(lenderKey{}).(*lender); ok {
		return l
	}
	return &lender{}
}

// Lend implements coupon.Lender.
func (l *lender) Lend() {
	if l.gate != nil {
		l.gate, l.lent = nil, l.gate
		<-l.lent.slots
	}
}

// Reclaim implements coupon.Lender.
func (l *lender) Reclaim(ctx context.Context) error {
	if l.lent == nil {
		return nil
	}
	if p := l.lent.slot(ctx); p != nil {
		return p
	}
	l.gate, l.lent = l.lent, nil
	return nil
}
