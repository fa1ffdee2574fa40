package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// OfferAsk is what coupons are to be worth at checkout.
type OfferAsk struct {
	Kind        string   `json:"kind" enum:"amount,percent"`
	BasisPoints int64    `json:"basis_points,omitempty" minimum:"0" maximum:"10000" doc:"percent: hundredths of a percent"`
	Cap         int64    `json:"cap,omitempty" minimum:"0" doc:"percent: at most this much off, in minor units; 0: no cap"`
	MinSpend    int64    `json:"min_spend,omitempty" minimum:"0" doc:"the least amount it applies to, in minor units"`
	Scopes      []string `json:"scopes,omitempty" maxItems:"32" nullable:"false" doc:"what it applies to; absent: everything"`
}

// TemplateAsk is a template to be made.
type TemplateAsk struct {
	Name          string    `json:"name" minLength:"1" maxLength:"200"`
	Rule          Rule      `json:"rule" doc:"when its coupons end"`
	Value         int64     `json:"value" minimum:"0" maximum:"1000000000000" doc:"minor units"`
	Currency      string    `json:"currency" pattern:"^[A-Z]{3}$" patternDescription:"three capital letters of ISO 4217"`
	Precision     string    `json:"precision,omitempty" enum:"exact,standard,relaxed" doc:"how closely the end is processed; exact if absent"`
	LatePayPolicy string    `json:"late_pay_policy,omitempty" enum:"honour_lock,strict" doc:"whether an order that holds a live lock may pay after the end; honour_lock if absent"`
	LatePayWindow string    `json:"late_pay_window,omitempty" doc:"how far beyond the end a lock may reach; 30m if absent"`
	QuotaBack     string    `json:"quota_back,omitempty" enum:"none,total,total_and_user" doc:"what an expired or voided coupon gives back; none if absent"`
	Reminders     string    `json:"reminders,omitempty" maxLength:"255" doc:"before the end, at which of the installation's offsets, such as -3d,-30m; none; all of them if absent"`
	Offer         *OfferAsk `json:"offer,omitempty" doc:"value off if absent"`
	Quota         int64     `json:"quota,omitempty" minimum:"0" doc:"how many coupons it issues at most; 0: any number"`
	PerUser       int64     `json:"per_user,omitempty" minimum:"0" doc:"how many one user gets at most; 0: any number"`
	Reason        string    `json:"reason" minLength:"1" maxLength:"255" doc:"why; kept with the revision"`
}

// TemplateChange is what the next revision of a template changes.
type TemplateChange struct {
	Revision      uint32    `json:"revision" minimum:"1" doc:"the one that this replaces, so that nobody's change is lost"`
	Name          *string   `json:"name,omitempty" minLength:"1" maxLength:"200"`
	Rule          *Rule     `json:"rule,omitempty"`
	Value         *int64    `json:"value,omitempty" minimum:"0" maximum:"1000000000000"`
	Currency      *string   `json:"currency,omitempty" pattern:"^[A-Z]{3}$" patternDescription:"three capital letters of ISO 4217"`
	Precision     *string   `json:"precision,omitempty" enum:"exact,standard,relaxed"`
	LatePayPolicy *string   `json:"late_pay_policy,omitempty" enum:"honour_lock,strict"`
	LatePayWindow *string   `json:"late_pay_window,omitempty"`
	QuotaBack     *string   `json:"quota_back,omitempty" enum:"none,total,total_and_user"`
	Reminders     *string   `json:"reminders,omitempty" maxLength:"255" doc:"empty: at all of the installation's offsets"`
	Offer         *OfferAsk `json:"offer,omitempty" doc:"replaces all of the offer"`
	Quota         *int64    `json:"quota,omitempty" minimum:"0" doc:"those issued included"`
	PerUser       *int64    `json:"per_user,omitempty" minimum:"0"`
	Reason        string    `json:"reason" minLength:"1" maxLength:"255" doc:"why; kept with the revision"`
}

