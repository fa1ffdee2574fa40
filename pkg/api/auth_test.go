package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/api"
)

var placeholder = regexp.MustCompile(`\{[a-z_]+\}`)

// send asks an API without a listener.
func send(t testing.TB, a *api.API, method, path, body string, headers ...string) (int, http.Header, object) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.Handler().ServeHTTP(w, r)
	var out object
	if strings.HasSuffix(w.Header().Get("Content-Type"), "json") {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &out), w.Body.String())
	}
	return w.Code, w.Header(), out
}

// TestEveryRouteAsksForItsScope: every route with every scope. What a token may not do is refused before anything else
// is looked at: the API of this test has no store.
func TestEveryRouteAsksForItsScope(t *testing.T) {
	t.Parallel()
	a := offline(t)
	for _, o := range operations(t, a) {
		path := placeholder.ReplaceAllString(o.path, "0") // an id that none has
		if o.signed() {
			for _, scope := range api.Scopes() {
				status, h, body := send(t, a, o.method, path, `{`, "Authorization", "Bearer "+string(scope))
				require.Equal(t, http.StatusUnauthorized, status, "%s with %s", o.ID, scope)
				require.Equal(t, "unauthorized", body["code"])
				require.Equal(t, "Lapse-Signature", h.Get("WWW-Authenticate"))
			}
			continue
		}
		for _, scope := range api.Scopes() {
			if slices.Contains(o.scopes(t), string(scope)) {
				continue
			}
			status, _, body := send(t, a, o.method, path, `{`, "Authorization", "Bearer "+string(scope))
			require.Equal(t, http.StatusForbidden, status, "%s with %s", o.ID, scope)
			require.Equal(t, "forbidden", body["code"])
		}
		for name, header := range map[string][]string{
			"none":         nil,
			"empty":        {""},
			"unknown":      {"Bearer nobody"},
			"basic":        {"Basic b3JkZXI6eA=="},
			"no secret":    {"Bearer "},
			"hash":         {"Bearer " + api.HashToken("ops")},
			"twice":        {"Bearer ops", "Bearer ops"},
			"space behind": {"Bearer ops "},
			"long":         {"Bearer " + strings.Repeat("x", 10_000)},
		} {
			var headers []string
			for _, h := range header {
				headers = append(headers, "Authorization", h)
			}
			status, h, body := send(t, a, o.method, path, `{`, headers...)
			require.Equal(t, http.StatusUnauthorized, status, "%s: %s", o.ID, name)
			require.Equal(t, "unauthorized", body["code"])
			require.Contains(t, h.Get("WWW-Authenticate"), "Bearer")
		}
	}
}

// TestEveryScopeOpensItsRoutes is the other half: with the scope the request is read.
func TestEveryScopeOpensItsRoutes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, o := range operations(t, offline(t)) {
		if o.signed() || o.ID == "forwardCoupon" { // of a sandbox alone
			continue
		}
		for _, scope := range o.scopes(t) {
			body := ""
			if len(o.Body) > 0 {
				body = `{}`
			}
			got := s.ask(api.Scope(scope), o.method, placeholder.ReplaceAllString(o.path, "7"), body)
			require.NotContains(t, []int{401, 403, 405, 429, 500, 503}, got.status, "%s with %s: %s", o.ID, scope, got.raw)
		}
	}
}

func TestPathsAndMethods(t *testing.T) {
	t.Parallel()
	a := offline(t)
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/v1", 404, ""},
		{"GET", "/v1/", 404, ""},
		{"GET", "/v2/templates", 404, ""},
		{"GET", "/v1/templates/", 404, ""},
		{"GET", "//v1/templates", 404, ""},
		{"GET", "/v1/../v1/templates", 404, ""},
		{"GET", "/v1/templates/7/", 404, ""},
		{"GET", "/docs", 404, ""},
		{"GET", "/schemas/Template.json", 404, ""},
		{"DELETE", "/v1/templates/7", 405, "GET"},
		{"HEAD", "/v1/templates", 405, "GET, POST"},
		{"BREW", "/v1/grants", 405, "POST"},
		{"POST", "/openapi.yaml", 405, "GET"},
	} {
		status, h, body := send(t, a, c.method, c.path, "", "Authorization", "Bearer ops")
		require.Equal(t, c.status, status, "%s %s", c.method, c.path)
		require.Equal(t, "application/problem+json", h.Get("Content-Type"))
		require.Equal(t, "bad_request", body["code"], "%s %s", c.method, c.path)
		require.Equal(t, c.allow, h.Get("Allow"), "%s %s", c.method, c.path)
	}
}

