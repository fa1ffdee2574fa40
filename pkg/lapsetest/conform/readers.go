package conform

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

func timeline(s *site) {
	user, order := s.name("user"), s.name("order")
	id := s.grant(s.template(), user)
	s.verb("lock", order, []string{id}, "user_id", user).ok()
	s.verb("redeem", order, []string{id}, "user_id", user).ok()
	r := s.get(api.ScopeRead, "/v1/coupons/"+id+"/timeline").ok()
	require.Equal(s, []string{"", "unused", "locked"}, r.texts("from", "steps"))
	require.Equal(s, []string{"unused", "locked", "used"}, r.texts("to", "steps"))
	require.Equal(s, []string{"grant", "order", "order"}, r.texts("cause", "steps"))
	require.Equal(s, []string{"", order, order}, r.texts("order_id", "steps"))
	require.Equal(s, 3, r.number("steps", 2, "version"))
	require.Nil(s, r.get("steps", 1, "previous_expires_at"))
	ended := s.grant(s.template(), user)
	s.end(ended)
	r = s.get(api.ScopeOps, "/v1/coupons/"+ended+"/timeline").ok()
	require.Equal(s, []string{"unused", "unused", "expired"}, r.texts("to", "steps"))
	require.Equal(s, "sandbox", r.text("steps", 1, "actor"))
	require.Equal(s, "lapse", r.text("steps", 2, "actor"))
	c := s.coupon(ended)
	require.Equal(s, []string{"expired", "expired"}, []string{c.text("state"), c.text("stored_state")})
	require.False(s, c.instant("expired_at").Before(c.instant("expires_at")), "never early")
	require.NotEmpty(s, c.text("expire_cause"))
	for _, path := range []string{"", "/timeline"} {
		s.get(api.ScopeRead, "/v1/coupons/999999999"+path).refused(http.StatusNotFound, "not_found")
		s.get(api.ScopeRead, "/v1/coupons/x"+path).refused(http.StatusBadRequest, "bad_request", "path.coupon_id")
	}
}

// walk gives the ids of all pages, and how many there were.
func (s *site) walk(scope api.Scope, path string) (ids []string, pages int) {
	s.Helper()
	for next := ""; ; {
		at := path
		if next != "" {
			at += "&page_token=" + url.QueryEscape(next)
		}
		r := s.get(scope, at).ok()
		ids = append(ids, r.texts("coupon_id", "coupons")...)
		pages++
		require.Less(s, pages, 100)
		if next = r.text("next_page_token"); next == "" {
			return ids, pages
		}
	}
}

func wallets(s *site) {
	user, now := s.name("user"), s.now().Truncate(time.Second)
	tpl := s.template()
	in := func(hours int) string {
		return s.grant(tpl, user, "expires_at", rfc(now.Add(time.Duration(hours)*time.Hour)))
	}
	c, a, b, d := in(3), in(1), in(2), in(3)
	never := s.grant(tpl, user, "expires_at", nil)
	locked, used, voided, first, second := in(2), in(2), in(2), in(4), in(5)
	s.verb("lock", s.name("order"), []string{locked}, "user_id", user).ok()
	s.verb("redeem", s.name("order"), []string{used}, "user_id", user).ok()
	s.post(api.ScopeOps, "/v1/coupons/"+voided+"/void", object{"reason": "r"}).ok()
	s.forward(first, "end", 1)
	s.Until(s, s.forward(second, "end", 2))

	path := "/v1/users/" + user + "/coupons"
	for _, limit := range []int{1, 2, 3, 200} {
		ids, pages := s.walk(api.ScopeRead, fmt.Sprintf("%s?state=unused&limit=%d", path, limit))
		require.Equal(s, []string{a, b, c, d, never}, ids, "by earliest end, then by id")
		require.GreaterOrEqual(s, pages, (5+limit-1)/limit)
		ids, _ = s.walk(api.ScopeRead, fmt.Sprintf("%s?limit=%d", path, limit))
		require.Equal(s, []string{a, b, c, d, never, locked, used, second, first, voided}, ids, "one state after the other, the latest end of expired ones first")
	}
	for state, want := range map[string][]string{"locked": {locked}, "used": {used}, "expired": {second, first}, "voided": {voided}} {
		ids, _ := s.walk(api.ScopeRead, path+"?limit=1&state="+state)
		require.Equal(s, want, ids, state)
	}
	require.Empty(s, s.get(api.ScopeRead, "/v1/users/"+s.name("user")+"/coupons").ok().list("coupons"))
	s.get(api.ScopeRead, path+"?state=gone").refused(http.StatusBadRequest, "bad_request", "query.state")
	s.get(api.ScopeRead, path+"?limit=0").refused(http.StatusBadRequest, "bad_request", "query.limit")
	s.get(api.ScopeRead, path+"?limit=201").refused(http.StatusBadRequest, "bad_request", "query.limit")
	s.get(api.ScopeRead, "/v1/users/"+strings.Repeat("x", 129)+"/coupons").refused(http.StatusBadRequest, "bad_request", "user_id")
}

