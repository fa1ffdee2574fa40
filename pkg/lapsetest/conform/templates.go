package conform

import (
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

func templates(s *site) {
	r := s.post(api.ScopeOps, "/v1/templates", terms("name", "spring", "quota", 10, "per_user", 2,
		"offer", object{"kind": "percent", "basis_points": 1500, "cap": 3000, "min_spend": 1000, "scopes": []string{"books"}},
		"rule", object{"kind": "days_after", "days": 7, "zone": "Asia/Shanghai"}), "X-Actor", "mei").is(http.StatusCreated)
	id := r.text("template_id")
	require.Equal(s, 1, r.number("revision"))
	require.Equal(s, "spring", r.text("name"))
	require.Equal(s, "issuing", r.text("state"))
	require.True(s, strings.HasSuffix(r.text("actor"), "/mei"), "%s", r.raw)
	require.Equal(s, "exact", r.text("precision"))
	require.Equal(s, "honour_lock", r.text("late_pay_policy"))
	require.Equal(s, "none", r.text("quota_back"))
	require.Equal(s, 1500, r.number("offer", "basis_points"))
	require.Equal(s, 0, r.number("issued"))
	require.Equal(s, string(r.raw), string(s.get(api.ScopeRead, "/v1/templates/"+id).ok().raw), "read as it was answered")

	old := s.grant(id, "u")
	revise := "/v1/templates/" + id + "/revisions"
	r = s.post(api.ScopeOps, revise, object{"revision": 1, "value": 700, "offer": object{"kind": "amount"}, "reason": "dearer"}).is(http.StatusCreated)
	require.Equal(s, 2, r.number("revision"))
	require.Equal(s, 700, r.number("value"))
	require.Equal(s, "spring", r.text("name"), "what is not given stays")
	require.Equal(s, 1, r.number("issued"))
	s.post(api.ScopeOps, revise, object{"revision": 1, "value": 800, "reason": "late"}).refused(http.StatusConflict, "conflict", "revision 2")
	require.Equal(s, 500, s.coupon(old).number("value"), "a coupon keeps its revision")
	young := s.coupon(s.grant(id, "u"))
	require.Equal(s, 700, young.number("value"))
	require.Equal(s, 2, young.number("revision"))

	r = s.post(api.ScopeOps, "/v1/templates/"+id+"/stop", object{"reason": "enough"}).ok()
	require.Equal(s, "stopped", r.text("state"))
	s.post(api.ScopeOps, "/v1/templates/"+id+"/stop", object{"reason": "again"}).ok()
	g := s.post(api.ScopeIssue, "/v1/grants", object{"grants": []object{{"grant_key": s.name("k"), "template_id": id, "user_id": "v"}}}).ok()
	require.Equal(s, "template_stopped", g.text("results", 0, "code"))
	require.Equal(s, "unused", s.coupon(old).text("state"), "what was issued is not touched")
	require.Equal(s, "issuing", s.post(api.ScopeOps, "/v1/templates/"+id+"/resume", object{"reason": "more"}).ok().text("state"))
	s.grant(id, "v")

	require.Empty(s, s.get(api.ScopeOps, "/v1/templates/"+id+"/stats?from=2020-01-01&to=2020-01-31").ok().list("days"))
}

func templateFaults(s *site) {
	for _, c := range []struct {
		more  []any
		names string
	}{
		{[]any{"name", ""}, "body.name"},
		{[]any{"name", "a\x01"}, "body.name"},
		{[]any{"reason", absent{}}, "reason"},
		{[]any{"value", -1}, "body.value"},
		{[]any{"value", "5"}, "body.value"},
		{[]any{"currency", "yuan"}, "body.currency"},
		{[]any{"precision", "sloppy"}, "body.precision"},
		{[]any{"quota", -1}, "body.quota"},
		{[]any{"late_pay_window", "soon"}, "body.late_pay_window"},
		{[]any{"quota_back", "some"}, "body.quota_back"},
		{[]any{"reminders", "-3x"}, "reminders"},
		{[]any{"offer", object{"kind": "percent"}}, "basis_points"},
		{[]any{"offer", object{"kind": "gift"}}, "body.offer.kind"},
		{[]any{"rule", object{"kind": "after", "after": "-1h"}}, "after"},
		{[]any{"rule", object{"kind": "end_of_day", "date": "2026-02-30", "zone": "UTC"}}, "date"},
		{[]any{"rule", object{"kind": "days_after", "days": 1, "zone": "Mars/Base"}}, "zone"},
		{[]any{"rule", object{"kind": "fixed", "at": "2026-01-01"}}, "at"},
		{[]any{"rule", object{"kind": "soon"}}, "body.rule.kind"},
		{[]any{"colour", "red"}, "body.colour"},
	} {
		r := s.post(api.ScopeOps, "/v1/templates", terms(c.more...)).refused(http.StatusBadRequest, "bad_request", c.names)
		require.NotEmpty(s, r.list("errors"))
	}
	for _, path := range []string{"", "/stats"} {
		s.get(api.ScopeOps, "/v1/templates/999999999"+path).refused(http.StatusNotFound, "not_found")
	}
	s.post(api.ScopeOps, "/v1/templates/999999999/stop", object{"reason": "r"}).refused(http.StatusNotFound, "not_found")
	s.post(api.ScopeOps, "/v1/templates/999999999/revisions", object{"revision": 1, "reason": "r"}).refused(http.StatusNotFound, "not_found")
	for _, id := range []string{"0", "-1", "x", "01", "18446744073709551616"} {
		s.get(api.ScopeOps, "/v1/templates/"+id).refused(http.StatusBadRequest, "bad_request", "path.template_id")
	}
	id := s.template()
	s.post(api.ScopeOps, "/v1/templates/"+id+"/revisions", object{"revision": 1, "value": 1}).refused(http.StatusBadRequest, "bad_request", "reason")
	s.post(api.ScopeOps, "/v1/templates/"+id+"/stop", object{"reason": ""}).refused(http.StatusBadRequest, "bad_request", "reason")
	s.get(api.ScopeOps, "/v1/templates/"+id+"/stats?from=yesterday").refused(http.StatusBadRequest, "bad_request", "query.from")
	s.get(api.ScopeOps, "/v1/templates/"+id+"/stats?from=2020-01-02&to=2020-01-01").refused(http.StatusBadRequest, "bad_request")
}

// templateLists walks all of them: others are made meanwhile.
func templateLists(s *site) {
	want := map[string]bool{s.template(): true, s.template(): true, s.template(): true}
	path, last := "/v1/templates?limit=2", ""
	for path != "" {
		r := s.get(api.ScopeRead, path).ok()
		ids := r.texts("template_id", "templates")
		require.LessOrEqual(s, len(ids), 2)
		for _, id := range ids {
			require.True(s, len(id) > len(last) || len(id) == len(last) && id > last, "%s after %s", id, last)
			last = id
			delete(want, id)
		}
		path = ""
		if next := r.text("next_page_token"); next != "" {
			path = "/v1/templates?limit=2&page_token=" + next
		}
	}
	require.Empty(s, want)
	s.get(api.ScopeRead, "/v1/templates?page_token=x").refused(http.StatusBadRequest, "bad_request", "query.page_token")
}

// templateKeys: a template has no key of its own but the request's.
func templateKeys(s *site) {
	k := s.name("idem")
	first := s.post(api.ScopeOps, "/v1/templates", terms(), "Idempotency-Key", k).is(http.StatusCreated)
	again := s.post(api.ScopeOps, "/v1/templates", terms(), "Idempotency-Key", k).is(http.StatusCreated)
	require.Equal(s, string(first.raw), string(again.raw))
	require.Equal(s, "true", again.header.Get("Idempotency-Replayed"))
	revise, k2 := "/v1/templates/"+first.text("template_id")+"/revisions", s.name("idem")
	change := object{"revision": 1, "value": 9, "reason": "r"}
	first = s.post(api.ScopeOps, revise, change, "Idempotency-Key", k2).is(http.StatusCreated)
	again = s.post(api.ScopeOps, revise, change, "Idempotency-Key", k2).is(http.StatusCreated)
	require.Equal(s, string(first.raw), string(again.raw))
	require.Equal(s, 2, again.number("revision"))
}
