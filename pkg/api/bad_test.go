package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// TestBadRequestsNameTheFault: each is refused whole, and says where and what.
func TestBadRequestsNameTheFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := fmt.Sprint(s.template())
	grant := func(more string) string {
		return `{"grants":[{"grant_key":"k","template_id":"` + id + `","user_id":"u"` + more + `}]}`
	}
	change := func(field, value string) string {
		fields := map[string]string{"name": `"t"`, "rule": `{"kind":"never"}`, "value": "5", "currency": `"CNY"`, "reason": `"r"`}
		fields[field] = value
		var parts []string
		for name, value := range fields {
			parts = append(parts, `"`+name+`":`+value)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	before := s.rows(t)
	for _, c := range []struct {
		name, path, body string
		want             []string // in the problem's faults: locations and values
	}{
		{"no body", "/v1/grants", "", []string{"body is required"}},
		{"no JSON", "/v1/grants", `{"grants":[`, []string{"body", "must be JSON"}},
		{"two documents", "/v1/grants", grant("") + "{}", []string{"body", "must be JSON"}},
		{"no object", "/v1/grants", `[]`, []string{"body", "expected object"}},
		{"null", "/v1/grants", `null`, []string{"body"}},
		{"unknown field", "/v1/grants", grant(`,"usr":"hunter2"`), []string{"body.grants[0].usr", "unexpected property"}},
		{"unknown field of other case", "/v1/grants", grant(`,"USER_ID":"v"`), []string{"USER_ID"}},
		{"name twice", "/v1/grants", grant(`,"user_id":"v"`), []string{`"user_id" comes twice`}},
		{"name twice, escaped", "/v1/grants", grant(`,"user\u005fid":"v"`), []string{`"user_id" comes twice`}},
		{"missing field", "/v1/grants", `{"grants":[{"grant_key":"k"}]}`, []string{"template_id", "user_id"}},
		{"wrong type", "/v1/grants", grant(`,"batch_id":7`), []string{"body.grants[0].batch_id", "7"}},
		{"id as number", "/v1/grants", strings.Replace(grant(""), `"`+id+`"`, "7", 1), []string{"body.grants[0].template_id"}},
		{"id too great", "/v1/grants", strings.Replace(grant(""), `"`+id+`"`, `"18446744073709551616"`, 1), []string{"body.grants[0].template_id", "18446744073709551616"}},
		{"id of zero", "/v1/grants", strings.Replace(grant(""), `"`+id+`"`, `"0"`, 1), []string{"body.grants[0].template_id"}},
		{"empty key", "/v1/grants", strings.Replace(grant(""), `"k"`, `""`, 1), []string{"body.grants[0].grant_key"}},
		{"long user", "/v1/grants", strings.Replace(grant(""), `"u"`, `"`+strings.Repeat("u", 129)+`"`, 1), []string{"body.grants[0].user_id"}},
		{"long user in bytes", "/v1/grants", strings.Replace(grant(""), `"u"`, `"`+strings.Repeat("é", 65)+`"`, 1), []string{"body.grants[0].user_id", "128 bytes"}},
		{"NUL", "/v1/grants", strings.Replace(grant(""), `"u"`, `"a\u0000b"`, 1), []string{"body.grants[0].user_id", "control"}},
		{"lone surrogate", "/v1/grants", strings.Replace(grant(""), `"u"`, `"\ud800"`, 1), []string{"body.grants[0].user_id"}},
		{"no UTF-8", "/v1/grants", strings.Replace(grant(""), `"u"`, "\"\xff\"", 1), []string{"body", "UTF-8"}},
		{"no zone", "/v1/grants", grant(`,"expires_at":"2030-01-01T00:00:00"`), []string{"2030-01-01T00:00:00"}},
		{"no instant", "/v1/grants", grant(`,"expires_at":1893456000`), []string{"expires_at"}},
		{"never begins", "/v1/grants", grant(`,"valid_from":null`), []string{"body", "valid_from must not be null"}},
		{"null for nothing", "/v1/grants", grant(`,"batch_id":null`), []string{"body", "batch_id must not be null"}},
		{"null in an array", "/v1/grants", `{"grants":[null]}`, []string{"body.grants[0]"}},
		{"beyond time", "/v1/grants", grant(`,"expires_at":"9999-12-31T00:00:00Z"`), []string{"9999-12-31T00:00:00Z"}},
		{"more values than anybody needs", "/v1/grants", `{"grants":[` + strings.Repeat("{},", 300_000) + `{}]}`, []string{"body", "100000 values"}},
		{"deep", "/v1/grants", strings.Repeat(`{"grants":[`, 20_000), []string{"body"}},

		{"overflow", "/v1/templates", change("value", "9223372036854775808"), []string{"value"}},
		{"more than can be added up", "/v1/templates", change("value", "1000000000001"), []string{"body.value", "1000000000001"}},
		{"huge number", "/v1/templates", change("value", "1e400"), []string{"body"}},
		{"fraction", "/v1/templates", change("value", "1.5"), []string{"value", "1.5"}},
		{"negative", "/v1/templates", change("value", "-1"), []string{"value", "-1"}},
		{"currency", "/v1/templates", change("currency", `"yuan"`), []string{"currency", "yuan"}},
		{"rule", "/v1/templates", change("rule", `{"kind":"sometimes"}`), []string{"rule.kind", "sometimes"}},
		{"rule's zone", "/v1/templates", change("rule", `{"kind":"days_after","days":1,"zone":"Mars"}`), []string{"Mars"}},
		{"name of control characters", "/v1/templates", change("name", `"a\u0007"`), []string{"name"}},
		{"window", "/v1/templates", change("late_pay_window", `"soon"`), []string{"late_pay_window", "soon"}},
		{"offer", "/v1/templates", change("offer", `{"kind":"percent","basis_points":10001}`), []string{"basis_points", "10001"}},
		{"revision of null", "/v1/templates/" + id + "/revisions", `{"revision":1,"value":null,"reason":"r"}`, []string{"body", "value must not be null"}},
		{"revision of zero", "/v1/templates/" + id + "/revisions", `{"revision":0,"reason":"r"}`, []string{"body.revision"}},
		{"long reason", "/v1/templates/" + id + "/stop", `{"reason":"` + strings.Repeat("é", 200) + `"}`, []string{"body.reason"}},
		{"id of the path", "/v1/templates/07/stop", `{"reason":"r"}`, []string{"path.template_id", "07"}},
		{"extend's reason", "/v1/coupons/1/extend", `{"expires_at":null,"reason":"a\u001bb"}`, []string{"body.reason", "control"}},
		{"void's reason", "/v1/coupons/1/void", `{"reason":"a\u0000b"}`, []string{"body.reason", "control"}},
		{"unknown parameter", "/v1/grants?dry_run=true", grant(""), []string{"query.dry_run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := *s
			s.TB = t
			var body any
			if c.body != "" {
				body = c.body
			}
			scope := api.ScopeOps
			if strings.HasPrefix(c.path, "/v1/grants") {
				scope = api.ScopeIssue
			}
			got := s.ask(scope, http.MethodPost, c.path, body).refused(400, "bad_request")
			for _, want := range c.want {
				require.Contains(t, unquoted(string(got.raw)), want)
			}
			require.Less(t, len(got.raw), 8<<10, "it does not give back all that it got")
		})
	}
	require.Equal(t, before, s.rows(t), "nothing was written")
}

func TestBadQueries(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := fmt.Sprint(s.template())
	for query, want := range map[string]string{
		"/v1/templates?limit=0":                                        "query.limit",
		"/v1/templates?limit=201":                                      "query.limit",
		"/v1/templates?limit=many":                                     "query.limit",
		"/v1/templates?limit=1&limit=2":                                "must be given once",
		"/v1/templates?limit=9223372036854775808":                      "query.limit",
		"/v1/templates?page_token=x":                                   "query.page_token",
		"/v1/templates?lmit=1":                                         "query.lmit",
		"/v1/templates?limit=%zz":                                      "query",
		"/v1/templates?page_token=%ff":                                 "UTF-8",
		"/v1/templates/" + id + "/stats?from=2026-02-30":               "query.from",
		"/v1/templates/" + id + "/stats?from=2026-02-02T00:00:00Z":     "query.from",
		"/v1/templates/" + id + "/stats?from=2026-02-02&to=2026-02-01": "query.from",
		"/v1/templates/" + id + "/stats?from=2020-01-01&to=2026-02-01": "365 days",
		"/v1/templates/%ff":                                            "UTF-8",
		"/v1/templates/x":                                              "path.template_id",
	} {
		require.Contains(t, unquoted(string(s.get(api.ScopeOps, query).refused(400, "bad_request").raw)), want, query)
	}
	s.get(api.ScopeOps, "/v1/templates/4711").refused(404, "not_found")
	s.get(api.ScopeOps, "/v1/templates/4711/stats").refused(404, "not_found")
}

// TestTextsAreTexts: what would be SQL, markup or a path elsewhere is stored and given back as it came.
func TestTextsAreTexts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i, text := range []string{
		`'; DROP TABLE coupon; --`, `" OR 1=1 --`, "`", `\' OR ''='`, `<script>alert(1)</script>`, `../../etc/passwd`, `%27%00`, `{{.}}`, `漢字 🎟️`, `$(reboot)`,
	} {
		got := s.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template("name", text, "reason", text))
		require.Equal(t, 201, got.status, "%s", got.raw)
		require.Equal(t, text, got.body["name"])
		require.Equal(t, text, got.body["reason"])
		id := got.body["template_id"].(string)
		g := object{"grant_key": text, "template_id": id, "user_id": text, "batch_id": text, "issuer": fmt.Sprint(i)}
		require.Equal(t, "granted", s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", object{"grants": []object{g}}).results()[0]["result"])
		c := s.get(api.ScopeRead, "/v1/grants/"+escape(text)+"?issuer="+fmt.Sprint(i)).ok().body
		require.Equal(t, text, c["user_id"])
		require.Equal(t, text, c["batch_id"])
	}
	require.EqualValues(t, 10, s.db.Int(t, "SELECT COUNT(*) FROM coupon"))
}