func summaries(s *site) {
	user, now := s.name("user"), s.now().Truncate(time.Second)
	yuan, euro := s.template(), s.template("currency", "EUR", "value", 250)
	percent := s.template("offer", object{"kind": "percent", "basis_points": 1000})
	soon := now.Add(2 * time.Hour)
	s.grant(yuan, user, "expires_at", rfc(soon))
	s.grant(yuan, user, "expires_at", rfc(now.Add(48*time.Hour)))
	s.grant(euro, user, "expires_at", nil)
	s.grant(percent, user, "expires_at", rfc(now.Add(72*time.Hour)))
	s.grant(yuan, user, "expires_at", rfc(now.Add(96*time.Hour)), "valid_from", rfc(now.Add(90*time.Hour)))
	s.verb("lock", s.name("order"), []string{s.grant(yuan, user)}, "user_id", user).ok()
	r := s.get(api.ScopeRead, "/v1/users/"+user+"/coupons/summary").ok()
	require.Equal(s, 4, r.number("usable"))
	require.Equal(s, 1, r.number("ending_within_24h"))
	require.Equal(s, soon, r.instant("next_end"))
	require.Equal(s, []string{"CNY", "EUR"}, r.texts("currency", "value"))
	require.Equal(s, 1000, r.number("value", 0, "amount"))
	require.Equal(s, false, r.get("more"))
	r = s.get(api.ScopeRead, "/v1/users/"+s.name("user")+"/coupons/summary").ok()
	require.Equal(s, 0, r.number("usable"))
	require.Nil(s, r.get("next_end"))
	require.Empty(s, r.list("value"))
}

func best(s *site) {
	user, now := s.name("user"), s.now().Truncate(time.Second)
	amount := s.grant(s.template(), user, "expires_at", rfc(now.Add(2*time.Hour)))
	sooner := s.grant(s.template(), user, "expires_at", rfc(now.Add(time.Hour)))
	percent := s.grant(s.template("offer", object{"kind": "percent", "basis_points": 1000, "cap": 900}), user)
	books := s.grant(s.template("value", 2000, "offer", object{"kind": "amount", "scopes": []string{"books"}}), user)
	dear := s.grant(s.template("value", 5000, "offer", object{"kind": "amount", "min_spend": 100_000}), user)
	euro := s.grant(s.template("currency", "EUR"), user)
	path := "/v1/users/" + user + "/coupons/best"
	r := s.post(api.ScopeRead, path, object{"amount": 6000, "currency": "CNY"}).ok()
	require.Equal(s, percent, r.text("best", "coupon", "coupon_id"))
	require.Equal(s, 600, r.number("best", "discount"))
	others := map[string]string{}
	for i := range r.list("others") {
		others[r.text("others", i, "coupon", "coupon_id")] = r.text("others", i, "reason")
	}
	require.Equal(s, "less_off", others[amount])
	require.Len(s, others, 5)
	for _, id := range []string{books, dear, euro} {
		require.NotEmpty(s, others[id])
		require.NotEqual(s, "less_off", others[id])
	}
	r = s.post(api.ScopeRead, path, object{"amount": 600, "currency": "CNY"}).ok()
	require.Equal(s, sooner, r.text("best", "coupon", "coupon_id"), "of equals the one that ends first")
	r = s.post(api.ScopeRead, path, object{"amount": 60000, "currency": "CNY"}).ok()
	require.Equal(s, 900, r.number("best", "discount"), "capped")
	r = s.post(api.ScopeRead, path, object{"amount": 6000, "currency": "CNY", "items": []object{{"amount": 1500, "scopes": []string{"books"}}, {"amount": 4500}}}).ok()
	require.Equal(s, books, r.text("best", "coupon", "coupon_id"))
	require.Equal(s, 1500, r.number("best", "discount"), "of the books alone")
	require.Nil(s, s.post(api.ScopeRead, path, object{"amount": 6000, "currency": "USD"}).ok().get("best"))
	for _, bad := range []object{
		{"currency": "CNY"},
		{"amount": -1, "currency": "CNY"},
		{"amount": 1, "currency": "x"},
		{"amount": 1, "currency": "CNY", "x": 1},
		{"amount": 1, "currency": "CNY", "scopes": []string{"a"}, "items": []object{{"amount": 1}}},
	} {
		s.post(api.ScopeRead, path, bad).refused(http.StatusBadRequest, "bad_request")
	}
}

