package api_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/secret"
)

// sent plants windows 1 to n of users u1 to un with an SMS that went out, and an e-mail that is next.
func (s *shop) sent(n int) {
	s.Helper()
	var windows, notices []string
	for i := 1; i <= n; i++ {
		windows = append(windows, fmt.Sprintf(`(%d,'u%d','expiring','-1d',NULL,1,'2026-11-01','2026-11-01','9999-12-31','2026-11-02','time')`, i, i))
		notices = append(notices, fmt.Sprintf(`(%d,'sms','u%d','expiring',1,'sent','','email',1,'9999-12-31','2090-01-01','2026-11-02','2026-11-02')`, i, i))
	}
	s.db.Exec(s, `INSERT INTO notice_window (id,user_id,kind,remind_at,open_mark,items,opened_at,last_item_at,due_at,closed_at,closed_by) VALUES `+strings.Join(windows, ","))
	s.db.Exec(s, `INSERT INTO notice (window_id,channel,user_id,kind,items,state,reason,next_channels,attempts,try_at,not_after,created_at,settled_at) VALUES `+strings.Join(notices, ","))
}

func (s *shop) noticeState(id string) string {
	s.Helper()
	window, channel, _ := strings.Cut(id, "-")
	var state, reason string
	require.NoError(s, s.db.SQL.QueryRowContext(s.Context(), `SELECT state, reason FROM notice WHERE window_id = ? AND channel = ?`, window, channel).Scan(&state, &reason))
	return strings.TrimSpace(state + " " + reason)
}

func TestReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sent(6)
	at := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	body := `{"receipts":[
		{"notice_id":"1-sms","status":"delivered","at":"` + at + `"},
		{"notice_id":"2-sms","status":"failed","reason":"UNDELIV:0012"},
		{"notice_id":"3-sms","status":"failed","reason":"no such number 8613800000000"},
		{"notice_id":"4-sms","status":"failed"},
		{"notice_id":"99-sms","status":"failed"},
		{"notice_id":"5-email","status":"delivered"}]}`
	for range 2 {
		got := s.sign("/v1/receipts", body).ok()
		require.Equal(t, []any{"recorded", "recorded", "recorded", "recorded", "unknown", "unknown"}, field(got.list("results"), "result"))
		require.Equal(t, "99-sms", got.list("results")[4]["notice_id"])
		for id, want := range map[string]string{
			"1-sms": "delivered", "2-sms": "failed undeliv:0012", "3-sms": "failed other", "4-sms": "failed refused", "6-sms": "sent",
			"2-email": "pending", "3-email": "pending", "4-email": "pending",
		} {
			require.Equal(t, want, s.noticeState(id), id)
		}
		require.EqualValues(t, 9, s.db.Int(t, `SELECT COUNT(*) FROM notice`), "the next channel tells of those that failed, once")
	}
	require.Equal(t, []any{"recorded"}, field(s.sign("/v1/receipts", `{"receipts":[{"notice_id":"2-sms","status":"delivered"}]}`).ok().list("results"), "result"))
	require.Equal(t, "delivered", s.noticeState("2-sms"), "the last word")
	require.Equal(t, 13, s.gauge(t, "lapse_notice_receipts_total"))
}

func TestOptOuts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sent(2)
	out := func(body string) []any {
		return field(s.sign("/v1/optouts", `{"optouts":[`+body+`]}`).ok().list("results"), "result")
	}
	count := func(where string) int64 {
		return s.db.Int(t, `SELECT COUNT(*) FROM user_optout WHERE out_mark = 1 AND source = 'receipt' AND `+where)
	}
	require.Equal(t, []any{"recorded", "recorded", "unknown", "recorded"}, out(`{"notice_id":"1-sms","out":true},
		{"user_id":"u9","channel":"*","kind":"expiring","out":true}, {"notice_id":"7-sms","out":true}, {"notice_id":"2-sms","channel":"email","out":true}`))
	require.EqualValues(t, 1, count(`user_id = 'u1' AND channel = 'sms' AND kind = '*'`))
	require.EqualValues(t, 1, count(`user_id = 'u9' AND channel = '*' AND kind = 'expiring'`))
	require.EqualValues(t, 1, count(`user_id = 'u2' AND channel = 'email' AND kind = '*'`))
	out(`{"user_id":"u1","channel":"sms","out":false,"at":"2026-01-01T00:00:00Z"}`)
	require.EqualValues(t, 1, count(`user_id = 'u1'`), "an earlier decision comes late")
	out(`{"user_id":"u1","channel":"sms","out":false,"at":"` + time.Now().Add(2*time.Second).UTC().Format(time.RFC3339) + `"}`)
	require.LessOrEqual(t, count(`user_id = 'u1'`), int64(1))
	require.Equal(t, 6, s.gauge(t, "lapse_optouts_total"))
}

