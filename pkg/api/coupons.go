package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Coupons reads coupons, archived ones too.
type Coupons interface {
	Coupon(ctx context.Context, id uint64) (coupon.Coupon, time.Time, error)
	Timeline(ctx context.Context, id uint64) ([]coupon.Transition, error)
	List(ctx context.Context, q coupon.ListQuery) (coupon.Page, error)
}

// Coupon is a coupon as the API shows it.
type Coupon struct {
	CouponID    string     `json:"coupon_id"`
	TemplateID  string     `json:"template_id"`
	Revision    uint32     `json:"revision" doc:"of the template; its terms are the coupon's"`
	BatchID     string     `json:"batch_id"`
	UserID      string     `json:"user_id"`
	State       string     `json:"state" enum:"unused,locked,used,expired,voided" doc:"as it is now: a passed end and a lock that ran out count, whether or not a worker has settled them"`
	StoredState string     `json:"stored_state" enum:"unused,locked,used,expired,voided" doc:"in the database"`
	Version     uint32     `json:"version" doc:"counts the coupon's steps"`
	ValidFrom   time.Time  `json:"valid_from"`
	ExpiresAt   *time.Time `json:"expires_at" doc:"the first instant at which it is over; null: never"`
	GrantedAt   time.Time  `json:"granted_at"`
	LockedAt    *time.Time `json:"locked_at"`
	LockUntil   *time.Time `json:"lock_until" doc:"of the lock that is stored, live or not"`
	OrderID     string     `json:"order_id" doc:"that holds it or has used it"`
	UsedAt      *time.Time `json:"used_at"`
	ExpiredAt   *time.Time `json:"expired_at" doc:"when a worker, an order or an operator settled that it is over; not its end"`
	ExpireCause string     `json:"expire_cause"`
	Value       int64      `json:"value" doc:"minor units"`
	Currency    string     `json:"currency" doc:"ISO 4217"`
	Offer       Offer      `json:"offer"`
	Archived    bool       `json:"archived"`
	Observed    bool       `json:"observed" doc:"imported, and another system's still: its state is that system's, and nothing here moves it until the cut-over"`
}

