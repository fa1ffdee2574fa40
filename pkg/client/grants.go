package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Grant asks for one coupon. The same key of one issuer yields the same coupon, once.
type Grant struct {
	GrantKey   string     `json:"grant_key"`
	TemplateID string     `json:"template_id"`
	UserID     string     `json:"user_id"`
	BatchID    string     `json:"batch_id,omitempty"`
	Issuer     string     `json:"issuer,omitempty"`
	ValidFrom  *time.Time `json:"valid_from,omitempty"` // nil: from the grant on
	ExpiresAt  *time.Time `json:"expires_at,omitempty"` // nil: by the template's rule
	Never      bool       `json:"-"`                    // it has no end, whatever the rule says
}

// MarshalJSON says null for a coupon without an end; an absent end is the rule's.
func (g Grant) MarshalJSON() ([]byte, error) {
	type plain Grant
	if !g.Never {
		return json.Marshal(plain(g))
	}
	return json.Marshal(struct {
		plain
		ExpiresAt *time.Time `json:"expires_at"`
	}{plain: plain(g)})
}

// Granted is the answer to one grant.
type Granted struct {
	GrantKey  string     `json:"grant_key"`
	Result    string     `json:"result"` // granted, repeated or refused
	CouponID  string     `json:"coupon_id"`
	ExpiresAt *time.Time `json:"expires_at"`
	Code      Code       `json:"code"` // if refused
	Detail    string     `json:"detail"`
	Peak      int64      `json:"peak"` // above 0, a warning: so many coupons are due in its second, more than the fleet drains in one
}

// The results of a grant.
const (
	ResultGranted  = "granted"
	ResultRepeated = "repeated" // the key was known, and this is its coupon
	ResultRefused  = "refused"
)

// MaxGrants is how many grants a call can make.
const MaxGrants = 1000

// Grants asks for up to MaxGrants coupons; each has its own answer, in order. A refusal is an answer, not an error.
func (c *Client) Grants(ctx context.Context, grants ...Grant) ([]Granted, error) {
	body := struct {
		Grants []Grant `json:"grants"`
	}{grants}
	var out struct {
		Results []Granted `json:"results"`
	}
	err := c.do(ctx, call{method: http.MethodPost, path: []string{"grants"}, body: body, into: &out, mutates: true, known: true})
	if err == nil && len(out.Results) != len(grants) {
		err = fmt.Errorf("asked for %d grants, %d answered", len(grants), len(out.Results))
	}
	return out.Results, err
}

// Grant asks for one coupon. A refusal is an *Error with its code.
func (c *Client) Grant(ctx context.Context, g Grant) (Granted, error) {
	out, err := c.Grants(ctx, g)
	if err != nil {
		return Granted{}, err
	}
	if out[0].Result == ResultRefused {
		return out[0], &Error{Status: http.StatusOK, Code: out[0].Code, Title: "refused", Detail: out[0].Detail}
	}
	if out[0].CouponID == "" {
		return out[0], errors.New("a grant without a coupon in the answer")
	}
	return out[0], nil
}
