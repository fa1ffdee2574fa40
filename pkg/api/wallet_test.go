package api_test

import (
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// pages reads a list to its end.
func (s *shop) pages(scope api.Scope, path string, query url.Values) (all []object, pages int) {
	s.Helper()
	for {
		r := s.get(scope, path+"?"+query.Encode()).ok()
		all = append(all, r.coupons()...)
		pages++
		require.Less(s, pages, 1000)
		next := r.body["next_page_token"].(string)
		if next == "" {
			return all, pages
		}
		query.Set("page_token", next)
	}
}

func TestAWalletInPagesWithWhatHasEndedAmongTheExpired(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	live := s.grant(template, "u1", 3)
	for i, id := range live {
		s.move(600-60*i, 0, id)
	}
	settled := s.grant(template, "u1", 3)
	for i, id := range settled {
		s.move(-100-10*i, 0, id)
	}
	s.db.Exec(t, `UPDATE coupon SET status = 4, expired_at = UTC_TIMESTAMP(3), expire_cause = 'ladder' WHERE expires_at < UTC_TIMESTAMP(3)`)
	ended := s.grant(template, "u1", 2) // and nobody has come by
	for i, id := range ended {
		s.move(-95-10*i, 0, id)
	}
	held := s.grant(template, "u1", 2)
	s.verb("lock", "o1", "u1", held).ok()
	s.move(300, -1, held[1]) // its lock has run out
	s.grant(template, "u2", 1)

	ids := func(state string, limit int) []any {
		got, pages := s.pages(api.ScopeRead, "/v1/users/u1/coupons", url.Values{"state": {state}, "limit": {strconv.Itoa(limit)}})
		for _, c := range got {
			require.Equal(t, state, c["state"])
		}
		require.GreaterOrEqual(t, pages*limit, len(got))
		return field(got, "coupon_id")
	}
	for _, limit := range []int{1, 2, 3, 200} {
		require.Equal(t, []any{held[1], live[2], live[1], live[0]}, ids("unused", limit), "by earliest end; a run-out lock is none")
		require.Equal(t, []any{held[0]}, ids("locked", limit))
		require.Equal(t, []any{ended[0], settled[0], ended[1], settled[1], settled[2]}, ids("expired", limit), "by latest end, settled or not")
		require.Empty(t, ids("used", limit))
	}
	all, _ := s.pages(api.ScopeRead, "/v1/users/u1/coupons", url.Values{"limit": {"4"}})
	require.Len(t, all, 10)
	require.Equal(t, "unused", all[5]["stored_state"].(string)[:6])

	// Every unsettled one has rung, once: two ended, one run-out lock.
	require.Eventually(t, func() bool { return len(s.bell.messages()) == 3 }, patience, time.Millisecond)
	require.Positive(t, lazyCount(t, s.reg, "repeated"))

	first := s.get(api.ScopeRead, "/v1/users/u1/coupons?limit=1").ok().body["next_page_token"].(string)
	for name, path := range map[string]string{
		"of another user":     "/v1/users/u2/coupons?limit=1&page_token=" + first,
		"of another state":    "/v1/users/u1/coupons?limit=1&state=used&page_token=" + first,
		"of another list":     "/v1/coupons?state=unused&page_token=" + first,
		"made up":             "/v1/users/u1/coupons?page_token=AAAA",
		"cut":                 "/v1/users/u1/coupons?limit=1&page_token=" + first[:len(first)-1],
		"no limit":            "/v1/users/u1/coupons?limit=-1",
		"too large a limit":   "/v1/users/u1/coupons?limit=201",
		"no number":           "/v1/users/u1/coupons?limit=ten",
		"no state":            "/v1/users/u1/coupons?state=lost",
		"an unknown word":     "/v1/users/u1/coupons?stat=used",
		"twice":               "/v1/users/u1/coupons?limit=1&limit=2",
		"list without filter": "/v1/coupons?limit=1",
	} {
		scope := api.ScopeRead
		if path[:12] == "/v1/coupons?" {
			scope = api.ScopeOps
		}
		r := s.get(scope, path)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", name, r.raw)
		r.refused(http.StatusBadRequest, "bad_request")
	}
	require.Equal(t, all[1]["coupon_id"], s.get(api.ScopeRead, "/v1/users/u1/coupons?limit=2&page_token="+first).ok().coupons()[0]["coupon_id"],
		"the limit may change from page to page")
}

func TestASummary(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	euro := s.template(func(t *coupon.Template) {
		t.Terms.Currency, t.Terms.Value, t.Rule = "EUR", 7, coupon.Rule{Kind: coupon.RuleNever}
	})
	none := s.get(api.ScopeRead, "/v1/users/u1/coupons/summary").ok().body
	require.InDelta(t, 0, none["usable"], 0)
	require.Nil(t, none["next_end"])
	require.Equal(t, []any{}, none["value"])

	ids := s.grant(template, "u1", 4)
	s.move(2*24*3600, 0, ids[0])
	s.move(-1, 0, ids[1])
	s.verb("lock", "o1", "u1", ids[2:3]).ok()
	s.grant(euro, "u1", 1)
	r := s.get(api.ScopeRead, "/v1/users/u1/coupons/summary").ok()
	require.InDelta(t, 3, r.body["usable"], 0)
	require.InDelta(t, 1, r.body["ending_within_24h"], 0)
	require.Equal(t, false, r.body["more"])
	require.Equal(t, []any{object{"amount": 1000.0, "currency": "CNY"}, object{"amount": 7.0, "currency": "EUR"}}, r.body["value"])
	require.Less(t, r.at("next_end").Sub(r.at("now")), time.Hour+time.Second)
}

func TestTheBestCouponAndWhyNotTheOthers(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	offer := func(o coupon.Offer) uint64 { return s.template(func(t *coupon.Template) { t.Terms.Offer = o }) }
	flat := s.grant(s.template(), "u1", 1)[0]
	percent := s.grant(offer(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 2000, Cap: 1500}), "u1", 1)[0]
	dear := s.grant(offer(coupon.Offer{Kind: coupon.OfferAmount, MinSpend: 20_000}), "u1", 1)[0]
	hats := s.grant(offer(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 9000, Scopes: []string{"hats"}}), "u1", 1)[0]
	dollars := s.grant(s.template(func(t *coupon.Template) { t.Terms.Currency = "USD" }), "u1", 1)[0]
	early := s.grant(s.template(), "u1", 1, func(g *coupon.Grant) {
		g.ValidFrom, g.ExpiresAt = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	})[0]
	ended := s.grant(s.template(), "u1", 1)[0]
	s.move(-1, 0, ended)
	held := s.grant(s.template(), "u1", 1)
	s.verb("lock", "o1", "u1", held).ok()

	best := func(body object) (object, map[string]object) {
		r := s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u1/coupons/best", body).ok()
		others := map[string]object{}
		for _, o := range r.body["others"].([]any) {
			o := o.(object)
			others[o["coupon"].(object)["coupon_id"].(string)] = o
		}
		chosen, _ := r.body["best"].(object)
		return chosen, others
	}
	chosen, others := best(object{"amount": 8003, "currency": "CNY", "scopes": []string{"shoes"}})
	require.Equal(t, percent, chosen["coupon"].(object)["coupon_id"])
	require.InDelta(t, 1500, chosen["discount"], 0)
	require.Empty(t, chosen["reason"])
	for id, why := range map[string]string{
		flat: "less_off", dear: "min_spend", hats: "scope_mismatch", dollars: "currency_mismatch", early: "not_yet_valid",
	} {
		require.Equal(t, why, others[id]["reason"])
		require.Equal(t, why == "less_off", others[id]["usable"])
	}
	require.NotContains(t, others, ended)
	require.NotContains(t, others, held[0])

	chosen, _ = best(object{"amount": 8003, "currency": "CNY", "items": []object{{"amount": 4001, "scopes": []string{"hats"}}, {"amount": 4002}}})
	require.Equal(t, hats, chosen["coupon"].(object)["coupon_id"])
	require.InDelta(t, 3600, chosen["discount"], 0, "rounded down")
	require.InDelta(t, 4001, chosen["applies_to"], 0)

	chosen, others = best(object{"amount": 0, "currency": "CNY"})
	require.Nil(t, chosen)
	require.Equal(t, "nothing_off", others[flat]["reason"])
	chosen, others = best(object{"amount": 100, "currency": "JPY"})
	require.Nil(t, chosen)
	require.Len(t, others, 6)
	require.Nil(t, s.ask(api.ScopeRead, http.MethodPost, "/v1/users/nobody/coupons/best", object{"amount": 1, "currency": "CNY"}).ok().body["best"])

	for name, body := range map[string]any{
		"nothing": object{}, "no currency": object{"amount": 1}, "negative": object{"amount": -1, "currency": "CNY"}, "small letters": object{"amount": 1, "currency": "cny"},
		"a fraction": object{"amount": 1.5, "currency": "CNY"}, "a text": object{"amount": "1", "currency": "CNY"},
		"too much": `{"amount":9223372036854775808,"currency":"CNY"}`, "huge": `{"amount":1e300,"currency":"CNY"}`,
		"an empty scope": object{"amount": 1, "currency": "CNY", "scopes": []string{""}}, "items beyond the amount": object{
			"amount": 1, "currency": "CNY", "items": []object{{"amount": 2}},
		}, "both": object{"amount": 1, "currency": "CNY", "scopes": []string{"a"}, "items": []object{{"amount": 1}}},
		"257 scopes": object{"amount": 1, "currency": "CNY", "scopes": make([]string, 257)},
	} {
		r := s.ask(api.ScopeRead, http.MethodPost, "/v1/users/u1/coupons/best", body)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", name, r.raw)
	}
}