// Step is one transition of a coupon's life.
type Step struct {
	Version   uint32     `json:"version" doc:"of the coupon after it; 1 is the grant"`
	From      string     `json:"from" doc:"empty for the grant"`
	To        string     `json:"to" doc:"the same as from if a lock was renewed or the end was moved"`
	Cause     string     `json:"cause"`
	At        time.Time  `json:"at"`
	ExpiresAt *time.Time `json:"expires_at" doc:"after it; null: never"`
	Previous  *time.Time `json:"previous_expires_at" doc:"the end before it was moved; null: it was not, or it was never"`
	OrderID   string     `json:"order_id"`
	LockUntil *time.Time `json:"lock_until"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	TriggerID string     `json:"trigger_id" doc:"of the trigger that caused it, if one did"`
	Origin    string     `json:"origin" doc:"of that trigger"`
}

// couponOf shows a coupon that was read at now, of the database's clock, and rings if it is stored otherwise. Whatever
// shows a coupon goes through here (requirement R20), but for the CSV export: see exportCoupons.
func (a *API) couponOf(now time.Time, c *coupon.Coupon) Coupon {
	return showCoupon(c, a.deps.Aside.Seen(now, c))
}

func showCoupon(c *coupon.Coupon, seen coupon.Status) Coupon {
	return Coupon{
		CouponID: formatID(c.ID), TemplateID: formatID(c.Terms.TemplateID), Revision: c.Terms.Revision, BatchID: c.BatchID, UserID: c.UserID,
		State: seen.String(), StoredState: c.Status.String(), Version: c.Version, ValidFrom: c.ValidFrom.UTC(), ExpiresAt: instant(c.ExpiresAt),
		GrantedAt: c.GrantedAt.UTC(), LockedAt: instant(c.LockedAt), LockUntil: instant(c.LockUntil), OrderID: c.OrderID, UsedAt: instant(c.UsedAt),
		ExpiredAt: instant(c.ExpiredAt), ExpireCause: string(c.Cause), Value: c.Terms.Value, Currency: c.Terms.Currency,
		Offer: offerOf(c.Terms.Offer), Archived: c.Archived, Observed: c.Observed,
	}
}

func (a *API) couponsOf(now time.Time, cs []coupon.Coupon) []Coupon {
	out := make([]Coupon, len(cs))
	for i := range cs {
		out[i] = a.couponOf(now, &cs[i])
	}
	return out
}

func stepOf(t coupon.Transition) Step {
	s := Step{
		Version: t.Version, To: t.To.String(), Cause: string(t.Cause), At: t.At.UTC(), ExpiresAt: instant(t.ExpiresAt), Previous: instant(t.Previous),
		OrderID: t.OrderID, LockUntil: instant(t.LockUntil), Actor: t.Actor, Reason: t.Reason, TriggerID: t.TriggerID, Origin: string(t.Origin),
	}
	if t.From != 0 {
		s.From = t.From.String()
	}
	return s
}

type couponIn struct {
	CouponID string `path:"coupon_id" doc:"the coupon's id"`
}

type couponOut struct{ Body Coupon }

type timelineOut struct {
	Body struct {
		Steps []Step `json:"steps" nullable:"false" doc:"in their order, the grant first"`
	}
}

// CouponPage is a part of a list.
type CouponPage struct {
	Now     time.Time `json:"now" doc:"the database's clock, by which the states are told"`
	Coupons []Coupon  `json:"coupons" nullable:"false" doc:"may be fewer than asked for, even none, and more follow"`
	Next    string    `json:"next_page_token" doc:"for the next page; empty: there is none"`
}

type couponsOut struct{ Body CouponPage }

// CouponFilter says which coupons a list is of. It is exported because huma looks at no other embedded field.
type CouponFilter struct {
	TemplateID string `query:"template_id" doc:"of this template"`
	BatchID    string `query:"batch_id" doc:"of this batch"`
	State      string `query:"state" enum:"unused,locked,used,expired,voided" doc:"as stored: an unused coupon whose end has passed is found under unused until a worker has settled it"`
	EndsFrom   string `query:"ends_from" format:"date-time" doc:"ends at this instant or later"`
	EndsTo     string `query:"ends_to" format:"date-time" doc:"ends before this instant"`
	PageToken  string `query:"page_token" doc:"next_page_token of the page before"`
}

type listIn struct {
	CouponFilter
	Limit int `query:"limit" minimum:"1" doc:"coupons to look at for the page"`
}

func (a *API) addCoupons() {
	register(a, route{
		id: "getCoupon", method: http.MethodGet, path: "/v1/coupons/{coupon_id}", tag: tagCoupons, summary: "Get a coupon",
		text: "As it is at this instant; archived ones too.", scopes: []Scope{ScopeRead, ScopeOps}, codes: []coupon.Code{coupon.CodeNotFound},
	}, a.getCoupon)
	register(a, route{
		id: "getTimeline", method: http.MethodGet, path: "/v1/coupons/{coupon_id}/timeline", tag: tagCoupons, summary: "Get a coupon's whole story",
		text:   "Every step that was taken, with who or what caused it. What is due and not yet settled is no step.",
		scopes: []Scope{ScopeRead, ScopeOps}, codes: []coupon.Code{coupon.CodeNotFound},
	}, a.getTimeline)
	register(a, route{
		id: "listCoupons", method: http.MethodGet, path: "/v1/coupons", tag: tagCoupons, summary: "List coupons",
		text:   "By template, batch or stored state, at least one of them; in the order of ids, or by ends if only the state is given. Archived coupons are not listed.",
		scopes: []Scope{ScopeOps},
	}, a.listCoupons)
	a.addExport()
	a.addOperate()
}

func (a *API) getCoupon(ctx context.Context, in *couponIn) (*couponOut, error) {
	id, err := parseID("path.coupon_id", in.CouponID)
	if err != nil {
		return nil, err
	}
	c, now, err := a.deps.Coupons.Coupon(ctx, id)
	if err != nil {
		return nil, ofRead(err)
	}
	return &couponOut{Body: a.couponOf(now, &c)}, nil
}

func (a *API) getTimeline(ctx context.Context, in *couponIn) (*timelineOut, error) {
	id, err := parseID("path.coupon_id", in.CouponID)
	if err != nil {
		return nil, err
	}
	ts, err := a.deps.Coupons.Timeline(ctx, id)
	if err != nil {
		return nil, ofRead(err)
	}
	out := &timelineOut{}
	out.Body.Steps = make([]Step, len(ts))
	for i, t := range ts {
		out.Body.Steps[i] = stepOf(t)
	}
	return out, nil
}

func (a *API) listCoupons(ctx context.Context, in *listIn) (*couponsOut, error) {
	q, err := in.query()
	if err != nil {
		return nil, err
	}
	if q.Limit, err = a.limit(in.Limit); err != nil {
		return nil, err
	}
	page, err := a.list(ctx, q)
	if err != nil {
		return nil, err
	}
	return &couponsOut{Body: a.pageOf(page)}, nil
}

func (a *API) pageOf(p coupon.Page) CouponPage {
	return CouponPage{Now: p.Now.UTC(), Coupons: a.couponsOf(p.Now, p.Coupons), Next: p.Next}
}

// list reads a page; what is wrong with the query is the client's fault.
func (a *API) list(ctx context.Context, q coupon.ListQuery) (coupon.Page, error) {
	if err := q.Validate(); err != nil {
		return coupon.Page{}, queryFaults(err)
	}
	page, err := a.deps.Coupons.List(ctx, q)
	if err != nil {
		return coupon.Page{}, ofPage(err, q.After)
	}
	return page, nil
}

// ofPage is ofRead of a page: a token that is none is the client's fault.
func ofPage(err error, token string) error {
	if errors.Is(err, coupon.ErrPosition) {
		return badRequest("query.page_token", token, "must be the next_page_token of a page of the same query")
	}
	return ofRead(err)
}

// ofRead is what a reading's failure means. What the database holds is not the reader's fault, unlike what a change
// wants it to hold.
func ofRead(err error) error {
	if errors.Is(err, coupon.ErrIntegrity) {
		return problem(http.StatusInternalServerError, CodeInternal, "a fault of ours; it is in the log under the request's id").because(err)
	}
	return err
}

// queryFaults are those that package coupon reports ("field: reason", joined) of what stood in the query.
func queryFaults(err error) *Problem {
	var faults []Fault
	for line := range strings.SplitSeq(err.Error(), "\n") {
		field, message, _ := strings.Cut(line, ": ")
		faults = append(faults, Fault{Location: "query." + field, Message: clip(message)})
	}
	return badRequests(faults)
}

// limit of a page: the default if none is given.
func (a *API) limit(n int) (int, error) {
	switch {
	case n == 0:
		return a.cfg.Page.Default, nil
	case n > a.cfg.Page.Most:
		return 0, badRequest("query.limit", formatID(uint64(n)), "must be at most "+formatID(uint64(a.cfg.Page.Most)))
	default:
		return n, nil
	}
}

func (in *CouponFilter) query() (q coupon.ListQuery, err error) {
	if in.TemplateID != "" {
		if q.Template, err = parseID("query.template_id", in.TemplateID); err != nil {
			return q, err
		}
	}
	if err := texts(text("query.batch_id", in.BatchID, false)); err != nil {
		return q, err
	}
	if q.EndsFrom, err = queryInstant("query.ends_from", in.EndsFrom); err != nil {
		return q, err
	}
	if q.EndsTo, err = queryInstant("query.ends_to", in.EndsTo); err != nil {
		return q, err
	}
	if q.State, err = parseState("query.state", in.State); err != nil {
		return q, err
	}
	q.Batch, q.After = in.BatchID, in.PageToken
	return q, nil
}

func queryInstant(location, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || coupon.IsNever(at) {
		return time.Time{}, badRequest(location, text, "must be an instant in RFC 3339 with a zone, from 1970 on and before 9999-12-31; a + is %2B in a query")
	}
	return at.UTC(), nil
}

// parseState reads a state's name; an empty one is every state.
func parseState(location, text string) (coupon.Status, error) {
	if text == "" {
		return 0, nil
	}
	for s := coupon.Unused; s <= coupon.Voided; s++ {
		if s.String() == text {
			return s, nil
		}
	}
	return 0, badRequest(location, text, "must be unused, locked, used, expired or voided")
}
