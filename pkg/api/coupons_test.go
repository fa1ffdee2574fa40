package api_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
)

func TestACouponIsShownAsItIsNow(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	id := s.grant(s.template(func(t *coupon.Template) {
		t.Terms.Offer = coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000, Cap: 300, MinSpend: 5, Scopes: []string{"hats"}}
	}), "u1", 1, func(g *coupon.Grant) { g.BatchID = "b1" })[0]
	for _, scope := range []api.Scope{api.ScopeRead, api.ScopeOps} {
		c := s.get(scope, "/v1/coupons/"+id).ok().body
		require.Equal(t, "b1", c["batch_id"])
		require.Equal(t, object{"kind": "percent", "basis_points": 1000.0, "cap": 300.0, "min_spend": 5.0, "scopes": []any{"hats"}}, c["offer"])
		require.Equal(t, "unused", c["state"])
		require.InDelta(t, 1, c["version"], 0)
		require.Equal(t, time.Hour, timeOf(t, c, "expires_at").Sub(timeOf(t, c, "granted_at")).Round(2*time.Second))
		for _, field := range []string{"locked_at", "lock_until", "used_at", "expired_at"} {
			require.Contains(t, c, field)
			require.Nil(t, c[field])
		}
	}
	s.move(-1, 0, id)
	c := s.get(api.ScopeRead, "/v1/coupons/"+id).ok().body
	require.Equal(t, "expired", c["state"])
	require.Equal(t, "unused", c["stored_state"])
	require.Nil(t, c["expired_at"])
	require.Equal(t, false, c["observed"])
	_, err := s.db.SQL.ExecContext(t.Context(), "UPDATE coupon SET observed = 1 WHERE id = ?", id)
	require.NoError(t, err)
	require.Equal(t, true, s.get(api.ScopeRead, "/v1/coupons/"+id).ok().body["observed"])
	for _, bad := range []string{"0", "-1", "01", "1.0", "18446744073709551616", "a", "%31%30%2F", "1%00"} {
		s.get(api.ScopeRead, "/v1/coupons/"+bad).refused(http.StatusBadRequest, "bad_request")
		s.get(api.ScopeRead, "/v1/coupons/"+bad+"/timeline").refused(http.StatusBadRequest, "bad_request")
	}
	for _, scope := range []api.Scope{api.ScopeIssue, api.ScopeOrder} {
		s.get(scope, "/v1/coupons/"+id).refused(http.StatusForbidden, "forbidden")
	}
	s.get(api.ScopeRead, "/v1/coupons?state=unused").refused(http.StatusForbidden, "forbidden")
	s.get(api.ScopeRead, "/v1/coupons.csv?state=unused").refused(http.StatusForbidden, "forbidden")
}

