package api

import (
	"context"
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"
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
	for _, s := range Scopes() {
		of := c.Limits.of(s)
		l.gates[s] = &gate{
			slots: make(chan struct{}, of.Concurrent), waiting: make(chan struct{}, of.Concurrent+of.Waiting), patience: c.QueueTimeout,
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
	return problem(http.StatusTooManyRequests, CodeRateLimited, "the token sends more requests of its scope than it may").after(seconds)
}

// gate is a bulkhead: so many at work, so many waiting, the others refused.
type gate struct {
	slots    chan struct{}
	waiting  chan struct{} // those at work included
	patience time.Duration
}

// enter waits for a turn; leave gives it back and must be called if there is no problem.
func (g *gate) enter(ctx context.Context) (leave func(), p *Problem) {
	busy := func() *Problem {
		return problem(http.StatusServiceUnavailable, CodeBusy, "too many requests at once").after(1)
	}
	select {
	case g.waiting <- struct{}{}:
	default:
		return nil, busy()
	}
	select {
	case g.slots <- struct{}{}:
	default:
		patience := time.NewTimer(g.patience)
		defer patience.Stop()
		select {
		case g.slots <- struct{}{}:
		case <-patience.C:
			<-g.waiting
			return nil, busy()
		case <-ctx.Done():
			<-g.waiting
			return nil, problemOf(ctx, ctx.Err())
		}
	}
	return func() {
		<-g.slots
		<-g.waiting
	}, nil
}
