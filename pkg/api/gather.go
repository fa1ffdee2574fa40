package api

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// gatherer puts single grants that come at the same time into one transaction: thousands who claim a coupon of one
// template at one moment would otherwise queue for its stock row one by one. The first of a batch waits for others for
// the linger; each claimer gets its own answer. A claimer that gave up before its batch began is left out; one that gives
// up later harms nobody, and finds its coupon by the grant key.
//
// Transactions take the slots of the issue scope, as batches do, so all grants together stay within them.
type gatherer struct {
	cfg   GatherConfig
	queue chan *claim
	slots chan struct{}
	issue func(ctx context.Context, grants []coupon.Grant) []outcome
	limit time.Duration // of one transaction
	sizes interface{ Observe(float64) }
}

// claim is one single grant.
type claim struct {
	grant coupon.Grant
	done  chan outcome // buffered: nobody waits for whoever gave up
	gone  atomic.Bool
}

// outcome is what became of one grant: an answer, or why there is none.
type outcome struct {
	answer coupon.Granted
	err    error
}

var errStopped = errors.New("the server is stopping")

// grant asks for one coupon and waits for the answer.
func (g *gatherer) grant(ctx context.Context, grant coupon.Grant) (coupon.Granted, error) {
	c := &claim{grant: grant, done: make(chan outcome, 1)}
	select {
	case g.queue <- c:
	default:
		return coupon.Granted{}, problem(http.StatusServiceUnavailable, CodeBusy, "too many grants at once").after(1)
	}
	select {
	case out := <-c.done:
		return out.answer, out.err
	case <-ctx.Done():
		c.gone.Store(true)
		return coupon.Granted{}, context.Cause(ctx) //nolint:wrapcheck // problemOf tells what it means
	}
}

// run gathers until ctx ends, and waits for the transactions under way. What is queued then is answered as unavailable.
func (g *gatherer) run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	defer g.refuse()
	for {
		var first *claim
		select {
		case <-ctx.Done():
			return
		case first = <-g.queue:
		}
		select {
		case g.slots <- struct{}{}:
		case <-ctx.Done():
			first.done <- outcome{err: stopping()}
			return
		}
		batch := g.collect(ctx, first)
		work.Go(func() {
			defer func() { <-g.slots }()
			g.do(ctx, batch)
		})
	}
}

func stopping() error {
	return problem(http.StatusServiceUnavailable, CodeUnavailable, "the server is stopping").after(1).because(errStopped)
}

func (g *gatherer) refuse() {
	for {
		select {
		case c := <-g.queue:
			c.done <- outcome{err: stopping()}
		default:
			return
		}
	}
}

func (g *gatherer) collect(ctx context.Context, first *claim) []*claim {
	batch := append(make([]*claim, 0, g.cfg.Most), first)
	linger := time.NewTimer(g.cfg.Linger)
	defer linger.Stop()
	for len(batch) < g.cfg.Most {
		select {
		case c := <-g.queue:
			batch = append(batch, c)
		case <-linger.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

func (g *gatherer) do(ctx context.Context, batch []*claim) {
	grants, claims := make([]coupon.Grant, 0, len(batch)), make([]*claim, 0, len(batch))
	for _, c := range batch {
		if !c.gone.Load() {
			grants, claims = append(grants, c.grant), append(claims, c)
		}
	}
	if len(grants) == 0 {
		return
	}
	g.sizes.Observe(float64(len(grants)))
	ctx, cancel := context.WithTimeout(ctx, g.limit)
	defer cancel()
	for i, out := range g.issue(ctx, grants) {
		claims[i].done <- out
	}
}

// issue grants what can be stored: one outcome for each, in order. A batch that the database refuses, or of which something
// is paused, is halved until the grant that it is for is alone.
func (a *API) issue(ctx context.Context, grants []coupon.Grant) []outcome {
	outs := make([]outcome, len(grants))
	a.issueInto(ctx, grants, outs)
	return outs
}

func (a *API) issueInto(ctx context.Context, grants []coupon.Grant, outs []outcome) {
	answers, err := a.deps.Grants.Issue(ctx, grants)
	switch {
	case err == nil:
		for i := range answers {
			outs[i].answer = answers[i]
		}
	case (errors.Is(err, coupon.ErrIntegrity) || errors.Is(err, coupon.ErrPaused)) && len(grants) > 1:
		half := len(grants) / 2
		a.issueInto(ctx, grants[:half], outs[:half])
		a.issueInto(ctx, grants[half:], outs[half:])
	case errors.Is(err, coupon.ErrIntegrity):
		outs[0].answer = coupon.Granted{Refused: coupon.CodeInvalid, Detail: "the database cannot store it"}
	default:
		for i := range outs {
			outs[i].err = err
		}
	}
}
