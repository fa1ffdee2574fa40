package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/rig/demo"
	"github.com/lapsehq/lapse/pkg/rig/receive"
)

const (
	tracedLead  = 4 * time.Second // from a grant to its end
	tracedMany  = 3               // coupons of one notice
	spansWithin = 30 * time.Second
	issuerSpan  = "00f067aa0ba902b7" // in which the issuer's own work ends
)

// traces lets coupons end whose issuers have begun a trace, and looks for the steps of each in that trace.
func (w *deploy) traces(ctx context.Context, t *tally) (err error) {
	spans, err := receive.StartSpans(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spans.Close()) }()
	env := func(worker string) map[string]string {
		vars := map[string]string{"LAPSE__TELEMETRY__TRACES__ENDPOINT": spans.URL(), "LAPSE__TELEMETRY__TRACES__RATIO": "0"}
		if worker == demo.Notifier {
			vars["LAPSE__NOTICE__QUIET"], vars["LAPSE__NOTICE__MAX_AGE"], vars["LAPSE__NOTICE__CHANNELS"] = "1s", "5s", "inbox"
		}
		return vars
	}
	return w.open(ctx, t, opening{env: env}, func(ctx context.Context, s *shop) error {
		if err := s.Add(ctx, w.cfg.Bin, demo.Notifier, demo.Notifier, env(demo.Notifier)); err != nil {
			return err
		}
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		ends := s.soon(tracedLead)
		ids := []string{}
		grant := func(user string, sampled bool) error {
			id, err := secretToken()
			if err != nil {
				return err
			}
			ids = append(ids, id[:32])
			flags := map[bool]string{true: "-01", false: "-00"}[sampled]
			return s.grantTraced(ctx, template, user, ends, "00-"+id[:32]+"-"+issuerSpan+flags)
		}
		for _, who := range []struct {
			user    string
			sampled bool
		}{{"by-http", true}, {"unsampled", false}, {"many", true}, {"many", true}, {"many", true}} {
			if err := grant(who.user, who.sampled); err != nil {
				return err
			}
		}
		byEvent, err := s.eventTraced(ctx, template, ends)
		if err != nil {
			return err
		}
		w.cfg.View.Step("their ends, and the notices after them")
		limit, cancel := context.WithTimeout(ctx, ends.Sub(s.Now())+spansWithin)
		defer cancel()
		_ = until(limit, func() (bool, error) { // what is missing is counted below
			return len(noticesOf(spans.Spans())) >= 2+1, nil
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		judgeTraces(t, spans.Spans(), ids, byEvent)
		return nil
	})
}

func noticesOf(all []receive.Span) []receive.Span {
	return slices.DeleteFunc(slices.Clone(all), func(s receive.Span) bool { return s.Name != "notice inbox" })
}

// judgeTraces looks at the walks of coupons: of one granted over HTTP, one that is not sampled, several of one notice, and one granted by
// an event.
func judgeTraces(t *tally, all []receive.Span, ids []string, byEvent string) {
	want(t, "walk_by_http", missingSteps(all, ids[0], "grantCoupons"), Equal, 0)
	want(t, "walk_by_event", missingSteps(all, byEvent, "grant"), Equal, 0)
	unsampled, batches := 0, 0
	for _, s := range all {
		if s.Trace == ids[1] {
			unsampled++
		}
		if s.Name == "settle batch" && len(s.Links) > 0 && s.Parent == "" && !slices.Contains(ids, s.Trace) {
			batches++
		}
	}
	want(t, "spans_of_what_is_not_sampled", unsampled, Equal, 0)
	want(t, "batches_linked", batches, AtLeast, 1)
	linked := 0
	for _, s := range noticesOf(all) {
		if s.Parent != "" {
			continue
		}
		for _, l := range s.Links {
			if slices.Contains(ids[2:], l[0]) {
				linked++
			}
		}
	}
	want(t, "links_of_the_notice_of_many", linked, Equal, tracedMany)
	failed := 0
	for _, s := range all {
		if s.Failed != "" {
			failed++
		}
	}
	told(t, "spans", len(all))
	want(t, "spans_failed", failed, Equal, 0)
}

// missingSteps counts what a whole walk has and the trace has not: each step in the trace, below the step that it follows from.
func missingSteps(all []receive.Span, trace, grant string) int {
	by := make(map[string]receive.Span)
	for _, s := range all {
		if s.Trace == trace {
			by[s.Name] = s
		}
	}
	missing := 0
	for _, step := range []struct{ name, below, service string }{
		{grant, "", "lapse-publisher"},
		{"send coupon.issued", grant, ""},
		{"send trigger expire", grant, ""},
		{"expire", grant, "lapse-expirer"},
		{"send coupon.expired", "expire", ""},
		{"collect expired", "expire", "lapse-notifier"},
		{"notice inbox", "expire", "lapse-notifier"},
	} {
		s, ok := by[step.name]
		above := issuerSpan
		if step.below != "" {
			above = by[step.below].ID
		}
		if !ok || s.Parent != above || !strings.HasPrefix(s.Service, step.service) {
			missing++
		}
	}
	return missing
}

// grantTraced grants over HTTP within a trace.
func (s *shop) grantTraced(ctx context.Context, template, user string, ends time.Time, trace string) error {
	body, err := json.Marshal(map[string]any{"grants": []map[string]any{{
		"grant_key": trace[3:35], "template_id": template, "user_id": user, "expires_at": ends.Format(time.RFC3339),
	}}})
	if err != nil {
		return fmt.Errorf("a grant: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/grants", strings.NewReader(string(body)))
	if err != nil {
		return fmt.Errorf("a grant: %w", err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + s.secret, "Content-Type": "application/json", "traceparent": trace} {
		req.Header.Set(name, value)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: apiTimeout}).Do(req)
	if err != nil {
		return fmt.Errorf("granting: %w", err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("granting: %s", res.Status), err)
	}
	return nil
}

// eventTraced grants by an event within a trace, and gives the trace's id.
func (s *shop) eventTraced(ctx context.Context, template string, ends time.Time) (string, error) {
	id, err := secretToken()
	if err != nil {
		return "", err
	}
	of, err := templateID(template)
	if err != nil {
		return "", err
	}
	g := coupon.Grant{Key: "by-event", TemplateID: of, UserID: "by-event", ExpiresAt: ends, Trace: "00-" + id[:32] + "-" + issuerSpan + "-01"}
	body, err := s.Codec().Grants("traced", s.Now(), []coupon.Grant{g})
	if err != nil {
		return "", err
	}
	m := broker.Message{Exchange: s.Ladder().Issuance(), Key: event.KeyGrant, ID: "traced", Body: body, ContentType: event.ContentType, Mandatory: true}
	m.Headers = map[string]any{broker.HeaderTrace: g.Trace}
	return id[:32], s.Publish(ctx, m)
}