// TestTheLogHasNoIDs: route patterns stand for paths, and what people send stays out.
func TestTheLogHasNoIDs(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	a, err := api.New(siteConfig(), api.Deps{}, zap.New(core), prometheus.NewRegistry())
	require.NoError(t, err)
	for _, path := range []string{
		"/v1/coupons/s3cret", "/v1/users/s3cret/coupons?limit=s3cret", "/s3cret", "/v1/orders/s3cret/lock", "/v1/coupons/s3cret?s3cret=1",
	} {
		status, h, _ := send(t, a, http.MethodGet, path, "", "Authorization", "Bearer read", "X-Request-Id", "from-the-client", "X-Actor", "s3cret")
		require.GreaterOrEqual(t, status, 400)
		require.Equal(t, "from-the-client", h.Get("X-Request-Id"))
	}
	require.Equal(t, 5, logs.Len())
	for _, entry := range logs.All() {
		text, err := json.Marshal(entry.ContextMap())
		require.NoError(t, err)
		require.NotContains(t, entry.Message+string(text), "s3cret")
		require.Equal(t, "from-the-client", entry.ContextMap()["request_id"])
	}
	require.Equal(t, "/v1/coupons/{coupon_id}", logs.All()[0].ContextMap()["route"])
	require.Equal(t, "read-shop", logs.All()[0].ContextMap()["token"])
	require.Equal(t, "none", logs.All()[2].ContextMap()["route"])
	require.Equal(t, "none", logs.All()[2].ContextMap()["method"], "and no method that a client made up")

	_, h, _ := send(t, a, http.MethodGet, "/", "", "X-Request-Id", "no\ngood")
	require.Regexp(t, `^[a-z0-9]{20}$`, h.Get("X-Request-Id"))
}

// TestAFaultOfOurs: a handler that panics, here for want of a store, harms its request alone; the log says where.
func TestAFaultOfOurs(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.ErrorLevel)
	a, err := api.New(siteConfig(), api.Deps{}, zap.New(core), prometheus.NewRegistry())
	require.NoError(t, err)
	for range 2 {
		status, h, body := send(t, a, http.MethodGet, "/v1/templates", "", "Authorization", "Bearer ops", "X-Request-Id", "from-the-client")
		require.Equal(t, http.StatusInternalServerError, status)
		require.Equal(t, "application/problem+json", h.Get("Content-Type"))
		require.Equal(t, "internal", body["code"])
	}
	require.Equal(t, 2, logs.Len())
	require.Equal(t, "from-the-client", logs.All()[0].ContextMap()["request_id"])
	require.Contains(t, logs.All()[0].ContextMap()["stack"], "listTemplates")
}

func TestWhoActsIsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	got := s.with("X-Actor", "Zoë").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template())
	require.Equal(t, http.StatusCreated, got.status, "%s", got.raw)
	require.Equal(t, "ops-shop/Zoë", got.body["actor"])
	require.Equal(t, "ops-shop", s.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).body["actor"])
	for _, who := range []string{"\xff", strings.Repeat("x", 120), "a\u0085b", "a\ufffdb"} {
		s.with("X-Actor", who).ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).refused(400, "bad_request")
	}
}

func TestTokensOfTheConfiguration(t *testing.T) {
	t.Parallel()
	hash := api.HashToken
	c := api.DefaultConfig()
	require.NoError(t, c.Validate())
	c.Tokens = []api.Token{
		{Name: "shop", Hash: hash("1"), Scopes: []string{"order", "read"}},
		{Name: "shop", Hash: hash("2"), Scopes: []string{"order", "read"}}, // while it changes its secret
		{Name: "crm", Hash: strings.ToUpper(hash("3")), Scopes: []string{"issue"}, Issuer: "crm"},
	}
	require.NoError(t, c.Validate())
	c.Tokens = append(c.Tokens,
		api.Token{Name: "Shop!", Hash: "hunter2", Scopes: []string{"root"}},
		api.Token{Name: "crm", Hash: hash("1"), Issuer: "a\x00b"},
	)
	c.Address, c.MaxBody, c.Page.Default, c.Gather.Waiting, c.Limits.Read.Concurrent = "nowhere", 1, 0, 1, 0
	err := c.Validate()
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2", "it may be the secret itself")
	for _, want := range []string{
		"address: ", "max_body: ", "page.default: ", "gather.waiting: ", "limits.read.concurrent: ",
		`tokens[3].name: must be 1 to 40 of a-z, 0-9, dot, dash and underscore, got "Shop!"`, "tokens[3].hash: ", `tokens[3].scopes: must be some of [issue order read ops], got "root"`,
		"tokens[4].hash: is that of tokens[0] too", "tokens[4].scopes: ", "tokens[4].issuer: ", "tokens[4]: has the name of tokens[2], but not its scopes and issuer",
	} {
		require.ErrorContains(t, err, want)
	}
}
