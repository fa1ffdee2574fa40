package api_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/notice/gateway"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/secret"
)

// providers are those that sign.
func providers() gateway.Keys {
	return gateway.Keys{"acme": secret.New("acme's secret of the test"), "acme-2": secret.New("acme's next one, of the test")}
}

func noticeTexts(t testing.TB) api.Texts {
	t.Helper()
	texts, err := text.New("en")
	require.NoError(t, err)
	return texts
}

// sign sends a body as a provider, now or as change says.
func (s *shop) sign(path, body string, change ...func(h http.Header)) reply {
	s.Helper()
	h := http.Header{}
	gateway.Sign("acme", providers()["acme"], h, []byte(body), time.Now())
	for _, f := range change {
		f(h)
	}
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+path, strings.NewReader(body))
	require.NoError(s, err)
	req.Header = h
	req.Header.Set("Content-Type", "application/json")
	res, err := s.client.Do(req)
	require.NoError(s, err)
	defer res.Body.Close()
	out := reply{TB: s, status: res.StatusCode, header: res.Header}
	out.raw, err = io.ReadAll(res.Body)
	require.NoError(s, err)
	out.decode()
	return out
}

// box puts n rows into a user's inbox, and gives their ids, the newest first; every fourth is a popup, whose coupons live.
func (s *shop) box(user string, n int) (ids []string) {
	s.Helper()
	first := s.db.Int(s, `SELECT COALESCE(MAX(id),0) + 1 FROM inbox`)
	var rows []string
	for i := range n {
		display, until := "", "'9999-12-31'"
		if i%4 == 3 {
			display, until = "popup", "UTC_TIMESTAMP(3) + INTERVAL 1 HOUR"
		}
		id := first + int64(i)
		rows = append(rows, fmt.Sprintf(`('%s',%d,%d,'expiring','%s',%d,'{"en":{"title":"T%d","text":"x"},"zh-CN":{"title":"题%d","text":"文"}}',UTC_TIMESTAMP(3),%s)`,
			user, id, 1000+id, display, i, i, i, until))
		if display == "" {
			ids = append(ids, strconv.FormatInt(id, 10))
		}
	}
	s.db.Exec(s, `INSERT INTO inbox (user_id,id,window_id,kind,display,items,texts,created_at,valid_until) VALUES `+strings.Join(rows, ","))
	slices.Reverse(ids)
	return ids
}

func (r reply) list(name string) []object {
	r.Helper()
	list, ok := r.body[name].([]any)
	require.True(r, ok, "%s", r.raw)
	out := make([]object, len(list))
	for i := range list {
		out[i] = list[i].(object)
	}
	return out
}

func (s *shop) unread(user string) int {
	s.Helper()
	return int(s.get(api.ScopeRead, "/v1/users/"+user+"/notices/unread").ok().body["unread"].(float64))
}

func TestNoticesAreRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.Empty(t, s.get(api.ScopeRead, "/v1/users/u/notices").ok().list("notices"))
	require.Zero(t, s.unread("u"))
	ids := s.box("u", 40)
	s.box("v", 3)
	require.Equal(t, 30, s.unread("u"))
	for _, limit := range []int{1, 7, 200} {
		var got []any
		next, pages := "", 0
		for {
			r := s.get(api.ScopeRead, fmt.Sprintf("/v1/users/u/notices?limit=%d&page_token=%s", limit, next)).ok()
			require.LessOrEqual(t, len(r.list("notices")), limit)
			got = append(got, field(r.list("notices"), "id")...)
			if next = r.body["next_page_token"].(string); next == "" {
				break
			}
			pages++
			require.Less(t, pages, 50)
		}
		require.Equal(t, anys(ids), got)
	}
	first := s.get(api.ScopeRead, "/v1/users/u/notices?limit=3").ok().list("notices")[0]
	require.Equal(t, "inbox", first["display"])
	require.Regexp(t, `^\d+-inbox$`, first["notice_id"])
	require.Equal(t, "expiring", first["kind"])
	require.Nil(t, first["read_at"])
	require.Nil(t, first["valid_until"])
	timeOf(t, first, "created_at")

	read := func(body object) int {
		return int(s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u/notices/read", body).ok().body["read"].(float64))
	}
	require.Equal(t, 2, read(object{"ids": []string{ids[0], ids[3], ids[0], "999999"}}))
	require.Zero(t, read(object{"ids": []string{ids[0]}}))
	require.Equal(t, 28, s.unread("u"))
	require.Equal(t, 20, read(object{"up_to": ids[10]}))
	require.Equal(t, 8, s.unread("u"))
	require.Equal(t, 3, s.unread("v"), "of nobody else")
	require.NotNil(t, s.get(api.ScopeRead, "/v1/users/u/notices").ok().list("notices")[0]["read_at"])
	other := s.get(api.ScopeRead, "/v1/users/v/notices").ok().list("notices")[0]["id"].(string)
	require.Zero(t, read(object{"ids": []string{other}}))

	for _, c := range []struct{ body, want string }{
		{`{}`, "either ids or up_to"},
		{`{"ids":["1"],"up_to":"1"}`, "either ids or up_to"},
		{`{"ids":[]}`, "body.ids"},
		{`{"ids":["07"]}`, "body.ids[0]"},
		{`{"ids":["1","x"]}`, `body.ids[1]`},
		{`{"ids":[1]}`, "body.ids[0]"},
		{`{"up_to":"-1"}`, "body.up_to"},
		{`{"up_to":null}`, "up_to must not be null"},
		{`{"upto":"1"}`, "upto"},
		{`{"ids":[` + strings.Repeat(`"1",`, 900) + `"1"]}`, "body.ids"},
	} {
		require.Contains(t, unquoted(string(s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u/notices/read", c.body).refused(400, "bad_request").raw)), c.want, c.body)
	}
	for path, want := range map[string]string{
		"/v1/users/u/notices?limit=0": "query.limit", "/v1/users/u/notices?limit=201": "query.limit", "/v1/users/u/notices?page_token=x": "query.page_token",
		"/v1/users/u/notices?locale=not%20a%20tag": "query.locale", "/v1/users/u/notices?lang=en": "query.lang", "/v1/users/%ff/notices": "UTF-8",
		"/v1/users/a%00b/notices": "path.user_id", "/v1/users/a%00b/notices/unread": "path.user_id",
	} {
		require.Contains(t, unquoted(string(s.get(api.ScopeRead, path).refused(400, "bad_request").raw)), want, path)
	}
}

func anys(texts []string) []any {
	out := make([]any, len(texts))
	for i := range texts {
		out[i] = texts[i]
	}
	return out
}

func TestNoticesInTheReadersLanguage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.box("u", 1)
	s.box("v", 1)
	s.db.Exec(t, `INSERT INTO user_profile (user_id,locale,zone,addresses,address_key,seen_at) VALUES ('v','zh-Hans-SG','','','',UTC_TIMESTAMP(3))`)
	for _, c := range []struct{ user, query, accept, want string }{
		{"u", "", "", "T0"},
		{"v", "", "", "题0"},
		{"v", "", "en-GB, zh;q=0.5", "T0"},
		{"u", "", "fr, zh-CN;q=0.3, en;q=0.2", "题0"},
		{"u", "", "zh;q=0.2, en;q=0.9", "T0"},
		{"u", "", "xx", "T0"},
		{"u", "", strings.Repeat("-", 5000), "T0"},
		{"u", "", "\xff\xfe", "T0"},
		{"u", "?locale=zh", "en", "题0"},
		{"v", "?locale=fr", "", "T0"},
	} {
		got := s.with("Accept-Language", c.accept).get(api.ScopeRead, "/v1/users/"+c.user+"/notices"+c.query).ok().list("notices")
		require.Equal(t, c.want, got[0]["title"], "%+v", c)
	}
}

func TestPopupsAreTakenOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.box("u", 40)
	s.db.Exec(t, `UPDATE inbox SET valid_until = UTC_TIMESTAMP(3) WHERE id = 4`)
	take := func(s *shop, query string) []object {
		return s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u/notices/popups"+query, nil).ok().list("popups")
	}
	got := take(s, "?limit=2&locale=zh-CN")
	require.Len(t, got, 2)
	require.Equal(t, "popup", got[0]["display"])
	require.Equal(t, "题7", got[0]["title"])
	require.Greater(t, timeOf(t, got[0], "valid_until"), time.Now())
	require.Less(t, time.Until(timeOf(t, got[0], "valid_until")), 2*time.Hour)

	first, again := take(s.with("Idempotency-Key", "k"), "?limit=1"), take(s.with("Idempotency-Key", "k"), "?limit=1")
	require.Equal(t, first, again, "a lost answer is had again")
	got = append(got, first...)
	var mu sync.Mutex
	var devices sync.WaitGroup
	for range 4 {
		devices.Go(func() {
			some := take(s, "")
			mu.Lock()
			got = append(got, some...)
			mu.Unlock()
		})
	}
	devices.Wait()
	got = append(got, take(s, "")...)
	seen := map[any]bool{}
	for _, p := range got {
		require.False(t, seen[p["id"]], "handed out twice")
		seen[p["id"]] = true
	}
	require.Len(t, seen, 9, "all but the one whose coupons have ended")
	require.Empty(t, take(s, ""))
	require.Equal(t, 30, s.unread("u"))
	s.ask(api.ScopeOrder, http.MethodPost, "/v1/users/u/notices/popups", nil).refused(403, "forbidden")
}
