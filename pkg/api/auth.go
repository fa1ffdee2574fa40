package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const hashSize = sha256.Size

// caller is who asks, as handlers see it.
type caller struct {
	name   string    // of the token: never a user's
	issuer string    // of its grants, if the token fixes it
	actor  string    // kept in history: the token's name, with X-Actor behind a slash
	trace  string    // W3C traceparent; empty if there is none that is valid
	idem   *key      // the request's Idempotency-Key; nil if it has none
	signed time.Time // of a provider's request: the instant of its signature
}

type callerKey struct{}

// callerFrom gives who asks. Every route but the public ones has a caller.
func callerFrom(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

func withCaller(ctx context.Context, c caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// token is a configured token, ready to be compared.
type token struct {
	hash   [hashSize]byte
	name   string
	issuer string
	scopes []Scope
}

// guard knows the tokens.
type guard struct{ tokens []token }

func newGuard(tokens []Token) (*guard, error) {
	g := &guard{tokens: make([]token, len(tokens))}
	for i, c := range tokens {
		t := &g.tokens[i]
		t.name, t.issuer = c.Name, c.Issuer
		if n, err := hex.Decode(t.hash[:], []byte(c.Hash)); err != nil || n != hashSize {
			return nil, fmt.Errorf("token %s: no hash", c.Name)
		}
		for _, s := range c.Scopes {
			t.scopes = append(t.scopes, Scope(s))
		}
	}
	return g, nil
}

// HashToken is how a token's secret is configured.
func HashToken(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

const maxSecret = 512

// find gives the token that the request bears. How long it takes does not tell how much of a secret was right.
func (g *guard) find(h http.Header) (*token, *Problem) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return nil, problem(http.StatusUnauthorized, CodeUnauthorized, "exactly one Authorization header with a bearer token is needed")
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") || secret == "" || len(secret) > maxSecret {
		return nil, problem(http.StatusUnauthorized, CodeUnauthorized, "the Authorization header must be: Bearer <token>")
	}
	sum := sha256.Sum256([]byte(secret))
	found := -1
	for i := range g.tokens {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], g.tokens[i].hash[:]), i, found)
	}
	if found < 0 {
		return nil, problem(http.StatusUnauthorized, CodeUnauthorized, "the token is not known")
	}
	return &g.tokens[found], nil
}

// allow gives the scope under which the token may use a route that any of wanted opens.
func (t *token) allow(wanted []Scope) (Scope, *Problem) {
	for _, s := range wanted {
		if slices.Contains(t.scopes, s) {
			return s, nil
		}
	}
	return "", problem(http.StatusForbidden, CodeForbidden, fmt.Sprintf("the token needs the scope %s", join(wanted, " or ")))
}

func join(scopes []Scope, by string) string {
	texts := make([]string, len(scopes))
	for i, s := range scopes {
		texts[i] = string(s)
	}
	return strings.Join(texts, by)
}

// caller of a request by this token.
func (t *token) caller(h http.Header) (caller, *Problem) {
	c := caller{name: t.name, issuer: t.issuer, actor: t.name}
	if who := h.Get("X-Actor"); who != "" {
		c.actor += "/" + who
		if len(c.actor) > coupon.MaxText || !printable(who) {
			return c, badRequest("X-Actor", clip(who), fmt.Sprintf("must be UTF-8 without control characters, at most %d bytes with the token's name",
				coupon.MaxText))
		}
	}
	if trace := h.Get("Traceparent"); validTrace(trace) {
		c.trace = trace
	}
	return c, nil
}

// validTrace is W3C traceparent, version 00. Anything else is ignored, as that specification wants it, rather than
// refused.
func validTrace(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, part := range []string{s[3:35], s[36:52], s[53:55]} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

// printable refuses what must not be in keys, ids and names: bytes that are no UTF-8, control characters, Unicode
// noncharacters, and U+FFFD, which is what became of bytes that were no characters. As for events.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		switch {
		case r < 0x20, r >= 0x7F && r <= 0x9F, r == utf8.RuneError, r >= 0xFDD0 && r <= 0xFDEF, r&0xFFFE == 0xFFFE:
			return false
		}
	}
	return true
}
