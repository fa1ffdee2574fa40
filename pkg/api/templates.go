package api

import (
	"context"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Template is a template as the API shows it.
type Template struct {
	TemplateID    string    `json:"template_id"`
	Revision      uint32    `json:"revision" doc:"the one that issues now; coupons keep theirs"`
	Name          string    `json:"name"`
	Rule          Rule      `json:"rule" doc:"when its coupons end"`
	Value         int64     `json:"value" doc:"minor units"`
	Currency      string    `json:"currency" doc:"ISO 4217"`
	Precision     string    `json:"precision" enum:"exact,standard,relaxed"`
	LatePayPolicy string    `json:"late_pay_policy" enum:"honour_lock,strict"`
	LatePayWindow string    `json:"late_pay_window" doc:"how far beyond a coupon's end a lock may reach, such as 30m0s"`
	QuotaBack     string    `json:"quota_back" enum:"none,total,total_and_user"`
	Reminders     string    `json:"reminders" doc:"before the end, at which of the installation's offsets: empty for all of them, none, or a list with commas"`
	Offer         Offer     `json:"offer"`
	Quota         int64     `json:"quota" doc:"how many coupons it issues at most; 0: any number"`
	PerUser       int64     `json:"per_user" doc:"how many one user gets at most; 0: any number"`
	Issued        int64     `json:"issued"`
	State         string    `json:"state" enum:"issuing,stopped"`
	CreatedAt     time.Time `json:"created_at" doc:"of the revision"`
	Actor         string    `json:"actor"`
	Reason        string    `json:"reason"`
}

// Offer is what a coupon is worth at checkout.
type Offer struct {
	Kind        string   `json:"kind" enum:"amount,percent"`
	BasisPoints int64    `json:"basis_points,omitempty" doc:"percent: hundredths of a percent"`
	Cap         int64    `json:"cap,omitempty" doc:"percent: at most this much off, in minor units; 0: no cap"`
	MinSpend    int64    `json:"min_spend,omitempty" doc:"the least amount it applies to, in minor units"`
	Scopes      []string `json:"scopes,omitempty" nullable:"false" doc:"what it applies to; absent: everything"`
}

func offerOf(o coupon.Offer) Offer {
	return Offer{Kind: string(o.Kind), BasisPoints: o.BasisPoints, Cap: o.Cap, MinSpend: o.MinSpend, Scopes: o.Scopes}
}

func templateOf(t coupon.Template) Template {
	state := "issuing"
	if t.Stopped {
		state = "stopped"
	}
	return Template{
		TemplateID: formatID(t.ID), Revision: t.Revision, Name: t.Name, Rule: Rule(t.Rule), Value: t.Terms.Value, Currency: t.Terms.Currency,
		Precision: string(t.Terms.Precision), LatePayPolicy: string(t.Terms.LatePay), LatePayWindow: t.Terms.LateWindow.String(),
		QuotaBack: string(t.Terms.QuotaBack), Reminders: string(t.Terms.Reminders), Offer: offerOf(t.Terms.Offer), Quota: t.Quota, PerUser: t.PerUser, Issued: t.Taken,
		State: state, CreatedAt: t.CreatedAt.UTC(), Actor: t.Actor, Reason: t.Reason,
	}
}

// Rule says when a template's coupons end.
type Rule struct {
	Kind  coupon.RuleKind `json:"kind" enum:"never,fixed,after,end_of_day,days_after"`
	At    string          `json:"at,omitempty" doc:"fixed: RFC 3339 with a zone"`
	After string          `json:"after,omitempty" doc:"after: so long after the grant, such as 168h or 45s"`
	Date  string          `json:"date,omitempty" doc:"end_of_day: YYYY-MM-DD, the last day"`
	Days  int             `json:"days,omitempty" doc:"days_after: the end of so many days after the grant's; 0: of the day of the grant"`
	Zone  string          `json:"zone,omitempty" doc:"end_of_day, days_after: a name of the tz database, such as Asia/Shanghai"`
}

type templateIn struct {
	TemplateID string `path:"template_id" doc:"the template's id"`
}

type templateOut struct{ Body Template }

type templatesIn struct {
	Limit     int    `query:"limit" minimum:"1" doc:"templates of the page"`
	PageToken string `query:"page_token" doc:"next_page_token of the page before"`
}

type templatesOut struct {
	Body struct {
		Templates []Template `json:"templates" nullable:"false" doc:"in the order of their ids"`
		Next      string     `json:"next_page_token" doc:"for the next page; empty: there is none"`
	}
}

func (a *API) addTemplates() {
	register(a, route{
		id: "listTemplates", method: http.MethodGet, path: "/v1/templates", tag: tagTemplates, summary: "List templates",
		scopes: []Scope{ScopeOps, ScopeRead},
	}, a.listTemplates)
	register(a, route{
		id: "getTemplate", method: http.MethodGet, path: "/v1/templates/{template_id}", tag: tagTemplates,
		summary: "Get a template", text: "The revision that issues now.",
		scopes: []Scope{ScopeOps, ScopeRead, ScopeIssue}, codes: []coupon.Code{coupon.CodeNotFound},
	}, a.getTemplate)
	a.addTemplateChanges()
}

func (a *API) getTemplate(ctx context.Context, in *templateIn) (*templateOut, error) {
	id, err := parseID("path.template_id", in.TemplateID)
	if err != nil {
		return nil, err
	}
	return a.readTemplate(ctx, id)
}

func (a *API) readTemplate(ctx context.Context, id uint64) (*templateOut, error) {
	t, err := a.deps.Templates.Template(ctx, id)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	return &templateOut{Body: templateOf(t)}, nil
}

func (a *API) listTemplates(ctx context.Context, in *templatesIn) (*templatesOut, error) {
	limit, err := a.limit(in.Limit)
	if err != nil {
		return nil, err
	}
	from := uint64(1)
	if in.PageToken != "" {
		if from, err = parseID("query.page_token", in.PageToken); err != nil {
			return nil, err
		}
	}
	ts, err := a.deps.Templates.Templates(ctx, from, limit+1)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	out := &templatesOut{}
	if len(ts) > limit {
		out.Body.Next, ts = formatID(ts[limit].ID), ts[:limit]
	}
	out.Body.Templates = make([]Template, len(ts))
	for i := range ts {
		out.Body.Templates[i] = templateOf(ts[i])
	}
	return out, nil
}
