package conform

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// asks sends grants in one request.
func (s *site) asks(gs ...object) reply {
	s.Helper()
	return s.post(api.ScopeIssue, "/v1/grants", object{"grants": gs})
}

func grants(s *site) {
	tpl, user, batch := s.template(), s.name("user"), s.name("batch")
	k1, k2 := s.name("key"), s.name("key")
	r := s.asks(
		object{"grant_key": k1, "template_id": tpl, "user_id": user, "batch_id": batch},
		object{"grant_key": k2, "template_id": "999999999", "user_id": user},
		object{"grant_key": k1, "template_id": tpl, "user_id": user, "batch_id": batch},
	).ok()
	require.Equal(s, []string{"granted", "refused", "repeated"}, r.texts("result", "results"), "each has a result of its own")
	require.Equal(s, []string{k1, k2, k1}, r.texts("grant_key", "results"))
	require.Equal(s, "template_not_found", r.text("results", 1, "code"))
	require.Empty(s, r.text("results", 1, "coupon_id"))
	id := r.text("results", 0, "coupon_id")
	require.Equal(s, id, r.text("results", 2, "coupon_id"))

	c := s.coupon(id)
	require.Equal(s, []string{"unused", "unused", user, batch, tpl, "CNY", "", ""},
		[]string{c.text("state"), c.text("stored_state"), c.text("user_id"), c.text("batch_id"), c.text("template_id"), c.text("currency"), c.text("order_id"), c.text("expire_cause")})
	require.Equal(s, 1, c.number("version"))
	require.Equal(s, c.instant("granted_at"), c.instant("valid_from"))
	require.Equal(s, r.instant("results", 0, "expires_at"), c.instant("expires_at"))
	require.Nil(s, c.get("locked_at"))
	require.Nil(s, c.get("used_at"))
	require.Equal(s, false, c.get("archived"))
	require.Equal(s, false, c.get("observed"))
	require.Equal(s, string(c.raw), string(s.get(api.ScopeIssue, "/v1/grants/"+url.PathEscape(k1)).ok().raw))
	s.get(api.ScopeIssue, "/v1/grants/"+k2).refused(http.StatusNotFound, "not_found")
	require.Equal(s, []string{"coupon.issued"}, s.Heard(s, id))
	require.Equal(s, 1, s.get(api.ScopeOps, "/v1/templates/"+tpl).ok().number("issued"))
}

func grantKeys(s *site) {
	tpl, user, key := s.template(), s.name("user"), s.name("key")
	g := func(more ...any) object {
		return object{"grant_key": key, "template_id": tpl, "user_id": user}.with(more...)
	}
	first := s.asks(g()).ok().text("results", 0, "coupon_id")
	for _, other := range []object{g("user_id", "another"), g("batch_id", "b"), g("expires_at", nil), g("template_id", s.template())} {
		r := s.asks(other).ok()
		require.Equal(s, "refused", r.text("results", 0, "result"))
		require.Equal(s, "grant_key_conflict", r.text("results", 0, "code"), "%v", other)
	}
	require.Equal(s, "repeated", s.asks(g()).ok().text("results", 0, "result"))
	byIssuer := s.asks(g("issuer", "crm")).ok()
	require.Equal(s, "granted", byIssuer.text("results", 0, "result"), "a key is its issuer's")
	require.NotEqual(s, first, byIssuer.text("results", 0, "coupon_id"))
	require.Equal(s, byIssuer.text("results", 0, "coupon_id"), s.get(api.ScopeRead, "/v1/grants/"+key+"?issuer=crm").ok().text("coupon_id"))
	require.Equal(s, first, s.get(api.ScopeRead, "/v1/grants/"+key).ok().text("coupon_id"))

	odd := "a key/with: ünïcode %2F"
	r := s.asks(object{"grant_key": odd + s.name(""), "template_id": tpl, "user_id": "用户 ✓"}).ok()
	require.Equal(s, "granted", r.text("results", 0, "result"))
	require.Equal(s, "用户 ✓", s.get(api.ScopeRead, "/v1/grants/"+url.PathEscape(r.text("results", 0, "grant_key"))).ok().text("user_id"))
	// A refused key is not remembered.
	late := object{"grant_key": s.name("key"), "template_id": tpl, "user_id": user, "expires_at": "2001-01-01T00:00:00Z"}
	require.Equal(s, "already_ended", s.asks(late).ok().text("results", 0, "code"))
	require.Equal(s, "granted", s.asks(late.with("expires_at", absent{})).ok().text("results", 0, "result"))
}

