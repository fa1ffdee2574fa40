package verify

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/client"
)

// badRequest is a request that must be refused.
type badRequest struct {
	method, path, body string
	token              string            // default: the one with every scope
	header             map[string]string // further
	status             int               // 0: any 4xx
	says               []string
}

const tenMegabytes = 10 << 20

// badInput sends what is wrong to every route, and counts all rows before and after.
func (w *checkout) badInput(ctx context.Context, t *tally) error {
	return w.open(ctx, t, opening{}, func(ctx context.Context, s *shop) error {
		template, err := s.template(ctx, nil)
		if err != nil {
			return err
		}
		ids, err := s.grant(ctx, template, 2, func(i int, g *client.Grant) { g.UserID = []string{"one", "two"}[i] })
		if err != nil {
			return err
		}
		if _, err := s.api.Lock(ctx, "held", client.Order{UserID: "two", CouponIDs: ids[1:], LockFor: time.Hour}); err != nil {
			return err
		}
		if err := drained(ctx, s.DB()); err != nil {
			return err
		}
		before, err := allRows(ctx, s.DB())
		if err != nil {
			return err
		}
		requests := badRequests(s, template, ids)
		w.cfg.View.Step(fmt.Sprintf("%d bad requests", len(requests)))
		o := outcome{}
		for _, r := range requests {
			o.sent++
			if err := s.sendBadly(ctx, r, &o); err != nil {
				return err
			}
		}
		after, err := allRows(ctx, s.DB())
		if err != nil {
			return err
		}
		changed := 0
		for _, table := range slices.Sorted(maps.Keys(after)) {
			if after[table] != before[table] {
				changed++
				w.cfg.View.Step(fmt.Sprintf("amiss: table %s was %s, is %s", table, before[table], after[table]))
			}
		}
		for _, miss := range o.misses {
			w.cfg.View.Step("amiss: " + miss)
		}
		want(t, "requests", o.sent, AtLeast, 60)
		want(t, "answered_4xx_as_a_problem_with_a_code", o.answered, Equal, o.sent)
		want(t, "with_field_value_or_reason", o.right, Equal, o.sent)
		want(t, "tables_changed", changed, Equal, 0)
		return w.sqlAsText(ctx, s, template)
	})
}

// allRows gives count and checksum of every table that a request could write to.
func allRows(ctx context.Context, db *sql.DB) (map[string]string, error) {
	out := make(map[string]string)
	for _, table := range []string{
		"coupon", "coupon_history", "coupon_template", "template_stock", "grant_key", "user_quota", "outbox", "outbox_parked",
		"order_tombstone", "quota_return", "idempotency_key", "coupon_archive", "coupon_history_archive",
	} {
		var name string
		var sum sql.NullString
		if err := db.QueryRowContext(ctx, "CHECKSUM TABLE "+table).Scan(&name, &sum); err != nil {
			return nil, fmt.Errorf("reading table %s: %w", table, err)
		}
		n, err := countIn(ctx, db, "SELECT COUNT(*) FROM "+table)
		if err != nil {
			return nil, err
		}
		out[table] = fmt.Sprintf("%d rows, checksum %s", n, sum.String)
	}
	return out, nil
}

// sendBadly sends one request and judges the answer.
func (s *shop) sendBadly(ctx context.Context, r badRequest, o *outcome) error {
	ctx, cancel := context.WithTimeout(ctx, drainFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, strings.NewReader(r.body))
	if err != nil {
		return fmt.Errorf("a bad request: %w", err)
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	switch r.token {
	case "":
		req.Header.Set("Authorization", "Bearer "+s.secret)
	case "none":
	default:
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	name := r.method + " " + r.path[:min(len(r.path), 80)] + " " + r.body[:min(len(r.body), 100)]
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		o.misses = append(o.misses, name+": "+err.Error())
		return ctx.Err()
	}
	defer res.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		o.misses = append(o.misses, name+": "+err.Error())
		return ctx.Err()
	}
	var problem struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
		Status int    `json:"status"`
	}
	switch {
	case res.StatusCode < 400 || res.StatusCode > 499 || r.status != 0 && res.StatusCode != r.status:
		o.misses = append(o.misses, fmt.Sprintf("%s: status %d %s", name, res.StatusCode, bytes.TrimSpace(body[:min(len(body), 200)])))
		return nil
	case !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json"),
		json.Unmarshal(body, &problem) != nil, problem.Code == "", problem.Status != res.StatusCode:
		o.misses = append(o.misses, fmt.Sprintf("%s: no problem with a code: %s", name, body))
		return nil
	}
	o.judge(name, string(body), r.says)
	return nil
}

