package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Tokens checks the API's bearer tokens for those who serve beside it.
type Tokens struct {
	guard *guard
	rates map[string]*rate.Limiter
}

// NewTokens knows the tokens; each may ask perSecond times a second, and burst times at once.
func NewTokens(tokens []Token, perSecond float64, burst int) (*Tokens, error) {
	g, err := newGuard(tokens)
	if err != nil {
		return nil, err
	}
	t := &Tokens{guard: g, rates: map[string]*rate.Limiter{}}
	for _, c := range tokens {
		t.rates[c.Name] = rate.NewLimiter(rate.Limit(perSecond), burst)
	}
	return t, nil
}

// Bearer is who asks.
type Bearer struct {
	Name   string // of the token
	Scopes []Scope
}

// Check gives who asks by the request's headers, if any of the scopes is theirs and they do not ask too often.
func (t *Tokens) Check(h http.Header, now time.Time, wanted ...Scope) (Bearer, *Problem) {
	found, p := t.guard.find(h)
	if p != nil {
		return Bearer{}, p
	}
	if _, p := found.allow(wanted); p != nil {
		return Bearer{}, p
	}
	l := limits{rates: map[rateKey]*rate.Limiter{{found.name, ""}: t.rates[found.name]}}
	if p := l.rate(found.name, "", now); p != nil {
		return Bearer{}, p
	}
	return Bearer{Name: found.name, Scopes: slices.Clone(found.scopes)}, nil
}

// Actor is what history keeps of who asks: the token's name with who sits behind it.
func (b Bearer) Actor(who string) (string, *Problem) {
	actor := b.Name + "/" + who
	if who == "" || len(actor) > coupon.MaxText || !printable(who) {
		return "", badRequest("body.actor", who, "must be a name: UTF-8 without control characters")
	}
	return actor, nil
}

// Reason checks why something is asked for.
func Reason(text string) *Problem {
	if text == "" || len(text) > coupon.MaxReason || !printable(text) {
		return badRequest("body.reason", text, "must be UTF-8 without control characters, and not empty")
	}
	return nil
}

// ProblemOf is what an error is answered by.
func ProblemOf(ctx context.Context, err error) *Problem { return problemOf(ctx, err) }

// NewProblem is a problem of those who serve beside the API.
func NewProblem(status int, code coupon.Code, detail string) *Problem {
	return problem(status, code, detail)
}

// Write answers with it.
func (p *Problem) Write(w http.ResponseWriter) {
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // the client went away: nobody to tell
}

// ParseID reads an id; location names it in the problem.
func ParseID(location, text string) (uint64, error) { return parseID(location, text) }

// Show is a coupon as the API shows it, in the state in which it was seen.
func Show(c *coupon.Coupon, seen coupon.Status) Coupon { return showCoupon(c, seen) }

// ShowOffer is what a coupon is worth, likewise.
func ShowOffer(o coupon.Offer) Offer { return offerOf(o) }

// ShowStep is a step of its life, likewise.
func ShowStep(t coupon.Transition) Step { return stepOf(t) }

// Printable tells whether a text may be an id, a key or a name: UTF-8 without control characters.
func Printable(s string) bool { return printable(s) }