func TestOperatorsMoveEndsAndWithdraw(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	ids := s.grant(template, "u1", 4)
	post := func(id, what string, body any) reply {
		return s.ask(api.ScopeOps, http.MethodPost, "/v1/coupons/"+id+"/"+what, body)
	}
	end := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	moved := post(ids[0], "extend", object{"expires_at": end.In(time.FixedZone("", 8*3600)).Add(-time.Millisecond), "reason": "goodwill"}).ok()
	require.Equal(t, end.UTC(), moved.at("expires_at"), "rounded up, in UTC")
	require.Equal(t, false, moved.body["repeated"])
	require.Equal(t, true, post(ids[0], "extend", object{"expires_at": end, "reason": "goodwill"}).ok().body["repeated"])
	require.Nil(t, post(ids[0], "extend", object{"expires_at": nil, "reason": "for good"}).ok().body["expires_at"])
	steps := s.get(api.ScopeOps, "/v1/coupons/"+ids[0]+"/timeline").ok().body["steps"].([]any)
	last := steps[len(steps)-1].(object)
	require.Equal(t, "ops-shop", last["actor"])
	require.Equal(t, "for good", last["reason"])
	require.Equal(t, end.UTC(), timeOf(t, last, "previous_expires_at"))

	require.Equal(t, "voided", post(ids[1], "void", object{"reason": "fraud"}).ok().body["state"])
	require.Equal(t, true, post(ids[1], "void", object{"reason": "fraud"}).ok().body["repeated"])
	post(ids[1], "extend", object{"expires_at": end, "reason": "r"}).refused(http.StatusConflict, "voided")

	s.verb("lock", "o1", "u1", ids[2:3]).ok()
	post(ids[2], "void", object{"reason": "fraud"}).refused(http.StatusConflict, "locked")
	require.Equal(t, "voided", post(ids[2], "void", object{"reason": "fraud", "break_lock": true}).ok().body["state"])
	s.verb("redeem", "o1", "u1", ids[2:3]).refused(http.StatusConflict, "voided")

	s.move(-1, 0, ids[3])
	post(ids[3], "extend", object{"expires_at": end, "reason": "r"}).refused(http.StatusConflict, "expired")
	post("9999", "void", object{"reason": "r"}).refused(http.StatusNotFound, "not_found")
	past := post(ids[0], "extend", object{"expires_at": time.Now().Add(-time.Hour), "reason": "r"}).refused(http.StatusBadRequest, "invalid")
	require.Contains(t, past.body["detail"], "after now")
	for name, body := range map[string]any{
		"nothing": object{}, "no reason": object{"expires_at": end}, "an empty reason": object{"expires_at": end, "reason": ""}, "no end": object{"reason": "r"},
		"no zone": object{"expires_at": "2030-01-01T00:00:00", "reason": "r"}, "too late": object{"expires_at": "9999-12-31T00:00:00Z", "reason": "r"},
		"a long reason": object{"expires_at": end, "reason": strings.Repeat("r", 256)}, "a number": object{"expires_at": 5, "reason": "r"},
	} {
		r := post(ids[0], "extend", body)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", name, r.raw)
	}
	s.ask(api.ScopeOrder, http.MethodPost, "/v1/coupons/"+ids[0]+"/void", object{"reason": "r"}).refused(http.StatusForbidden, "forbidden")
}

func TestOperatorsListByTemplateBatchStateAndEnd(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	one, two := s.template(), s.template()
	a := s.grant(one, "u1", 5, func(g *coupon.Grant) { g.BatchID = "b/1" })
	b := s.grant(two, "u2", 3, func(g *coupon.Grant) { g.BatchID = "b/1" })
	s.move(7200, 0, b...)
	s.verb("redeem", "o1", "u1", a[:2]).ok()
	list := func(query url.Values) []any {
		query.Set("limit", "2")
		got, _ := s.pages(api.ScopeOps, "/v1/coupons", query)
		return field(got, "coupon_id")
	}
	anys := func(ids ...string) []any {
		out := make([]any, len(ids))
		for i := range ids {
			out[i] = ids[i]
		}
		return out
	}
	require.Equal(t, anys(a...), list(url.Values{"template_id": {strconv.FormatUint(one, 10)}}))
	require.Equal(t, anys(append(slices.Clone(a), b...)...), list(url.Values{"batch_id": {"b/1"}}))
	require.Equal(t, anys(b...), list(url.Values{"batch_id": {"b/1"}, "template_id": {strconv.FormatUint(two, 10)}}))
	require.Equal(t, anys(a[0], a[1]), list(url.Values{"state": {"used"}, "template_id": {strconv.FormatUint(one, 10)}}))
	require.Equal(t, anys(b...), list(url.Values{"state": {"unused"}, "ends_from": {time.Now().Add(90 * time.Minute).Format(time.RFC3339)}}))
	require.Empty(t, list(url.Values{"state": {"unused"}, "ends_to": {time.Now().UTC().Format(time.RFC3339Nano)}}))
	for _, bad := range []string{
		"template_id=x", "template_id=0", "batch_id=%00", "state=x", "state=unused&ends_from=yesterday", "state=unused&ends_from=2026-01-01",
		"state=unused&ends_from=2026-01-02T00:00:00Z&ends_to=2026-01-01T00:00:00Z", "state=unused&ends_to=0001-01-01T00:00:00Z",
		"state=unused&limit=0.5", "batch_id=" + strings.Repeat("b", 129), "state=unused&page_token=x",
	} {
		s.get(api.ScopeOps, "/v1/coupons?"+bad).refused(http.StatusBadRequest, "bad_request")
		s.get(api.ScopeOps, "/v1/coupons.csv?"+bad).refused(http.StatusBadRequest, "bad_request")
	}
}

