package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/status"
)

const (
	page      = 50             // of a user's coupons
	mostToken = 1024           // bytes of a page's position
	soon      = 72 * time.Hour // what ends within is counted
)

type couponOut struct {
	Now      string     `json:"now"`
	Coupon   api.Coupon `json:"coupon"`
	Template string     `json:"template"` // its name
	Stopped  bool       `json:"template_stopped"`
	Issuer   string     `json:"issuer"`
	GrantKey string     `json:"grant_key"`
	DueAt    *time.Time `json:"due_at"` // when a worker will settle its end; null: never
	Outbox   int        `json:"outbox"` // messages of it that the broker does not have yet
	Beyond   bool       `json:"beyond_horizon"`
	Why      Why        `json:"why"`
	Steps    []api.Step `json:"steps"`
}

// coupon tells all that is known of one, as of one instant.
func (c *Console) coupon(ctx context.Context, r asked) (any, error) {
	text, err := query(r, "id", 20)
	if err != nil {
		return nil, err
	}
	id, err := api.ParseID("query.id", text)
	if err != nil {
		return nil, err //nolint:wrapcheck // a problem
	}
	leave, err := c.seat(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	e, err := c.deps.Store.Explain(ctx, id)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	brakes, err := c.deps.Store.Brakes(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	out := couponOut{
		Now: status.Instant(e.Now), Coupon: api.Show(&e.Coupon, e.Seen), Template: e.Template.Name, Stopped: e.Template.Stopped,
		Issuer: e.Issuer, GrantKey: e.GrantKey, DueAt: known(e.DueAt), Outbox: len(e.Outbox), Beyond: e.Beyond,
		Why:   Explain(&e.Coupon, e.History, e.Now, brakes.Coupon(coupon.BrakeExpiry, e.Terms.TemplateID, e.BatchID)),
		Steps: make([]api.Step, len(e.History)),
	}
	for i := range e.History {
		out.Steps[i] = api.ShowStep(e.History[i])
	}
	return out, nil
}

type userOut struct {
	Now     string       `json:"now"`
	UserID  string       `json:"user_id"`
	Summary *summaryOut  `json:"summary"` // of the first page
	Coupons []userCoupon `json:"coupons"`
	Next    string       `json:"next"`
}

type userCoupon struct {
	api.Coupon
	Why Why `json:"why"`
}

type summaryOut struct {
	Usable  int              `json:"usable"`
	Ending  int              `json:"ending"` // of those, within three days
	NextEnd *time.Time       `json:"next_end"`
	Value   map[string]int64 `json:"value"`
	More    bool             `json:"more"`
}

// user shows a page of a user's coupons.
func (c *Console) user(ctx context.Context, r asked) (any, error) {
	id, err := query(r, "id", coupon.MaxText)
	if err != nil {
		return nil, err
	}
	q := coupon.WalletQuery{UserID: id, Limit: page}
	if r.URL.Query().Has("after") {
		if q.After, err = query(r, "after", mostToken); err != nil {
			return nil, err
		}
	}
	leave, err := c.seat(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	brakes, err := c.deps.Store.Brakes(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	p, err := c.deps.Store.Wallet(ctx, q)
	if err != nil {
		if errors.Is(err, coupon.ErrPosition) {
			return nil, api.NewProblem(http.StatusBadRequest, api.CodeBadRequest, "query.after: must be the one that the page before gave")
		}
		return nil, err //nolint:wrapcheck // says what it does
	}
	out := userOut{Now: status.Instant(p.Now), UserID: id, Next: p.Next, Coupons: make([]userCoupon, len(p.Coupons))}
	for i := range p.Coupons {
		x := &p.Coupons[i]
		out.Coupons[i] = userCoupon{
			api.Show(x, x.Seen(p.Now)), Explain(x, nil, p.Now, brakes.Coupon(coupon.BrakeExpiry, x.Terms.TemplateID, x.BatchID)),
		}
	}
	if q.After != "" {
		return out, nil
	}
	s, err := c.deps.Store.WalletSummary(ctx, id, soon)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	out.Summary = &summaryOut{Usable: s.Usable, Ending: s.Ending, NextEnd: known(s.NextEnd), Value: map[string]int64{}, More: s.More}
	for _, v := range s.Value {
		out.Summary.Value[v.Currency] = v.Amount
	}
	return out, nil
}
