package conform

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

func keys(s *site) {
	tpl, user, order := s.template(), s.name("user"), s.name("order")
	id := s.grant(tpl, user)
	body, k := object{"user_id": user, "coupon_ids": []string{id}}, s.name("idem")
	lock := func(key string, body any) reply {
		s.Helper()
		return s.post(api.ScopeOrder, "/v1/orders/"+order+"/lock", body, "Idempotency-Key", key)
	}
	first := lock(k, body).ok()
	require.Empty(s, first.header.Get("Idempotency-Replayed"))
	s.verb("release", order, []string{id}).ok()
	again := lock(k, body).ok()
	require.Equal(s, string(first.raw), string(again.raw), "byte for byte, whatever has become of it")
	require.Equal(s, "true", again.header.Get("Idempotency-Replayed"))
	require.Equal(s, "unused", s.coupon(id).text("state"))
	lock(k, object{"user_id": user, "coupon_ids": []string{id}, "lock_for": "1m"}).refused(http.StatusUnprocessableEntity, "idempotency_key_reused")
	s.post(api.ScopeOrder, "/v1/orders/"+s.name("order")+"/lock", body, "Idempotency-Key", k).refused(http.StatusUnprocessableEntity, "idempotency_key_reused")
	s.post(api.ScopeIssue, "/v1/grants", object{"grants": []object{{"grant_key": s.name("key"), "template_id": tpl, "user_id": user}}},
		"Idempotency-Key", k).ok() // another caller's
	g := object{"grants": []object{{"grant_key": s.name("key"), "template_id": tpl, "user_id": user}}}
	k2 := s.name("idem")
	granted := s.post(api.ScopeIssue, "/v1/grants", g, "Idempotency-Key", k2).ok()
	require.Equal(s, "granted", s.post(api.ScopeIssue, "/v1/grants", g, "Idempotency-Key", k2).ok().text("results", 0, "result"))
	require.Equal(s, "repeated", s.post(api.ScopeIssue, "/v1/grants", g).ok().text("results", 0, "result"))
	require.Equal(s, "granted", granted.text("results", 0, "result"))
	for _, bad := range []string{"a b", strings.Repeat("x", 129), "ü"} {
		lock(bad, body).refused(http.StatusBadRequest, "bad_request", "Idempotency-Key")
	}
}

func keysOfRefusals(s *site) {
	user, order, k := s.name("user"), s.name("order"), s.name("idem")
	id := s.grant(s.template(), user)
	holder := s.name("order")
	s.verb("lock", holder, []string{id}, "user_id", user).ok()
	body := object{"user_id": user, "coupon_ids": []string{id}}
	path := "/v1/orders/" + order + "/lock"
	first := s.post(api.ScopeOrder, path, body, "Idempotency-Key", k).refused(http.StatusConflict, "locked_by_other_order")
	s.verb("release", holder, []string{id}).ok()
	again := s.post(api.ScopeOrder, path, body, "Idempotency-Key", k).refused(http.StatusConflict, "locked_by_other_order")
	require.Equal(s, string(first.raw), string(again.raw))
	s.post(api.ScopeOrder, path, body, "Idempotency-Key", s.name("idem")).ok()
	// What could not be read is not remembered.
	k = s.name("idem")
	s.post(api.ScopeOrder, path, object{"user_id": user}, "Idempotency-Key", k).refused(http.StatusBadRequest, "bad_request")
	s.post(api.ScopeOrder, path, body, "Idempotency-Key", k).ok()
}

// operations are those of the document that the server describes itself by.
func (s *site) operations() map[string]map[string]struct {
	Text     string                `json:"description"`
	Security []map[string][]string `json:"security"`
} {
	s.Helper()
	r := s.ask("", http.MethodGet, "/openapi.json", nil).ok()
	var doc struct {
		Paths map[string]map[string]struct {
			Text     string                `json:"description"`
			Security []map[string][]string `json:"security"`
		} `json:"paths"`
	}
	require.NoError(s, json.Unmarshal(r.raw, &doc))
	require.NotEmpty(s, doc.Paths)
	return doc.Paths
}

