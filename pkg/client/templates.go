package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Terms are what a template promises. A coupon keeps those of its own revision.
type Terms struct {
	Name          string `json:"name"`
	Rule          Rule   `json:"rule"`
	Value         int64  `json:"value"` // minor units
	Currency      string `json:"currency"`
	Precision     string `json:"precision,omitempty"` // exact (default), standard or relaxed
	Offer         *Offer `json:"offer,omitempty"`
	LatePayPolicy string `json:"late_pay_policy,omitempty"` // honour_lock (default) or strict
	LatePayWindow string `json:"late_pay_window,omitempty"` // such as 30m
	QuotaBack     string `json:"quota_back,omitempty"`      // none (default), total or total_and_user
	Reminders     string `json:"reminders,omitempty"`       // before the end: empty for all offsets of the installation, none, or a list such as -3d,-30m
	Quota         int64  `json:"quota,omitempty"`           // 0: unlimited
	PerUser       int64  `json:"per_user,omitempty"`        // 0: unlimited
	Reason        string `json:"reason"`                    // why; required
}

// TermsChange is what the next revision changes; nil: nothing.
type TermsChange struct {
	Revision      uint32  `json:"revision"` // the one that this replaces, so that nobody's change is lost
	Name          *string `json:"name,omitempty"`
	Rule          *Rule   `json:"rule,omitempty"`
	Value         *int64  `json:"value,omitempty"`
	Currency      *string `json:"currency,omitempty"`
	Precision     *string `json:"precision,omitempty"`
	LatePayPolicy *string `json:"late_pay_policy,omitempty"`
	LatePayWindow *string `json:"late_pay_window,omitempty"`
	QuotaBack     *string `json:"quota_back,omitempty"`
	Reminders     *string `json:"reminders,omitempty"` // empty: all offsets of the installation
	Offer         *Offer  `json:"offer,omitempty"`
	Quota         *int64  `json:"quota,omitempty"` // those issued included
	PerUser       *int64  `json:"per_user,omitempty"`
	Reason        string  `json:"reason"` // why; required
}

// Rule says when a template's coupons end.
type Rule struct {
	Kind  string `json:"kind"`            // never, fixed, after, end_of_day or days_after
	At    string `json:"at,omitempty"`    // fixed: RFC 3339
	After string `json:"after,omitempty"` // after: such as 168h
	Date  string `json:"date,omitempty"`  // end_of_day: 2006-01-02
	Days  int    `json:"days,omitempty"`  // days_after: 0 is the day of the grant
	Zone  string `json:"zone,omitempty"`  // end_of_day, days_after: a tz database name
}

// Template is a template with the revision that issues now.
type Template struct {
	TemplateID string    `json:"template_id"`
	Revision   uint32    `json:"revision"`
	Issued     int64     `json:"issued"`
	State      string    `json:"state"` // issuing or stopped
	CreatedAt  time.Time `json:"created_at"`
	Actor      string    `json:"actor"`
	Terms
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, t Terms) (out Template, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"templates"}, body: t, into: &out, mutates: true})
	return out, err
}

// ReviseTemplate makes a new revision, for coupons to come. CodeConflict: somebody else made one first.
func (c *Client) ReviseTemplate(ctx context.Context, id string, t TermsChange) (out Template, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"templates", id, "revisions"}, body: t, into: &out, mutates: true})
	return out, err
}

// Template gives a template's newest revision.
func (c *Client) Template(ctx context.Context, id string) (out Template, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"templates", id}, into: &out})
	return out, err
}

// Templates lists them by their ids, a page at a time; limit 0 is the server's default, next is empty at the end.
func (c *Client) Templates(ctx context.Context, limit int, page string) (templates []Template, next string, err error) {
	query := url.Values{}
	set(query, "page_token", page)
	setLimit(query, limit)
	var out struct {
		Templates []Template `json:"templates"`
		Next      string     `json:"next_page_token"`
	}
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"templates"}, query: query, into: &out})
	return out.Templates, out.Next, err
}

// StopTemplate ends its issuance until ResumeTemplate.
func (c *Client) StopTemplate(ctx context.Context, id, reason string) (Template, error) {
	return c.switchTemplate(ctx, id, "stop", reason)
}

// ResumeTemplate lets it issue again.
func (c *Client) ResumeTemplate(ctx context.Context, id, reason string) (Template, error) {
	return c.switchTemplate(ctx, id, "resume", reason)
}

func (c *Client) switchTemplate(ctx context.Context, id, verb, reason string) (out Template, err error) {
	body := struct {
		Reason string `json:"reason"`
	}{reason}
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"templates", id, verb}, body: body, into: &out, mutates: true})
	return out, err
}

// DayStats counts a template's coupons on a UTC day. Values are minor units of the template's currency.
type DayStats struct {
	Day           string `json:"day"`
	Granted       int64  `json:"granted"`
	Locked        int64  `json:"locked"`
	Released      int64  `json:"released"`
	Used          int64  `json:"used"`
	Refunded      int64  `json:"refunded"`
	Expired       int64  `json:"expired"`
	Voided        int64  `json:"voided"`
	GrantedValue  int64  `json:"granted_value"`
	UsedValue     int64  `json:"used_value"`
	RefundedValue int64  `json:"refunded_value"`
	ExpiredValue  int64  `json:"expired_value"`
	VoidedValue   int64  `json:"voided_value"`

	Reinstated      int64 `json:"reinstated"`
	ReinstatedValue int64 `json:"reinstated_value"`
}

// TemplateStats gives a template's statistics by day, from and to included, each such as 2026-11-29.
func (c *Client) TemplateStats(ctx context.Context, id, from, to string) ([]DayStats, error) {
	query := url.Values{}
	set(query, "from", from)
	set(query, "to", to)
	var out struct {
		Days []DayStats `json:"days"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: []string{"templates", id, "stats"}, query: query, into: &out})
	return out.Days, err
}
