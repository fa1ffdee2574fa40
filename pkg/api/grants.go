package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// GrantAsk asks for one coupon.
type GrantAsk struct {
	GrantKey   string  `json:"grant_key" minLength:"1" maxLength:"128" doc:"the same key of one issuer gives the same coupon, once"`
	TemplateID string  `json:"template_id" pattern:"^[1-9][0-9]{0,19}$" patternDescription:"a positive decimal integer"`
	UserID     string  `json:"user_id" minLength:"1" maxLength:"128"`
	BatchID    string  `json:"batch_id,omitempty" maxLength:"128" doc:"lists and notices are put together by it"`
	Issuer     string  `json:"issuer,omitempty" maxLength:"128" doc:"whose key it is; the token's, if that has one"`
	ValidFrom  Instant `json:"valid_from,omitempty" nullable:"false" doc:"absent: from the grant on"`
	ExpiresAt  Instant `json:"expires_at,omitempty" doc:"absent: by the template's rule; null: never"`
}

// GrantResult is what became of one grant.
type GrantResult struct {
	GrantKey  string      `json:"grant_key"`
	Result    string      `json:"result" enum:"granted,repeated,refused" doc:"repeated: the key was known, and this is its coupon"`
	CouponID  string      `json:"coupon_id,omitempty"`
	ExpiresAt *time.Time  `json:"expires_at" doc:"null: never, or refused"`
	Code      coupon.Code `json:"code,omitempty" enum:"template_not_found,template_stopped,quota_exhausted,user_limit,grant_key_conflict,invalid,already_ended"`
	Detail    string      `json:"detail,omitempty"`
	Peak      int64       `json:"peak,omitempty" doc:"a warning: so many coupons are due in the same second, more than the fleet drains in one, so they will be late by about peak ÷ rate"`
}

type grantsIn struct {
	Body struct {
		Grants []GrantAsk `json:"grants" minItems:"1" maxItems:"1000" nullable:"false"`
	}
}

type grantsOut struct {
	Body struct {
		Results []GrantResult `json:"results" nullable:"false" doc:"one for each grant, in order"`
	}
}

func (a *API) addGrants() {
	register(a, route{
		id: "grantCoupons", method: http.MethodPost, path: "/v1/grants", tag: tagGrants, summary: "Grant up to 1000 coupons",
		text: "Each grant has a result of its own: one that is refused does not harm the others, and the answer is 200 all the same. " +
			"A request that cannot be read is refused whole. When the answer is lost or says 503 or 504, send the same grants again: " +
			"those that were granted answer as repeated, with the same coupons. Requests for a single coupon are put together with others.",
		scopes: []Scope{ScopeIssue}, mutates: true, large: true, ungated: true,
		codes: []coupon.Code{CodePaused},
	}, a.grantCoupons)
	register(a, route{
		id: "getGrant", method: http.MethodGet, path: "/v1/grants/{grant_key}", tag: tagGrants, summary: "Get the coupon of a grant",
		text: "Whatever became of the request for it: 404 says that the key was never granted.", scopes: []Scope{ScopeRead, ScopeIssue, ScopeOps},
		codes: []coupon.Code{coupon.CodeNotFound},
	}, a.getGrant)
}

type grantIn struct {
	GrantKey string `path:"grant_key" doc:"percent-encoded"`
	Issuer   string `query:"issuer" doc:"whose key it is; the token's, if that has one"`
}

func (a *API) getGrant(ctx context.Context, in *grantIn) (*couponOut, error) {
	if err := texts(text("path.grant_key", in.GrantKey, true), text("query.issuer", in.Issuer, false)); err != nil {
		return nil, err
	}
	issuer, err := issuerOf(callerFrom(ctx), in.Issuer)
	if err != nil {
		return nil, err
	}
	c, now, err := a.deps.Grants.CouponByGrantKey(ctx, issuer, in.GrantKey)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	return &couponOut{Body: a.couponOf(now, &c)}, nil
}

func (a *API) grantCoupons(ctx context.Context, in *grantsIn) (*grantsOut, error) {
	grants, err := grantsOf(callerFrom(ctx), in.Body.Grants)
	if err != nil {
		return nil, err
	}
	out := &grantsOut{}
	out.Body.Results = make([]GrantResult, len(grants))
	answers, err := a.grant(ctx, grants)
	if err != nil {
		return nil, err
	}
	for i, g := range answers {
		out.Body.Results[i] = resultOf(grants[i], g)
		a.metrics.granted(g)
	}
	return out, nil
}

func (a *API) grant(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	if len(grants) == 1 {
		g, err := a.gather.grant(ctx, grants[0])
		return []coupon.Granted{g}, err
	}
	leave, p := a.limits.gates[ScopeIssue].enter(ctx)
	if p != nil {
		return nil, p
	}
	defer leave()
	answers := make([]coupon.Granted, len(grants))
	for i, out := range a.issue(ctx, grants) {
		if out.err != nil { // nothing was granted, or, after halving, some: the same grants may be sent again
			return nil, out.err
		}
		answers[i] = out.answer
	}
	return answers, nil
}

// grantsOf reads grants as events are read: the same grant by either way has the same content.
func grantsOf(c caller, asks []GrantAsk) ([]coupon.Grant, error) {
	grants := make([]coupon.Grant, len(asks))
	var faults []*Fault
	for i, ask := range asks {
		at := fmt.Sprintf("body.grants[%d].", i)
		issuer, err := issuerOf(c, ask.Issuer)
		if err != nil {
			return nil, err
		}
		id, err := parseID(at+"template_id", ask.TemplateID)
		if err != nil {
			return nil, err
		}
		faults = append(faults, text(at+"grant_key", ask.GrantKey, true), text(at+"user_id", ask.UserID, true),
			text(at+"batch_id", ask.BatchID, false), text(at+"issuer", ask.Issuer, false))
		g := coupon.Grant{
			Issuer: issuer, Key: ask.GrantKey, TemplateID: id, UserID: ask.UserID, BatchID: ask.BatchID, Trace: c.trace,
		}
		if ask.ValidFrom.Given {
			g.ValidFrom = ceilMillisecond(ask.ValidFrom.At)
		}
		if ask.ExpiresAt.Given {
			g.ExpiresAt = coupon.CeilSecond(ask.ExpiresAt.At)
		}
		grants[i] = g
	}
	return grants, texts(faults...)
}

// issuerOf a grant: the token's, if it has one.
func issuerOf(c caller, asked string) (string, error) {
	if c.issuer == "" || asked == c.issuer {
		return asked, nil
	}
	if asked != "" {
		return "", problem(http.StatusForbidden, CodeForbidden, fmt.Sprintf("the token is of the issuer %q, not %q", c.issuer, clip(asked)))
	}
	return c.issuer, nil
}

func ceilMillisecond(at time.Time) time.Time {
	if f := at.Truncate(time.Millisecond); !f.Equal(at) {
		return f.Add(time.Millisecond)
	}
	return at
}

// The results of a grant.
const (
	resultGranted  = "granted"
	resultRepeated = "repeated"
	resultRefused  = "refused"
)

func resultOf(g coupon.Grant, a coupon.Granted) GrantResult {
	r := GrantResult{GrantKey: g.Key, Result: resultGranted}
	switch {
	case a.Refused != "":
		r.Result, r.Code, r.Detail = resultRefused, a.Refused, clip(a.Detail)
		return r
	case a.Repeated:
		r.Result = resultRepeated
	}
	r.CouponID, r.ExpiresAt, r.Peak = formatID(a.CouponID), instant(a.ExpiresAt), a.Peak
	return r
}
