package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// DayStats are the counts of a template on a UTC day. Values are minor units of the template's currency.
type DayStats struct {
	Day           string `json:"day" format:"date" doc:"UTC"`
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

	Reinstated      int64 `json:"reinstated" doc:"expired, and given back by an operator"`
	ReinstatedValue int64 `json:"reinstated_value"`
}

type statsIn struct {
	TemplateID string `path:"template_id" doc:"the template's id"`
	From       string `query:"from" format:"date" doc:"the first UTC day; absent: the 31 days that end with to"`
	To         string `query:"to" format:"date" doc:"the last UTC day; absent: today"`
}

type statsOut struct {
	Body struct {
		TemplateID string     `json:"template_id"`
		Days       []DayStats `json:"days" nullable:"false" doc:"in order; a day without anything is left out"`
	}
}

const (
	statsDays = 31  // if the request does not say
	statsMost = 366 // days of one request
)

func (a *API) addStats() {
	register(a, route{
		id: "getTemplateStats", method: http.MethodGet, path: "/v1/templates/{template_id}/stats", tag: tagTemplates,
		summary: "Count what became of a template's coupons", scopes: []Scope{ScopeOps, ScopeRead}, codes: []coupon.Code{coupon.CodeNotFound},
		text: "By the UTC day on which it happened. Kept from the events, so it may be some seconds behind. At most 366 days at once.",
	}, a.getStats)
}

func (a *API) getStats(ctx context.Context, in *statsIn) (*statsOut, error) {
	id, err := parseID("path.template_id", in.TemplateID)
	if err != nil {
		return nil, err
	}
	from, to, err := in.days(time.Now().UTC())
	if err != nil {
		return nil, err
	}
	days, err := a.deps.Stats.TemplateStats(ctx, id, from, to)
	if err != nil {
		return nil, err //nolint:wrapcheck // problemOf tells what it means
	}
	out := &statsOut{}
	out.Body.TemplateID, out.Body.Days = formatID(id), make([]DayStats, len(days))
	for i, d := range days {
		out.Body.Days[i] = DayStats{
			Day: d.Day.UTC().Format(time.DateOnly), Granted: d.Granted, Locked: d.Locked, Released: d.Released, Used: d.Used, Refunded: d.Refunded,
			Expired: d.Expired, Voided: d.Voided, GrantedValue: d.GrantedValue, UsedValue: d.UsedValue, RefundedValue: d.RefundedValue,
			ExpiredValue: d.ExpiredValue, VoidedValue: d.VoidedValue, Reinstated: d.Reinstated, ReinstatedValue: d.ReinstatedValue,
		}
	}
	return out, nil
}

func (in *statsIn) days(now time.Time) (from, to time.Time, err error) {
	day := func(name, text string, otherwise time.Time) time.Time {
		if text == "" {
			return otherwise
		}
		t, perr := time.Parse(time.DateOnly, text)
		if perr != nil || t.Year() < 1970 {
			err = badRequest("query."+name, text, "must be a date, YYYY-MM-DD, from 1970 on")
		}
		return t
	}
	to = day("to", in.To, now.Truncate(24*time.Hour))
	from = day("from", in.From, to.AddDate(0, 0, 1-statsDays))
	switch {
	case err != nil:
	case from.After(to):
		err = badRequest("query.from", in.From, "must not be after to ("+to.Format(time.DateOnly)+")")
	case to.Sub(from) >= statsMost*24*time.Hour:
		err = badRequest("query.from", from.Format(time.DateOnly), fmt.Sprintf("must be at most %d days before to (%s)", statsMost-1, to.Format(time.DateOnly)))
	}
	return from, to, err
}