func validation(s *site) {
	user, order := s.name("user"), s.name("order")
	id := s.grant(s.template("offer", object{"kind": "amount", "min_spend": 1000}), user)
	path := "/v1/coupons/" + id + "/validate"
	check := func(code string, body object) reply {
		s.Helper()
		r := s.post(api.ScopeOrder, path, body).ok()
		require.Equal(s, code, r.text("code"), "%s", r.raw)
		require.Equal(s, code == "", r.get("usable"))
		return r
	}
	check("", object{"user_id": user})
	r := check("", object{"user_id": user, "amount": 2000, "currency": "CNY"})
	require.Equal(s, 500, r.number("discount"))
	require.Equal(s, 2000, r.number("applies_to"))
	below := s.post(api.ScopeRead, path, object{"user_id": user, "amount": 999, "currency": "CNY"}).ok()
	require.Equal(s, false, below.get("usable"))
	require.NotEmpty(s, below.text("code"))
	s.verb("lock", order, []string{id}, "user_id", user).ok()
	check("", object{"user_id": user, "order_id": order})
	require.Equal(s, "locked", check("locked_by_other_order", object{"user_id": user}).text("state"))
	s.verb("redeem", order, []string{id}, "user_id", user).ok()
	check("already_used", object{"user_id": user})
	require.Equal(s, 3, s.coupon(id).number("version"), "asking changes nothing")
	s.post(api.ScopeRead, path, object{"user_id": s.name("user")}).refused(http.StatusNotFound, "not_found")
	s.post(api.ScopeRead, path, object{}).refused(http.StatusBadRequest, "bad_request", "user_id")
	s.post(api.ScopeRead, path, object{"user_id": user, "currency": "CNY"}).refused(http.StatusBadRequest, "bad_request", "body.amount")
	s.post(api.ScopeRead, "/v1/coupons/999999999/validate", object{"user_id": user}).refused(http.StatusNotFound, "not_found")
}