// tokens: every operation wants a token, and one of the scopes that it says.
func tokens(s *site) {
	fill := strings.NewReplacer("{template_id}", "1", "{coupon_id}", "1", "{grant_key}", "k", "{user_id}", "u", "{order_id}", "o", "{notice_id}", "1")
	seen := 0
	for path, methods := range s.operations() {
		for method, op := range methods {
			if _, signed := op.Security[0]["signature"]; signed {
				continue
			}
			seen++
			method, at := strings.ToUpper(method), fill.Replace(path)
			require.NotContains(s, at, "{", path)
			var body any
			if method != http.MethodGet {
				body = object{}
			}
			r := s.ask("", method, at, body).refused(http.StatusUnauthorized, "unauthorized")
			require.Contains(s, r.header.Get("WWW-Authenticate"), "Bearer")
			_, says, _ := strings.Cut(op.Text, "Scope: ")
			for _, scope := range api.Scopes() {
				r := s.ask(scope, method, at, body)
				allowed := strings.Contains(" "+strings.TrimSuffix(says, ".")+" ", " "+string(scope)+" ")
				require.Equal(s, !allowed, r.status == http.StatusForbidden, "%s %s by %s: %s", method, path, scope, r.raw)
				require.NotEqual(s, http.StatusUnauthorized, r.status)
				require.Less(s, r.status, http.StatusInternalServerError, "%s %s by %s: %s", method, path, scope, r.raw)
			}
		}
	}
	require.Greater(s, seen, 25)
	for _, header := range []string{"Bearer", "Bearer unknown", "Basic dTpw", "unknown"} {
		s.ask("", http.MethodGet, "/v1/coupons/1", nil, "Authorization", header).refused(http.StatusUnauthorized, "unauthorized")
	}
}

func noRequest(s *site) {
	s.get(api.ScopeRead, "/v1/nothing").refused(http.StatusNotFound, "bad_request")
	s.get(api.ScopeRead, "/v1/coupons/").refused(http.StatusNotFound, "bad_request")
	r := s.ask(api.ScopeOps, http.MethodDelete, "/v1/coupons/1", nil).refused(http.StatusMethodNotAllowed, "bad_request", "GET")
	require.Equal(s, "GET", r.header.Get("Allow"))
	s.get(api.ScopeRead, "/v1/users/u/coupons?colour=red").refused(http.StatusBadRequest, "bad_request", "query.colour")
	s.get(api.ScopeRead, "/v1/users/%ff/coupons").refused(http.StatusBadRequest, "bad_request", "path")
	s.post(api.ScopeIssue, "/v1/grants", "a=b", "Content-Type", "application/x-www-form-urlencoded").refused(http.StatusUnsupportedMediaType, "bad_request")
	for _, body := range []string{
		``, `{`, `[]`, `null`, `{"grants":[]`, `{"grants":{}}`, `{"grants":[null]}`, `{"grants":[]} {}`, `{"grants":[],"grants":[]}`, `{"Grants":[]}`,
	} {
		s.post(api.ScopeIssue, "/v1/grants", body).refused(http.StatusBadRequest, "bad_request")
	}
	s.post(api.ScopeOrder, "/v1/orders/o/lock", `{"user_id":"`+strings.Repeat("x", 70<<10)+`"}`).refused(http.StatusRequestEntityTooLarge, "too_large")
	s.post(api.ScopeOps, "/v1/templates", terms(), "X-Actor", strings.Repeat("x", 129)).refused(http.StatusBadRequest, "bad_request", "X-Actor")
}

// problems: what every answer says of itself.
func problems(s *site) {
	r := s.ask(api.ScopeRead, http.MethodGet, "/v1/coupons/999999999", nil, "X-Request-Id", "mine-1").refused(http.StatusNotFound, "not_found")
	require.Equal(s, "mine-1", r.header.Get("X-Request-Id"))
	require.NotEmpty(s, r.text("detail"))
	require.NotEmpty(s, s.get(api.ScopeRead, "/v1/users/u/coupons").ok().header.Get("X-Request-Id"))
	doc := s.ask("", http.MethodGet, "/openapi.yaml", nil).ok()
	require.Contains(s, string(doc.raw), "openapi: 3.1")
	s.ask("", http.MethodPost, "/v1/receipts", object{"receipts": []object{{"notice_id": "1-sms", "status": "delivered"}}}).refused(http.StatusUnauthorized, "unauthorized")
}

// notices: the inbox of somebody who was told nothing.
func notices(s *site) {
	path := "/v1/users/" + s.name("user") + "/notices"
	r := s.get(api.ScopeRead, path).ok()
	require.Empty(s, r.list("notices"))
	require.Empty(s, r.text("next_page_token"))
}