// odd texts as they may stand in rows that came in before anybody checked.
func oddUsers() []string {
	return []string{
		"=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "＝cmd", "'quoted", `"`, "a,b", "line\nbreak", `=HYPERLINK("http://x","y")`, "日本", " lead", "a;b", "plain",
	}
}

func TestTheExportIsSafeAndGivesEveryTextBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template(func(t *coupon.Template) {
		t.Terms.Offer = coupon.Offer{Kind: coupon.OfferAmount, MinSpend: 5, Scopes: []string{"=evil", "hats"}}
	})
	users := oddUsers()
	ids := s.grant(template, "u", len(users), func(g *coupon.Grant) { g.BatchID = "-b" })
	for i, user := range users {
		s.db.Exec(t, `UPDATE coupon SET user_id = ? WHERE id = ?`, []byte(user), ids[i])
	}
	s.move(-1, 0, ids[0])
	r := s.get(api.ScopeOps, fmt.Sprintf("/v1/coupons.csv?template_id=%d", template)).ok()
	require.Equal(t, "text/csv; charset=utf-8; header=present", r.header.Get("Content-Type"))
	require.Equal(t, `attachment; filename="coupons.csv"`, r.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(bytes.NewReader(r.raw)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, len(users)+1)
	column := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	for i, row := range rows[1:] {
		require.Equal(t, ids[i], column(row, "coupon_id"))
		for name, cell := range map[string]string{"user_id": column(row, "user_id"), "batch_id": column(row, "batch_id"), "scopes": column(row, "scopes")} {
			require.NotRegexp(t, "^[=+\\-@\t\r＝＋－＠]", cell, name)
		}
		require.Equal(t, users[i], strings.TrimPrefix(column(row, "user_id"), "'"), "take one apostrophe away")
		require.Equal(t, "'=evil|hats", column(row, "scopes"))
		require.Equal(t, "500", column(row, "value"))
		require.Empty(t, column(row, "used_at"))
		require.Equal(t, "false", column(row, "observed"))
		_, err := time.Parse(time.RFC3339, column(row, "expires_at"))
		require.NoError(t, err)
	}
	require.Equal(t, "expired", column(rows[1], "state"))
	require.Equal(t, "unused", column(rows[1], "stored_state"))
	require.Empty(t, s.bell.messages(), "an export rings for nothing")
}

func TestAnExportInPiecesAndAWholeOneAreTheSame(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	const n = 2300 // three pages
	for range 3 {
		s.grant(template, "u", 700)
	}
	s.grant(template, "u", n-2100)
	path := fmt.Sprintf("/v1/coupons.csv?template_id=%d", template)
	whole := s.get(api.ScopeOps, path).ok()
	require.Empty(t, whole.header.Get("X-Next-Page-Token"))
	require.Equal(t, n+1, bytes.Count(whole.raw, []byte("\n")))

	var pieces bytes.Buffer
	token := ""
	for first := true; first || token != ""; first = false {
		r := s.get(api.ScopeOps, path+"&limit=999&page_token="+token).ok()
		head, rest, _ := bytes.Cut(r.raw, []byte("\n"))
		if first {
			pieces.Write(head)
			pieces.WriteByte('\n')
		}
		pieces.Write(rest)
		token = r.header.Get("X-Next-Page-Token")
	}
	require.Equal(t, string(whole.raw), pieces.String())
	s.get(api.ScopeOps, path+"&limit=10001").refused(http.StatusBadRequest, "bad_request")

	// More at once than may run are told to come again.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r := s.get(api.ScopeOps, path)
			if r.status != http.StatusOK {
				r.refused(http.StatusServiceUnavailable, "busy")
				require.NotEmpty(t, r.header.Get("Retry-After"))
				return
			}
			require.Equal(t, n+1, bytes.Count(r.raw, []byte("\n")))
		})
	}
	wg.Wait()
	s.get(api.ScopeOps, path).ok()
}

