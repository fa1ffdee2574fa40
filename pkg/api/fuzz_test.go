package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// FuzzHandlers sends anything to every route: the answer is never a fault of ours, and what was refused has written
// nothing.
func FuzzHandlers(f *testing.F) {
	routes := operations(f, offline(f))
	for i, o := range routes {
		for _, body := range []string{
			`{}`, `{"grants":[{"grant_key":"k","template_id":"1","user_id":"u"}]}`, `{"user_id":"u","coupon_ids":["1"]}`,
			`{"name":"t","rule":{"kind":"after","after":"1h"},"value":5,"currency":"CNY","reason":"r"}`, `{"revision":1,"reason":"r"}`,
			`{"expires_at":null,"reason":"r"}`, `{"ids":["1"]}`, `{"up_to":"1"}`, `{"receipts":[{"notice_id":"1-sms","status":"failed"}]}`,
			`{"optouts":[{"user_id":"u","channel":"sms","out":true}]}`,
		} {
			if o.method == http.MethodGet {
				body = ""
			}
			f.Add(uint8(i), "1", "limit=1", "key", body)
		}
	}
	s := newSite(f, func(c *api.Config, _ *api.Deps) {
		c.Limits.Read.PerSecond, c.Limits.Ops.PerSecond, c.Limits.Issue.PerSecond, c.Limits.Providers.PerSecond = 0, 0, 0, 0
	})
	s.grant(s.template(), "u", 1)
	f.Fuzz(func(t *testing.T, route uint8, id, query, key, body string) {
		s := *s
		s.TB = t
		o := routes[int(route)%len(routes)]
		path := placeholder.ReplaceAllLiteralString(o.path, escape(id))
		req, err := http.NewRequestWithContext(t.Context(), o.method, s.url+path+"?"+query, nil)
		if err != nil || req.URL.Fragment != "" || strings.ContainsAny(query, " \x7f") {
			return // it is no HTTP
		}
		before := s.rows(t)
		var raw any
		if body != "" {
			raw = body
		}
		sender := &s
		if visible(key) {
			sender = s.keyed(key)
		}
		var got reply
		if o.signed() {
			got = sender.sign(path+"?"+query, body)
		} else {
			got = sender.ask(api.Scope(o.scopes(t)[0]), o.method, path+"?"+query, raw)
		}
		require.Less(t, got.status, 500, "%s %s: %s", o.method, path, got.raw)
		if got.status < 400 {
			return
		}
		require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
		require.NotEmpty(t, got.body["code"])
		after := s.rows(t)
		if kept := s.db.Int(t, "SELECT COUNT(*) FROM idempotency_key"); visible(key) && after > before && kept > 0 {
			after-- // a refusal by the state of things is remembered for its key
		}
		require.Equal(t, before, after, "%s %s: %s", o.method, path, fmt.Sprint(got.body))
	})
}

func visible(key string) bool {
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return key != ""
}