func grantEnds(s *site) {
	now := s.now().Truncate(time.Second)
	ends := func(template string, more ...any) time.Time {
		s.Helper()
		return s.coupon(s.grant(template, "u", more...)).instant("expires_at")
	}
	plain := s.template()
	for in, want := range map[any]time.Time{
		nil:                              {}, // never
		rfc(now.Add(90 * time.Minute)):   now.Add(90 * time.Minute),
		rfc(now.Add(90*time.Minute + 1)): now.Add(90*time.Minute + time.Second), // a fraction never shortens
		now.Add(2 * time.Hour).In(east()).Format(time.RFC3339): now.Add(2 * time.Hour),
	} {
		require.Equal(s, want, ends(plain, "expires_at", in), "%v", in)
	}
	require.Equal(s, time.Time{}, ends(s.template("rule", object{"kind": "never"})))
	require.Equal(s, now.Add(48*time.Hour), ends(s.template("rule", object{"kind": "fixed", "at": rfc(now.Add(48 * time.Hour))})))
	day := now.AddDate(0, 0, 3)
	midnight := time.Date(day.Year(), day.Month(), day.Day()+1, 0, 0, 0, 0, time.UTC)
	require.Equal(s, midnight, ends(s.template("rule", object{"kind": "end_of_day", "date": day.Format(time.DateOnly), "zone": "UTC"})))
	require.Equal(s, midnight.Add(-8*time.Hour), ends(s.template("rule", object{"kind": "end_of_day", "date": day.Format(time.DateOnly), "zone": "Asia/Shanghai"})))
	local := now.In(east()).AddDate(0, 0, 2)
	got := ends(s.template("rule", object{"kind": "days_after", "days": 2, "zone": "Asia/Shanghai"}))
	require.Contains(s, []time.Time{
		time.Date(local.Year(), local.Month(), local.Day()+1, 0, 0, 0, 0, east()).UTC(),
		time.Date(local.Year(), local.Month(), local.Day()+2, 0, 0, 0, 0, east()).UTC(), // it is midnight there just now
	}, got)

	from := now.Add(10 * time.Minute)
	c := s.coupon(s.grant(plain, "u", "valid_from", rfc(from)))
	require.Equal(s, from, c.instant("valid_from"))
	for _, bad := range []struct {
		more []any
		code string
	}{
		{[]any{"valid_from", rfc(now.Add(2 * time.Hour))}, "invalid"},
		{[]any{"expires_at", rfc(now.AddDate(11, 0, 0))}, "invalid"},
		{[]any{"expires_at", rfc(now.Add(-time.Hour))}, "already_ended"},
	} {
		r := s.asks(object{"grant_key": s.name("key"), "template_id": plain, "user_id": "u"}.with(bad.more...)).ok()
		require.Equal(s, bad.code, r.text("results", 0, "code"), "%s", r.raw)
		require.NotEmpty(s, r.text("results", 0, "detail"))
	}
	gone := s.template("rule", object{"kind": "fixed", "at": "2020-01-01T00:00:00Z"})
	require.Equal(s, "already_ended", s.asks(object{"grant_key": s.name("key"), "template_id": gone, "user_id": "u"}).ok().text("results", 0, "code"))
}

// east is Shanghai's time, which has no summer.
func east() *time.Location { return time.FixedZone("", 8*60*60) }

func grantLimits(s *site) {
	tpl := s.template("quota", 3, "per_user", 2)
	g := func(user string) object {
		return object{"grant_key": s.name("key"), "template_id": tpl, "user_id": user}
	}
	r := s.asks(g("a"), g("a"), g("a"), g("b"), g("b")).ok()
	require.Equal(s, []string{"granted", "granted", "refused", "granted", "refused"}, r.texts("result", "results"), "the first ones first")
	require.Equal(s, []string{"", "", "user_limit", "", "quota_exhausted"}, r.texts("code", "results"))
	require.Equal(s, "quota_exhausted", s.asks(g("c")).ok().text("results", 0, "code"))
	require.Equal(s, 3, s.get(api.ScopeOps, "/v1/templates/"+tpl).ok().number("issued"))
	s.post(api.ScopeOps, "/v1/templates/"+tpl+"/revisions", object{"revision": 1, "quota": 4, "reason": "one more"}).is(http.StatusCreated)
	require.Equal(s, "granted", s.asks(g("c")).ok().text("results", 0, "result"))
}

func grantFaults(s *site) {
	tpl := s.template()
	good := func(more ...any) object {
		return object{"grant_key": s.name("key"), "template_id": tpl, "user_id": "u"}.with(more...)
	}
	long := fmt.Sprintf("%0129d", 1)
	for _, c := range []struct {
		more  []any
		names string
	}{
		{[]any{"grant_key", ""}, "grant_key"},
		{[]any{"grant_key", absent{}}, "grant_key"},
		{[]any{"grant_key", long}, "grant_key"},
		{[]any{"grant_key", "a\x00b"}, "grant_key"},
		{[]any{"user_id", ""}, "user_id"},
		{[]any{"user_id", long}, "user_id"},
		{[]any{"batch_id", long}, "batch_id"},
		{[]any{"template_id", "0"}, "template_id"},
		{[]any{"template_id", 7}, "template_id"},
		{[]any{"expires_at", "tomorrow"}, "expires_at"},
		{[]any{"expires_at", "2026-10-31T00:00:00"}, "expires_at"}, // no zone
		{[]any{"valid_from", nil}, "valid_from"},
		{[]any{"kind", "x"}, "kind"},
	} {
		key := s.name("key")
		s.asks(good("grant_key", key), good(c.more...)).refused(http.StatusBadRequest, "bad_request", c.names)
		s.get(api.ScopeIssue, "/v1/grants/"+key).refused(http.StatusNotFound, "not_found") // the good one was not granted either
	}
	s.asks().refused(http.StatusBadRequest, "bad_request", "grants")
	many := make([]object, 1001)
	for i := range many {
		many[i] = good()
	}
	s.asks(many...).refused(http.StatusBadRequest, "bad_request", "grants")
	results := s.asks(many[:1000]...).ok().texts("result", "results")
	for _, r := range results {
		require.Equal(s, "granted", r)
	}
}
