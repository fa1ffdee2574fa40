package api_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// TestATemplatesLife: made, revised, stopped, resumed, listed; what is not given stays as it is.
func TestATemplatesLife(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	post := func(path string, body any) reply { return s.ask(api.ScopeOps, http.MethodPost, path, body) }
	made := post("/v1/templates", template("precision", "relaxed", "late_pay_policy", "strict", "late_pay_window", "1h", "quota_back", "total",
		"offer", object{"kind": "percent", "basis_points": 1500, "cap": 2000, "min_spend": 100, "scopes": []string{"books"}}, "quota", 3, "per_user", 2,
		"rule", object{"kind": "days_after", "days": 7, "zone": "Asia/Shanghai"}))
	require.Equal(t, 201, made.status, "%s", made.raw)
	id := made.body["template_id"].(string)
	path := "/v1/templates/" + id
	want := object{
		"template_id": id, "revision": 1.0, "name": "t", "rule": object{"kind": "days_after", "days": 7.0, "zone": "Asia/Shanghai"},
		"value": 500.0, "currency": "CNY", "precision": "relaxed", "late_pay_policy": "strict", "late_pay_window": "1h0m0s", "quota_back": "total",
		"offer": object{"kind": "percent", "basis_points": 1500.0, "cap": 2000.0, "min_spend": 100.0, "scopes": []any{"books"}},
		"quota": 3.0, "per_user": 2.0, "issued": 0.0, "state": "issuing", "created_at": made.body["created_at"], "actor": "ops-shop", "reason": "r",
		"reminders": "",
	}
	require.Equal(t, want, made.body)
	require.Equal(t, want, s.get(api.ScopeRead, path).ok().body)

	revised := post(path+"/revisions", object{"revision": 1, "quota": 5, "reason": "more"})
	require.Equal(t, 201, revised.status, "%s", revised.raw)
	want["revision"], want["quota"], want["reason"], want["created_at"] = 2.0, 5.0, "more", revised.body["created_at"]
	require.Equal(t, want, revised.body)
	post(path+"/revisions", object{"revision": 1, "quota": 7, "reason": "late"}).refused(409, "conflict")
	post("/v1/templates/4711/revisions", object{"revision": 1, "quota": 7, "reason": "r"}).refused(404, "not_found")

	for _, c := range []struct{ verb, state string }{{"stop", "stopped"}, {"stop", "stopped"}, {"resume", "issuing"}} {
		require.Equal(t, c.state, post(path+"/"+c.verb, object{"reason": "r"}).ok().body["state"])
	}
	plain := post("/v1/templates", template()).body
	require.Equal(t, "exact", plain["precision"])
	require.Equal(t, "30m0s", plain["late_pay_window"])

	for range 3 {
		post("/v1/templates", template())
	}
	var seen []string
	for token, n := "", 0; n == 0 || token != ""; n++ {
		page := s.get(api.ScopeOps, "/v1/templates?limit=2&page_token="+token).ok()
		for _, o := range page.body["templates"].([]any) {
			seen = append(seen, o.(object)["template_id"].(string))
		}
		token = page.body["next_page_token"].(string)
		require.Less(t, n, 5)
	}
	require.Len(t, seen, 5)
	require.IsIncreasing(t, seen)
}

// TestRemindersOfATemplate: which are picked; what is no list of offsets is refused by name and value.
func TestRemindersOfATemplate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	made := s.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template("reminders", "-1d@10:00,-30m"))
	require.Equal(t, 201, made.status, "%s", made.raw)
	require.Equal(t, "-1d@10:00,-30m", made.body["reminders"])
	path := "/v1/templates/" + made.body["template_id"].(string) + "/revisions"
	for bad, want := range map[string]string{
		"3d":           `reminders: must be like -3d, -30m or -1d@10:00, got "3d"`,
		"-3d,none":     `reminders: must be like -3d, -30m or -1d@10:00, got "none"`,
		"-3d, -1d":     `reminders: must be like -3d, -30m or -1d@10:00, got " -1d"`,
		"-30m@10:00":   `reminders: a time of day goes with whole days, as in -1d@10:00, got "-30m@10:00"`,
		"-24h,-1d":     `reminders: names the same instant twice, got "-1d"`,
		"-91d":         `reminders: must be at most -90d, got "-91d"`,
		"-1d@24:00":    `reminders: must be like -3d, -30m or -1d@10:00, got "-1d@24:00"`,
		"-3d,-1d,-30m": "",
		"none":         "",
		"":             "",
	} {
		made := s.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template("reminders", bad))
		if want == "" {
			require.Equal(t, 201, made.status, "%s", made.raw)
			require.Equal(t, bad, made.body["reminders"])
			continue
		}
		revised := s.ask(api.ScopeOps, http.MethodPost, path, object{"revision": 1, "reminders": bad, "reason": "r"})
		for _, r := range []reply{revised, made} {
			r.refused(400, "bad_request")
			require.Contains(t, r.body["detail"], want)
		}
	}
}

func TestStatsOfATemplate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.template()
	path := fmt.Sprintf("/v1/templates/%d/stats", id)
	require.Equal(t, object{"template_id": fmt.Sprint(id), "days": []any{}}, s.get(api.ScopeRead, path).ok().body)
	s.db.Exec(t, `INSERT INTO template_stats (template_id, day, granted, granted_value, used, used_value) VALUES (?, '2026-01-31', 3, 1500, 1, 500), (?, '2026-02-01', 1, 500, 0, 0)`, id, id)
	days := s.get(api.ScopeOps, path+"?from=2026-01-31&to=2026-01-31").ok().body["days"].([]any)
	require.Len(t, days, 1)
	require.Equal(t, "2026-01-31", days[0].(object)["day"])
	require.InDelta(t, 1500, days[0].(object)["granted_value"], 0)
	require.Len(t, s.get(api.ScopeOps, path+"?to=2026-02-02").ok().body["days"], 2)
}