// An export that cannot be brought to its end must not pass for a whole one.
func TestAnExportThatBreaksIsCutOff(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	s.grant(template, "u", 1000)
	s.grant(template, "u", 1000)
	// The terms of the second page's coupons cannot be read.
	s.db.Exec(t, `UPDATE coupon SET revision = 99 WHERE id > (SELECT m FROM (SELECT MIN(id) + 1200 AS m FROM coupon) x)`)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+fmt.Sprintf("/v1/coupons.csv?template_id=%d", template), nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer ops")
	res, err := s.client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	var got bytes.Buffer
	_, err = got.ReadFrom(res.Body)
	require.Error(t, err, "cut off")
	require.Equal(t, 1001, bytes.Count(got.Bytes(), []byte("\n")), "the first page had gone out")
	// A piece is whole, or it is a problem.
	s.get(api.ScopeOps, fmt.Sprintf("/v1/coupons.csv?template_id=%d&limit=2000", template)).refused(http.StatusInternalServerError, "internal")
	s.get(api.ScopeOps, fmt.Sprintf("/v1/coupons.csv?template_id=%d&limit=1000", template)).ok()
}

// Whatever comes in, the answer is a success or a problem with a code, and never a fault of ours.
func FuzzPathsAndTokens(f *testing.F) {
	for _, seed := range []string{"1", "0", "18446744073709551615", "a/b", "..", "%00", "\xff", "AQ", "x y", "é", "'", "`", "1e5", "-"} {
		f.Add(seed, seed)
	}
	s := newShop(f)
	s.grant(s.template(), "u1", 3)
	token := s.get(api.ScopeRead, "/v1/users/u1/coupons?limit=1").ok().body["next_page_token"].(string)
	f.Add("u1", token)
	f.Fuzz(func(t *testing.T, id, token string) {
		at, query := escape(id), url.Values{"page_token": {token}}.Encode()
		s := *s
		s.TB = t
		for _, path := range []string{
			"/v1/coupons/" + at, "/v1/coupons/" + at + "/timeline", "/v1/users/" + at + "/coupons?limit=1&" + query,
			"/v1/users/u1/coupons?limit=1&" + query, "/v1/users/" + at + "/coupons/summary",
		} {
			requireSane(t, s.get(api.ScopeRead, path))
		}
		requireSane(t, s.get(api.ScopeOps, "/v1/coupons?state=unused&limit=1&"+query+"&"+url.Values{"batch_id": {id}, "ends_from": {token}}.Encode()))
		requireSane(t, s.get(api.ScopeOps, "/v1/coupons.csv?state=unused&limit=1&"+query))
	})
}

func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `"`, `{"user_id":"u1","coupon_ids":["1"]}`, `{"user_id":"u1","coupon_ids":["1"],"lock_for":"1m"}`, `{"coupon_ids":["1","1"]}`,
		`{"amount":1,"currency":"CNY"}`, `{"user_id":"u1","amount":1,"currency":"CNY","items":[{"amount":1,"scopes":["a"]}]}`, `{"expires_at":null,"reason":"r"}`,
		`{"expires_at":"2030-01-01T00:00:00Z","reason":"r"}`, `{"reason":"r","break_lock":true}`, "{\"user_id\":\"\xff\"}", `{"coupon_ids":{}}`, `{"amount":1e999}`,
	} {
		f.Add([]byte(seed))
	}
	s := newShop(f)
	id := s.grant(s.template(), "u1", 1)[0]
	f.Fuzz(func(t *testing.T, body []byte) {
		s := *s
		s.TB = t
		for _, verb := range []string{"lock", "renew", "redeem", "release", "refund"} {
			requireSane(t, s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/o1/"+verb, body))
		}
		requireSane(t, s.ask(api.ScopeRead, http.MethodPost, "/v1/coupons/"+id+"/validate", body))
		requireSane(t, s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u1/coupons/best", body))
		requireSane(t, s.ask(api.ScopeOps, http.MethodPost, "/v1/coupons/"+id+"/extend", body))
		requireSane(t, s.ask(api.ScopeOps, http.MethodPost, "/v1/coupons/"+id+"/void", body))
	})
}

func requireSane(t testing.TB, r reply) {
	t.Helper()
	if r.status == http.StatusTooManyRequests { // as asked for: too many a second
		return
	}
	require.Less(t, r.status, http.StatusInternalServerError, "%s", r.raw)
	if r.status == http.StatusOK {
		return
	}
	require.Equal(t, "application/problem+json", r.header.Get("Content-Type"))
	require.NotEmpty(t, r.body["code"])
	require.True(t, json.Valid(r.raw))
}