// badRequests is the list: unknown fields, wrong types, overflow, 10 MB, invalid UTF-8, SQL in every string, ids of others.
func badRequests(s *shop, template string, ids []string) []badRequest {
	one, two := ids[0], ids[1]
	post := func(path, body string, says ...string) badRequest {
		return badRequest{method: http.MethodPost, path: path, body: body, says: says}
	}
	get := func(path string, says ...string) badRequest {
		return badRequest{method: http.MethodGet, path: path, says: says}
	}
	order := func(verb, fields string) (string, string) { return "/v1/orders/bad/" + verb, "{" + fields + "}" }
	const injection = `' OR 1=1; DROP TABLE coupon; -- `
	long := strings.Repeat("x", 129)
	var list []badRequest
	add := func(rs ...badRequest) { list = append(list, rs...) }

	for _, verb := range []string{"lock", "renew", "redeem", "release", "refund"} {
		for _, fields := range []string{
			`"user_id":"one","coupon_ids":["` + one + `"],"colour":"red"`,
			`"user_id":7,"coupon_ids":["` + one + `"]`,
			`"user_id":"one","coupon_ids":[` + one + `]`,
			`"user_id":"one","coupon_ids":["18446744073709551616"]`,
			`"user_id":"one","coupon_ids":["-1"]`,
			`"user_id":"one","coupon_ids":["1 OR 1=1"]`,
			`"user_id":"one","coupon_ids":[]`,
			`"user_id":"one","coupon_ids":["` + one + `","` + one + `"]`,
			`"user_id":"one","coupon_ids":["1","2","3","4","5","6","7","8","9","10","11"]`,
			`"user_id":"` + long + `","coupon_ids":["` + one + `"]`,
			`"user_id":"a\u0000b","coupon_ids":["` + one + `"]`,
			`"user_id":"` + "\xff\xfe" + `","coupon_ids":["` + one + `"]`,
			`"user_id":"one","user_id":"two","coupon_ids":["` + one + `"]`,
			`"user_id":"one"`,
		} {
			path, body := order(verb, fields)
			add(post(path, body))
		}
		path, body := order(verb, `"user_id":"one","coupon_ids":["`+two+`"]`) // somebody else's
		add(post(path, body, "not_found"))
		path, body = order(verb, `"user_id":"`+injection+`","coupon_ids":["`+one+`"]`)
		add(post(path, body, "not_found"))
		r := post("/v1/orders/bad/"+verb, `{"user_id":"one","coupon_ids":["`+one+`"]}`, "forbidden")
		r.token, r.status = s.weak, http.StatusForbidden
		add(r)
	}
	for _, lockFor := range []string{`"soon"`, `"-5m"`, `"0s"`, `"169h"`, `"99999999999h"`, `30`, `true`, `"1h' OR '1'='1"`} {
		path, body := order("lock", `"user_id":"one","coupon_ids":["`+one+`"],"lock_for":`+lockFor)
		add(post(path, body, "lock_for"))
	}
	lock, good := order("lock", `"user_id":"one","coupon_ids":["`+one+`"]`)
	add(
		post(lock, `{"user_id":"one","coupon_ids":["`+one+`"]`), post(lock, `[]`), post(lock, ``), post(lock, `null`), post(lock, good+good),
		post(lock, `{"user_id":"`+strings.Repeat("x", tenMegabytes)+`"}`, "too_large"),
		badRequest{method: http.MethodPost, path: lock, body: good, token: "none", status: http.StatusUnauthorized, says: []string{"unauthorized"}},
		badRequest{method: http.MethodPost, path: lock, body: good, token: "guessed", status: http.StatusUnauthorized, says: []string{"unauthorized"}},
		badRequest{method: http.MethodPost, path: lock, body: good, header: map[string]string{"Content-Type": "text/plain"}},
		badRequest{method: http.MethodPost, path: lock, body: good, header: map[string]string{"Idempotency-Key": strings.Repeat("k", 500)}},
		badRequest{method: http.MethodPost, path: lock, body: good, header: map[string]string{"X-Actor": strings.Repeat("a", 500)}},
		badRequest{method: http.MethodDelete, path: "/v1/coupons/" + one, status: http.StatusMethodNotAllowed},
		badRequest{method: http.MethodPut, path: lock, body: good, status: http.StatusMethodNotAllowed},
		get("/v1/nothing"), get("/v1/coupons/0", "coupon_id"), get("/v1/coupons/-1"), get("/v1/coupons/1e3"), get("/v1/coupons/18446744073709551616"),
		get("/v1/coupons/1%20OR%201=1"), get("/v1/coupons/%27%3B%20DROP%20TABLE%20coupon%3B--"), get("/v1/coupons/999999999999", "not_found"),
		get("/v1/coupons/999999999999/timeline", "not_found"), get("/v1/grants/nobody%27s", "not_found"),
		get("/v1/users/"+long+"/coupons"), get("/v1/users/%FF/coupons"), get("/v1/users/a%00b/coupons"),
		get("/v1/users/one/coupons?state=rotten", "state"), get("/v1/users/one/coupons?limit=0", "limit"), get("/v1/users/one/coupons?limit=1000000"),
		get("/v1/users/one/coupons?limit=ten", "limit"), get("/v1/users/one/coupons?page_token=%27%20OR%201=1", "page_token"),
		get("/v1/users/one/coupons?state=unused&state=used"), get("/v1/users/one/coupons?colour=red"),
		get("/v1/coupons"), get("/v1/coupons?template_id=x", "template_id"), get("/v1/coupons?template_id="+template+"&ends_from=tomorrow", "ends_from"),
		get("/v1/templates/999999", "not_found"), get("/v1/templates/"+template+"/stats?from=soon", "from"),
	)
	for _, grant := range []string{
		`{}`, `{"grants":[]}`, `{"grants":7}`, `{"grants":[7]}`, `{"grants":[{"grant_key":"k"}]}`,
		`{"grants":[{"grant_key":"k","template_id":` + template + `,"user_id":"u"}]}`,
		`{"grants":[{"grant_key":"k","template_id":"` + template + `","user_id":"u","colour":"red"}]}`,
		`{"grants":[{"grant_key":"` + long + `","template_id":"` + template + `","user_id":"u"}]}`,
		`{"grants":[{"grant_key":"k","template_id":"` + template + `","user_id":"u","expires_at":"tomorrow"}]}`,
		`{"grants":[{"grant_key":"k","template_id":"` + template + `","user_id":"u","expires_at":1893456000}]}`,
		`{"grants":[{"grant_key":"k","template_id":"1; DROP TABLE coupon","user_id":"u"}]}`,
		`{"grants":[{"grant_key":"k` + "\xc3\x28" + `","template_id":"` + template + `","user_id":"u"}]}`,
		`{"grants":[` + strings.Repeat(`{"grant_key":"k","template_id":"`+template+`","user_id":"u"},`, 1000) + `{"grant_key":"k","template_id":"` + template + `","user_id":"u"}]}`,
	} {
		add(post("/v1/grants", grant))
	}
	for _, t := range []string{
		`{"name":"x"}`,
		`{"name":"x","rule":{"kind":"never"},"value":-1,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"never"},"value":9223372036854775808,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"never"},"value":1.5,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"never"},"value":"1","currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"never"},"value":1,"currency":"yuan","reason":"r"}`,
		`{"name":"x","rule":{"kind":"sometimes"},"value":1,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"end_of_day","date":"2027-02-30","zone":"Asia/Shanghai"},"value":1,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"end_of_day","date":"2027-02-28","zone":"../../etc/passwd"},"value":1,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"after","after":"-1h"},"value":1,"currency":"CNY","reason":"r"}`,
		`{"name":"x","rule":{"kind":"never"},"value":1,"currency":"CNY","reason":"r","offer":{"kind":"percent","basis_points":10001}}`,
		`{"name":"x","rule":{"kind":"never"},"value":1,"currency":"CNY","reason":"r","precision":"fuzzy"}`,
		`{"name":"x","rule":{"kind":"never"},"value":1,"currency":"CNY","reason":"r","late_pay_policy":"' OR 1=1"}`,
	} {
		add(post("/v1/templates", t))
	}
	add(
		post("/v1/coupons/"+one+"/extend", `{"expires_at":"2027-01-01T00:00:00Z"}`, "reason"), post("/v1/coupons/"+one+"/extend", `{"reason":"r"}`, "expires_at"),
		post("/v1/coupons/"+one+"/extend", `{"expires_at":"2020-01-01T00:00:00Z","reason":"r"}`, "expires_at"),
		post("/v1/coupons/"+one+"/extend", `{"expires_at":"99999-01-01T00:00:00Z","reason":"r"}`), post("/v1/coupons/"+one+"/void", `{}`, "reason"),
		post("/v1/coupons/"+two+"/void", `{"reason":"r"}`, "locked"), post("/v1/coupons/"+one+"/void", `{"reason":"r","break_lock":"yes"}`, "break_lock"),
		post("/v1/users/one/coupons/best", `{"amount":-1,"currency":"CNY"}`, "amount"), post("/v1/users/one/coupons/best", `{"amount":1e30,"currency":"CNY"}`, "amount"),
		post("/v1/users/one/coupons/best", `{"currency":"CNY"}`, "amount"), post("/v1/users/one/coupons/best", `{"amount":1,"currency":"CNY","scopes":"all"}`, "scopes"),
		post("/v1/coupons/"+one+"/validate", `{"user_id":"two"}`, "not_found"), post("/v1/coupons/"+one+"/validate", `{"user_id":"one","amount":1}`),
		post("/v1/templates/"+template+"/revisions", `{"revision":99,"value":1,"reason":"r"}`, "conflict"), post("/v1/templates/"+template+"/stop", `{}`, "reason"),
		badRequest{method: http.MethodPost, path: "/v1/templates", body: `{}`, token: s.weak, status: http.StatusForbidden},
		badRequest{method: http.MethodPost, path: "/v1/grants", body: `{}`, token: s.weak, status: http.StatusForbidden},
		badRequest{method: http.MethodGet, path: "/v1/coupons?template_id=" + template, token: s.weak, status: http.StatusForbidden},
	)
	return list
}

// sqlAsText puts SQL wherever free text is allowed: it is kept as the text that it is.
func (w *checkout) sqlAsText(ctx context.Context, s *shop, template string) error {
	const text = `x'); DROP TABLE coupon; -- "\`
	g, err := s.api.Grant(ctx, client.Grant{GrantKey: text, TemplateID: template, UserID: text, BatchID: text, Issuer: text})
	if err != nil {
		return err
	}
	if _, err := s.api.Lock(ctx, text, client.Order{UserID: text, CouponIDs: []string{g.CouponID}, LockFor: time.Hour}); err != nil {
		return err
	}
	c, err := s.api.CouponByGrantKey(ctx, text, text)
	if err != nil {
		return err
	}
	kept := c.CouponID == g.CouponID && c.UserID == text && c.BatchID == text && c.OrderID == text
	page, err := s.api.UserCoupons(ctx, text, client.WalletQuery{})
	if err != nil {
		return err
	}
	want(s.t, "sql_is_kept_as_text", boolean(kept), Equal, 1)
	want(s.t, "sql_is_found_as_text", len(page.Coupons), Equal, 1)
	return nil
}