// TestProvidersAreKnownByTheirSignatureAlone: whatever is wrong with it is refused, and nothing has happened.
func TestProvidersAreKnownByTheirSignatureAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *api.Config, _ *api.Deps) { c.Limits.Providers.PerSecond, c.Limits.Providers.Burst = 0.001, 2 })
	s.sent(1)
	const body = `{"receipts":[{"notice_id":"1-sms","status":"failed"}]}`
	resign := func(key, with string, at time.Time, of string) func(http.Header) {
		return func(h http.Header) { gateway.Sign(key, secret.New(with), h, []byte(of), at) }
	}
	now := time.Now()
	before := s.rows(t)
	for name, change := range map[string]func(http.Header){
		"a token instead": func(h http.Header) {
			h.Del(gateway.HeaderSignature)
			h.Del(gateway.HeaderKey)
			h.Set("Authorization", "Bearer ops")
		},
		"no signature":   func(h http.Header) { h.Del(gateway.HeaderSignature) },
		"no time":        func(h http.Header) { h.Del(gateway.HeaderTimestamp) },
		"another time":   func(h http.Header) { h.Set(gateway.HeaderTimestamp, strconv.FormatInt(now.Unix()+1, 10)) },
		"no number":      func(h http.Header) { h.Set(gateway.HeaderTimestamp, "now") },
		"twice":          func(h http.Header) { h.Add(gateway.HeaderSignature, h.Get(gateway.HeaderSignature)) },
		"unknown key":    resign("nobody", "acme's secret of the test", now, body),
		"another secret": resign("acme", "acme's next one, of the test", now, body),
		"no secret":      resign("acme", "", now, body),
		"another body":   resign("acme", "acme's secret of the test", now, body+" "),
		"long ago":       resign("acme", "acme's secret of the test", now.Add(-6*time.Minute), body),
		"of the future":  resign("acme", "acme's secret of the test", now.Add(6*time.Minute), body),
	} {
		for _, path := range []string{"/v1/receipts", "/v1/optouts"} {
			got := s.sign(path, body, change).refused(401, "unauthorized")
			require.NotContains(t, string(got.raw), "secret of", name)
			require.Equal(t, "Lapse-Signature", got.header.Get("WWW-Authenticate"), name)
		}
	}
	require.Equal(t, before, s.rows(t))
	// The key in use and the next one, each with its own rate, which refused requests have not used up.
	s.sign("/v1/receipts", body).ok()
	s.sign("/v1/receipts", body).ok()
	got := s.sign("/v1/receipts", body).refused(429, "rate_limited")
	require.NotEmpty(t, got.header.Get("Retry-After"))
	s.sign("/v1/receipts", body, resign("acme-2", "acme's next one, of the test", now, body)).ok()

	none := offline(t, func(c *api.Config, _ *api.Deps) { c.Providers = nil })
	status, _, problem := send(t, none, http.MethodPost, "/v1/receipts", body)
	require.Equal(t, 401, status)
	require.Equal(t, "unauthorized", problem["code"])
}

func TestBadReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sent(1)
	future := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	before := s.rows(t)
	receipt := func(fields string) string {
		return `{"receipts":[{"notice_id":"1-sms","status":"delivered"},{` + fields + `}]}`
	}
	optout := func(fields string) string { return `{"optouts":[{` + fields + `}]}` }
	for _, c := range []struct{ path, body, want string }{
		{"/v1/receipts", ``, "body is required"},
		{"/v1/receipts", `[]`, "expected object"},
		{"/v1/receipts", `{"receipts":[]}`, "body.receipts"},
		{"/v1/receipts", `{"receipts":null}`, "receipts must not be null"},
		{"/v1/receipts", `{"receipts":[` + strings.Repeat(`{"notice_id":"1-sms","status":"failed"},`, 1000) + `{"notice_id":"1-sms","status":"failed"}]}`, "body.receipts"},
		{"/v1/receipts", receipt(`"status":"failed"`), "body.receipts[1]"},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"lost"`), `body.receipts[1].status`},
		{"/v1/receipts", receipt(`"notice_id":"1-fax","status":"failed"`), `body.receipts[1].notice_id: must be the id of a notice`},
		{"/v1/receipts", receipt(`"notice_id":"01-sms","status":"failed"`), `got "01-sms"`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","at":"` + future + `"`), `body.receipts[1].at: must not be later`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","at":"2026-01-01T00:00:00"`), `body.receipts[1].at`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","at":"1969-01-01T00:00:00Z"`), `from 1970 on`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","reason":"a\u0000"`), `body.receipts[1].reason`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","reason":"` + strings.Repeat("é", 33) + `"`), `body.receipts[1].reason`},
		{"/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed","user":"u"`), `body.receipts[1].user`},
		{"/v1/receipts?x=1", receipt(`"notice_id":"1-sms","status":"failed"`), `query.x`},
		{"/v1/receipts", "{\"receipts\":[{\"notice_id\":\"\xff\",\"status\":\"failed\"}]}", "UTF-8"},
		{"/v1/optouts", optout(`"channel":"sms","out":true`), "either user_id or notice_id"},
		{"/v1/optouts", optout(`"user_id":"u","notice_id":"1-sms","out":true`), "either user_id or notice_id"},
		{"/v1/optouts", optout(`"user_id":"u","out":true`), "body.optouts[0].channel: must be given with user_id"},
		{"/v1/optouts", optout(`"user_id":"u","channel":"fax","out":true`), "body.optouts[0].channel"},
		{"/v1/optouts", optout(`"user_id":"u","channel":"sms","kind":"at_risk","out":true`), "body.optouts[0].kind"},
		{"/v1/optouts", optout(`"user_id":"u","channel":"sms"`), "out"},
		{"/v1/optouts", optout(`"user_id":"u","channel":"sms","out":"yes"`), "body.optouts[0].out"},
		{"/v1/optouts", optout(`"user_id":"a\u0000","channel":"sms","out":true`), "body.optouts[0].user_id"},
		{"/v1/optouts", optout(`"user_id":"` + strings.Repeat("u", 129) + `","channel":"sms","out":true`), "body.optouts[0].user_id"},
		{"/v1/optouts", optout(`"notice_id":"sms","out":true`), "body.optouts[0].notice_id"},
	} {
		got := s.sign(c.path, c.body).refused(400, "bad_request")
		require.Contains(t, unquoted(string(got.raw)), c.want, "%.200s", c.body)
		require.Less(t, len(got.raw), 8<<10)
	}
	require.Equal(t, before, s.rows(t), "nothing was recorded, also of those that could be read")
	s.sign("/v1/receipts", receipt(`"notice_id":"1-sms","status":"failed"`)+strings.Repeat(" ", 1<<20)).refused(413, "too_large")
}

// TestAThousandReceipts: a whole batch fits into a request's time.
func TestAThousandReceipts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.sent(1000)
	parts := make([]string, 1000)
	for i := range parts {
		parts[i] = fmt.Sprintf(`{"notice_id":"%d-sms","status":"failed","reason":"undeliv"}`, i+1)
	}
	got := s.sign("/v1/receipts", `{"receipts":[`+strings.Join(parts, ",")+`]}`).ok()
	require.Len(t, got.list("results"), 1000)
	require.EqualValues(t, 1000, s.db.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'failed'`))
	require.EqualValues(t, 1000, s.db.Int(t, `SELECT COUNT(*) FROM notice WHERE state = 'pending' AND channel = 'email'`))
}

func TestKeysOfProvidersInTheConfiguration(t *testing.T) {
	t.Parallel()
	c := api.DefaultConfig()
	c.Providers = map[string]secret.String{"acme": secret.New("sixteen bytes or more")}
	require.NoError(t, c.Validate())
	c.Providers = map[string]secret.String{"acme": secret.New("hunter2"), "Acme!": secret.New("sixteen bytes or more")}
	c.Locale, c.Limits.Providers.Concurrent = "not a tag", 0
	err := c.Validate()
	for _, want := range []string{
		"providers.acme: the secret must have at least 16 bytes, has 7", `got "Acme!"`, `locale: must be a BCP 47 tag, such as zh-CN, got "not a tag"`,
		"limits.providers.concurrent: ",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hunter2")
}