type createIn struct{ Body TemplateAsk }

type reviseIn struct {
	TemplateID string `path:"template_id" doc:"the template's id"`
	Body       TemplateChange
}

type stopIn struct {
	TemplateID string `path:"template_id" doc:"the template's id"`
	Body       struct {
		Reason string `json:"reason" minLength:"1" maxLength:"255" doc:"why; kept"`
	}
}

func (a *API) addTemplateChanges() {
	ops := []Scope{ScopeOps}
	register(a, route{
		id: "createTemplate", method: http.MethodPost, path: "/v1/templates", tag: tagTemplates, summary: "Create a template",
		text: "Without an Idempotency-Key, a request that is sent twice makes two.", scopes: ops, mutates: true, status: http.StatusCreated,
		codes: []coupon.Code{coupon.CodeInvalid},
	}, a.createTemplate)
	register(a, route{
		id: "reviseTemplate", method: http.MethodPost, path: "/v1/templates/{template_id}/revisions", tag: tagTemplates,
		summary: "Change a template for coupons to come", text: "What is not given stays as it is. Coupons that were issued keep their revision.",
		scopes: ops, mutates: true, status: http.StatusCreated, codes: []coupon.Code{coupon.CodeNotFound, CodeConflict, coupon.CodeInvalid},
	}, a.reviseTemplate)
	register(a, route{
		id: "stopTemplate", method: http.MethodPost, path: "/v1/templates/{template_id}/stop", tag: tagTemplates, summary: "Stop a template",
		text: "It issues no more; coupons that were issued are not touched. To stop a stopped one changes nothing.", scopes: ops, mutates: true,
		codes: []coupon.Code{coupon.CodeNotFound},
	}, a.stopTemplate(true))
	register(a, route{
		id: "resumeTemplate", method: http.MethodPost, path: "/v1/templates/{template_id}/resume", tag: tagTemplates,
		summary: "Let a stopped template issue again", scopes: ops, mutates: true, codes: []coupon.Code{coupon.CodeNotFound},
	}, a.stopTemplate(false))
}