func lists(s *site) {
	tpl, batch, now := s.template(), s.name("batch"), s.now().Truncate(time.Second)
	var all, inBatch []string
	for i := range 7 {
		more := []any{"expires_at", rfc(now.Add(time.Duration(10-i) * time.Hour))}
		if i%2 == 0 {
			more = append(more, "batch_id", batch)
		}
		id := s.grant(tpl, s.name("user"), more...)
		all = append(all, id)
		if i%2 == 0 {
			inBatch = append(inBatch, id)
		}
	}
	s.post(api.ScopeOps, "/v1/coupons/"+all[2]+"/void", object{"reason": "r"}).ok()
	for _, limit := range []int{1, 3, 200} {
		ids, _ := s.walk(api.ScopeOps, fmt.Sprintf("/v1/coupons?template_id=%s&limit=%d", tpl, limit))
		require.Equal(s, all, ids, "by id")
		ids, _ = s.walk(api.ScopeOps, fmt.Sprintf("/v1/coupons?batch_id=%s&limit=%d", batch, limit))
		require.Equal(s, inBatch, ids)
		ids, _ = s.walk(api.ScopeOps, fmt.Sprintf("/v1/coupons?template_id=%s&state=voided&limit=%d", tpl, limit))
		require.Equal(s, []string{all[2]}, ids)
		window := fmt.Sprintf("&ends_from=%s&ends_to=%s", url.QueryEscape(rfc(now.Add(5*time.Hour))), url.QueryEscape(rfc(now.Add(7*time.Hour))))
		ids, _ = s.walk(api.ScopeOps, fmt.Sprintf("/v1/coupons?template_id=%s&limit=%d%s", tpl, limit, window))
		require.Equal(s, []string{all[4], all[5]}, ids, "from inclusive, to exclusive")
	}
	ids, _ := s.walk(api.ScopeOps, "/v1/coupons?state=voided&limit=200")
	require.Contains(s, ids, all[2])
	s.get(api.ScopeOps, "/v1/coupons").refused(http.StatusBadRequest, "bad_request")
	for _, bad := range []string{"template_id=x", "state=gone&template_id=1", "template_id=1&ends_from=soon", "template_id=1&limit=-1", "template_id=1&template_id=2"} {
		s.get(api.ScopeOps, "/v1/coupons?"+bad).refused(http.StatusBadRequest, "bad_request")
	}
	from, to := url.QueryEscape(rfc(now.Add(time.Hour))), url.QueryEscape(rfc(now))
	s.get(api.ScopeOps, "/v1/coupons?template_id="+tpl+"&ends_from="+from+"&ends_to="+to).refused(http.StatusBadRequest, "bad_request", "ends_to")
}

func csvList(s *site) {
	tpl, user := s.template(), s.name("=user") // a spreadsheet must not take it for a formula
	a, b := s.grant(tpl, user), s.grant(tpl, user)
	r := s.get(api.ScopeOps, "/v1/coupons.csv?template_id="+tpl).ok()
	require.Contains(s, r.header.Get("Content-Type"), "text/csv")
	rows, err := csv.NewReader(strings.NewReader(string(r.raw))).ReadAll()
	require.NoError(s, err)
	require.Len(s, rows, 3)
	at := slices.Index(rows[0], "coupon_id")
	require.GreaterOrEqual(s, at, 0, "%v", rows[0])
	require.Equal(s, []string{a, b}, []string{rows[1][at], rows[2][at]})
	piece := s.get(api.ScopeOps, "/v1/coupons.csv?limit=1&template_id="+tpl).ok()
	require.NotEmpty(s, piece.header.Get("X-Next-Page-Token"))
	s.get(api.ScopeOps, "/v1/coupons.csv").refused(http.StatusBadRequest, "bad_request")
}

func pages(s *site) {
	tpl, user := s.template(), s.name("user")
	for range 3 {
		s.grant(tpl, user)
	}
	path := "/v1/users/" + user + "/coupons?limit=2"
	next := s.get(api.ScopeRead, path).ok().text("next_page_token")
	require.NotEmpty(s, next)
	later := s.grant(tpl, user) // what comes behind the place is found, and what was shown is not shown again
	ids := s.get(api.ScopeRead, path+"&page_token="+next).ok().texts("coupon_id", "coupons")
	require.Equal(s, later, ids[len(ids)-1])
	require.Len(s, ids, 2)
	for _, bad := range []string{
		path + "&page_token=x", path + "&page_token=" + next[1:], path + "&page_token=" + next + "%0A", path + "&page_token=" + next + "&state=unused",
		"/v1/users/" + s.name("user") + "/coupons?limit=2&page_token=" + next,
	} {
		s.get(api.ScopeRead, bad).refused(http.StatusBadRequest, "bad_request", "query.page_token")
	}
	s.get(api.ScopeOps, "/v1/coupons?template_id="+tpl+"&page_token="+next).refused(http.StatusBadRequest, "bad_request", "query.page_token")
}
