package notice

import (
	"errors"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/time/rate"
)

var errProvider = errors.New("provider fails")

// gate says how much of a channel may go out now: by its rate, by what its provider asked for, and by whether the provider
// works. Safe for concurrent use.
type gate struct {
	limit   Limit
	bucket  *rate.Limiter // nil: no bound
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	now     func() time.Time

	mu    sync.Mutex
	held  time.Time // nothing goes out before
	stuck time.Time // since when nothing has gone out of what was tried; zero: it goes
}

// What is due and has another channel to go to does not wait for this one for longer than that.
const (
	openLong = 2                // of the times that a circuit stays open
	heldLong = 15 * time.Minute // at the word of the provider
)

func newGate(l Limit, now func() time.Time, up func(bool)) *gate {
	g := &gate{limit: l, now: now}
	if l.Rate > 0 {
		g.bucket = rate.NewLimiter(rate.Limit(l.Rate), max(1, int(l.Rate/burstPart)))
	}
	g.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1, Timeout: l.OpenFor,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= l.Trip },
		OnStateChange: func(_ string, _, to gobreaker.State) { up(to == gobreaker.StateClosed) },
	})
	return g
}

// burstPart: what goes out at once is at most this part of a second's.
const burstPart = 5

// room gives how many of want may go out now; if none, how long to wait. A circuit that is half open lets one out, as a trial.
func (g *gate) room(want int) (n int, wait time.Duration) {
	now := g.now()
	g.mu.Lock()
	held := g.held
	g.mu.Unlock()
	if held.After(now) {
		return 0, held.Sub(now)
	}
	switch g.circuit.State() {
	case gobreaker.StateOpen:
		return 0, g.limit.OpenFor
	case gobreaker.StateHalfOpen:
		if g.circuit.Counts().Requests > 0 {
			return 0, g.limit.Deadline // the trial is under way
		}
		want = 1
	case gobreaker.StateClosed:
	}
	if g.bucket == nil {
		return want, 0
	}
	tokens := g.bucket.TokensAt(now)
	least := float64(min(want, max(1, g.bucket.Burst()/2)))
	if tokens < least {
		return 0, time.Duration((least-tokens)/g.limit.Rate*float64(time.Second)) + time.Millisecond
	}
	return min(want, int(tokens)), 0
}

// spend takes what went out off the rate.
func (g *gate) spend(n int) {
	if g.bucket != nil && n > 0 {
		g.bucket.AllowN(g.now(), n)
	}
}

// hold lets nothing out for so long. The channel bounds what its provider may ask for.
func (g *gate) hold(wait time.Duration) {
	until := g.now().Add(wait)
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.After(g.held) {
		g.held = until
	}
}

// tried notes whether a send went.
func (g *gate) tried(went bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case went:
		g.stuck = time.Time{}
	case g.stuck.IsZero():
		g.stuck = g.now()
	}
}

// shut says why the channel has let nothing out for so long, or will, that others are to be asked; empty if it is not so.
func (g *gate) shut() (reason string) {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stuck.IsZero() {
		return ""
	}
	lasted := now.Sub(g.stuck)
	switch {
	case g.held.After(now) && (lasted >= heldLong || g.held.Sub(now) >= heldLong):
		return reasonHeld
	case g.circuit.State() == gobreaker.StateOpen && lasted >= openLong*g.limit.OpenFor:
		return reasonCircuit
	}
	return ""
}

// begin asks the circuit for one send; done is told whether the provider works.
func (g *gate) begin() (done func(works bool), ok bool) {
	report, err := g.circuit.Allow()
	if err != nil {
		return nil, false
	}
	return func(works bool) {
		if works {
			report(nil)
		} else {
			report(errProvider)
		}
	}, true
}