func TestValidateSaysWhetherAndWhyNot(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template(func(t *coupon.Template) {
		t.Terms.Offer = coupon.Offer{Kind: coupon.OfferAmount, MinSpend: 1000, Scopes: []string{"hats"}}
	})
	ids := s.grant(template, "u1", 3)
	s.verb("lock", "o1", "u1", ids[1:2]).ok()
	s.move(-1, 0, ids[2])
	for _, c := range []struct {
		name   string
		id     string
		body   object
		code   string
		off    int
		usable bool
		state  string
	}{
		{"no cart", ids[0], object{}, "", 0, true, "unused"},
		{"a cart", ids[0], object{"amount": 1000, "currency": "CNY", "scopes": []string{"hats"}}, "", 500, true, "unused"},
		{"too little", ids[0], object{"amount": 999, "currency": "CNY", "scopes": []string{"hats"}}, "min_spend", 0, false, "unused"},
		{"too little of it", ids[0], object{"amount": 5000, "currency": "CNY", "items": []object{{"amount": 999, "scopes": []string{"hats"}}}}, "min_spend", 0, false, "unused"},
		{"other things", ids[0], object{"amount": 1000, "currency": "CNY", "scopes": []string{"shoes"}}, "scope_mismatch", 0, false, "unused"},
		{"other money", ids[0], object{"amount": 1000, "currency": "USD", "scopes": []string{"hats"}}, "currency_mismatch", 0, false, "unused"},
		{"held", ids[1], object{}, "locked_by_other_order", 0, false, "locked"},
		{"held by another", ids[1], object{"order_id": "o2"}, "locked_by_other_order", 0, false, "locked"},
		{"held by this one", ids[1], object{"order_id": "o1"}, "", 0, true, "locked"},
		{"ended", ids[2], object{"amount": 1, "currency": "CNY"}, "expired", 0, false, "expired"},
	} {
		c.body["user_id"] = "u1"
		for _, scope := range []api.Scope{api.ScopeRead, api.ScopeOrder} {
			r := s.ask(scope, http.MethodPost, "/v1/coupons/"+c.id+"/validate", c.body).ok()
			require.Equal(t, c.usable, r.body["usable"], c.name)
			require.Equal(t, c.code, r.body["code"], c.name)
			require.Equal(t, c.state, r.body["state"], c.name)
			require.InDelta(t, c.off, r.body["discount"], 0, c.name)
			require.Equal(t, c.id, r.body["coupon"].(object)["coupon_id"])
		}
	}
	for name, body := range map[string]any{
		"no user": object{}, "currency alone": object{"user_id": "u1", "currency": "CNY"}, "amount alone": object{"user_id": "u1", "amount": 1},
		"scopes alone": object{"user_id": "u1", "scopes": []string{"a"}}, "an order with a control character": object{"user_id": "u1", "order_id": "\n"},
	} {
		r := s.ask(api.ScopeRead, http.MethodPost, "/v1/coupons/"+ids[0]+"/validate", body)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", name, r.raw)
	}
	require.Equal(t, "unused", s.get(api.ScopeRead, "/v1/coupons/"+ids[0]).ok().body["state"], "nothing is reserved")
}