func (a *API) createTemplate(ctx context.Context, in *createIn) (*templateOut, error) {
	c := callerFrom(ctx)
	if c.idem != nil && c.idem.mark != "" { // an earlier try made it, and died before it could say so
		return a.marked(ctx, c.idem.mark)
	}
	b := in.Body
	t := coupon.Template{
		Name: b.Name, Rule: coupon.Rule(b.Rule), Quota: b.Quota, PerUser: b.PerUser, Actor: c.actor, Reason: b.Reason,
		Terms: coupon.Terms{
			Value: b.Value, Currency: b.Currency, Precision: coupon.Exact, LatePay: coupon.LatePay(b.LatePayPolicy), QuotaBack: coupon.QuotaBack(b.QuotaBack),
			Reminders: coupon.Picks(b.Reminders),
		}.Defaults(),
	}
	if b.Precision != "" {
		t.Terms.Precision = coupon.Precision(b.Precision)
	}
	if b.LatePayPolicy != "" {
		t.Terms.LateWindow = coupon.DefaultLateWindow
	}
	if b.Offer != nil {
		t.Terms.Offer = offerAsked(*b.Offer)
	}
	if err := checkTemplate(&t, b.LatePayWindow); err != nil {
		return nil, err
	}
	var id uint64
	var err error
	if c.idem != nil {
		id, err = a.deps.Templates.CreateTemplateOnce(ctx, t, c.name, c.idem.text)
	} else {
		id, err = a.deps.Templates.CreateTemplate(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	return a.readTemplate(ctx, id)
}

// marked answers with the template that an earlier try with the same key made or revised.
func (a *API) marked(ctx context.Context, mark string) (*templateOut, error) {
	id, err := strconv.ParseUint(mark, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("the mark of an Idempotency-Key: %w", err)
	}
	return a.readTemplate(ctx, id)
}

func (a *API) reviseTemplate(ctx context.Context, in *reviseIn) (*templateOut, error) {
	id, err := parseID("path.template_id", in.TemplateID)
	if err != nil {
		return nil, err
	}
	c := callerFrom(ctx)
	if c.idem != nil && c.idem.mark != "" {
		return a.readTemplate(ctx, id)
	}
	t, err := a.deps.Templates.Template(ctx, id)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	b := in.Body
	if t.Revision != b.Revision {
		return nil, problem(http.StatusConflict, CodeConflict, fmt.Sprintf("the template has revision %d now, not %d: read it again", t.Revision, b.Revision))
	}
	b.apply(&t)
	t.Actor, t.Reason = c.actor, b.Reason
	window := ""
	if b.LatePayWindow != nil {
		window = *b.LatePayWindow
	}
	if err := checkTemplate(&t, window); err != nil {
		return nil, err
	}
	if c.idem != nil {
		_, err = a.deps.Templates.ReviseTemplateOnce(ctx, t, c.name, c.idem.text)
	} else {
		_, err = a.deps.Templates.ReviseTemplate(ctx, t)
	}
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	return a.readTemplate(ctx, id)
}

func (b *TemplateChange) apply(t *coupon.Template) {
	set(&t.Name, b.Name)
	set(&t.Terms.Value, b.Value)
	set(&t.Terms.Currency, b.Currency)
	set(&t.Quota, b.Quota)
	set(&t.PerUser, b.PerUser)
	setText(&t.Terms.Precision, b.Precision)
	setText(&t.Terms.LatePay, b.LatePayPolicy)
	setText(&t.Terms.QuotaBack, b.QuotaBack)
	setText(&t.Terms.Reminders, b.Reminders)
	if b.Rule != nil {
		t.Rule = coupon.Rule(*b.Rule)
	}
	if b.Offer != nil {
		t.Terms.Offer = offerAsked(*b.Offer)
	}
}

func set[T any](field, given *T) {
	if given != nil {
		*field = *given
	}
}

func setText[T ~string](field *T, given *string) {
	if given != nil {
		*field = T(*given)
	}
}

func offerAsked(o OfferAsk) coupon.Offer {
	return coupon.Offer{Kind: coupon.OfferKind(o.Kind), BasisPoints: o.BasisPoints, Cap: o.Cap, MinSpend: o.MinSpend, Scopes: o.Scopes}
}

// checkTemplate reports every fault. window is the late-pay window as it was given; empty: it stays.
func checkTemplate(t *coupon.Template, window string) error {
	if window != "" {
		d, err := time.ParseDuration(window)
		if err != nil {
			return badRequest("body.late_pay_window", window, "must be a duration such as 30m")
		}
		t.Terms.LateWindow = d
	}
	for _, s := range []struct{ location, text string }{{"body.name", t.Name}, {"body.reason", t.Reason}} {
		if !printable(s.text) {
			return badRequest(s.location, s.text, "must not contain control characters or noncharacters")
		}
	}
	if err := t.Validate(); err != nil {
		return fromJoined(err)
	}
	return nil
}

func (a *API) stopTemplate(stopped bool) func(ctx context.Context, in *stopIn) (*templateOut, error) {
	return func(ctx context.Context, in *stopIn) (*templateOut, error) {
		id, err := parseID("path.template_id", in.TemplateID)
		if err != nil {
			return nil, err
		}
		if r := in.Body.Reason; !printable(r) || len(r) > coupon.MaxReason {
			return nil, badRequest("body.reason", r, fmt.Sprintf("must have 1 to %d bytes without control characters", coupon.MaxReason))
		}
		if err := a.deps.Templates.StopTemplate(ctx, id, stopped, callerFrom(ctx).actor, in.Body.Reason); err != nil {
			return nil, err //nolint:wrapcheck // problemOf tells what it means
		}
		return a.readTemplate(ctx, id)
	}
}