// TestLargeBodies: 10 MB are refused, announced or not; also a client that sends all before it reads anything hears of it.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	body := `{"grants":[` + strings.Repeat(" ", 10<<20)
	for _, announced := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body), fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(conn, "POST /v1/grants HTTP/1.1\r\nHost: lapse\r\nAuthorization: Bearer issue\r\nContent-Type: application/json\r\n"+announced)
		require.NoError(t, err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		raw, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
		require.Contains(t, string(raw), `"too_large"`)
	}
	s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/o/lock", `{"coupon_ids":["1"]`+strings.Repeat(" ", 64<<10)+"}").refused(413, "too_large")
	s.with("Content-Type", "application/x-www-form-urlencoded").ask(api.ScopeIssue, http.MethodPost, "/v1/grants", `a=b`).refused(415, "bad_request")
	id := fmt.Sprint(s.template())
	padded := fmt.Sprintf(`{"grants":[{"grant_key":"k","template_id":"%s","user_id":"u"}]%s}`, id, strings.Repeat(" ", 1<<20-100))
	require.Equal(t, "granted", s.with("Content-Type", "application/json; charset=utf-8").
		ask(api.ScopeIssue, http.MethodPost, "/v1/grants", padded).results()[0]["result"], "nearly too large is not")
	require.Equal(t, "repeated", s.with("Content-Type", "Application/JSON; Charset=UTF-8").
		ask(api.ScopeIssue, http.MethodPost, "/v1/grants", padded).results()[0]["result"], "a media type has no case")
}
