package api_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

func TestAnOrderFromLockToRefund(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 2)

	locked := s.verb("lock", "o1", "u1", ids, "lock_for", "10m").ok()
	require.Equal(t, []any{ids[0], ids[1]}, field(locked.coupons(), "coupon_id"))
	for _, c := range locked.coupons() {
		require.Equal(t, "locked", c["state"])
		require.Equal(t, "locked", c["stored_state"])
		require.Equal(t, "o1", c["order_id"])
		require.Equal(t, "u1", c["user_id"])
		require.Equal(t, false, c["repeated"])
		require.NotContains(t, c, "note")
		left := timeOf(t, c, "lock_until").Sub(locked.at("now"))
		require.GreaterOrEqual(t, left, 10*time.Minute)
		require.Less(t, left, 10*time.Minute+time.Second, "rounded up to a second")
	}
	again := s.verb("lock", "o1", "u1", ids, "lock_for", "20m").ok()
	require.Equal(t, []any{true, true}, field(again.coupons(), "repeated"))
	require.Equal(t, field(locked.coupons(), "lock_until"), field(again.coupons(), "lock_until"), "a repeat renews nothing")

	renewed := s.verb("renew", "o1", "", ids, "lock_for", "20m").ok()
	require.Greater(t, timeOf(t, renewed.coupons()[0], "lock_until").Sub(renewed.at("now")), 19*time.Minute)
	kept := s.verb("renew", "o1", "u1", ids, "lock_for", "1s").ok()
	require.Equal(t, []any{true, true}, field(kept.coupons(), "repeated"), "a renewal never takes time away")

	used := s.verb("redeem", "o1", "u1", ids).ok()
	require.Equal(t, []any{"used", "used"}, field(used.coupons(), "state"))
	require.Equal(t, []any{nil, nil}, field(used.coupons(), "lock_until"))
	require.NotNil(t, used.coupons()[0]["used_at"])
	require.Equal(t, []any{true, true}, field(s.verb("redeem", "o1", "u1", ids).ok().coupons(), "repeated"))

	partial := s.verb("refund", "o1", "", ids, "partial", true).ok()
	require.Equal(t, []any{"used", "used"}, field(partial.coupons(), "state"))
	require.Equal(t, "a partial refund moves no coupon", partial.coupons()[0]["note"])
	refunded := s.verb("refund", "o1", "u1", ids).ok()
	require.Equal(t, []any{"unused", "unused"}, field(refunded.coupons(), "state"))
	require.NotContains(t, refunded.coupons()[0], "note")
	require.Equal(t, []any{true, true}, field(s.verb("refund", "o1", "u1", ids).ok().coupons(), "repeated"))

	s.verb("lock", "o2", "u1", ids).ok()
	released := s.verb("release", "o2", "", ids).ok()
	require.Equal(t, []any{"unused", "unused"}, field(released.coupons(), "state"))
	require.Equal(t, []any{true, true}, field(s.verb("release", "o2", "u1", ids).ok().coupons(), "repeated"))

	// Who acted stands in the story.
	story := s.get(api.ScopeRead, "/v1/coupons/"+ids[0]+"/timeline").ok()
	var told []string
	for _, step := range story.body["steps"].([]any) {
		step := step.(object)
		told = append(told, step["from"].(string)+">"+step["to"].(string))
		if step["from"] != "" {
			require.Equal(t, "order-shop", step["actor"])
		}
	}
	require.Equal(t, "[>unused unused>locked locked>locked locked>used used>unused unused>locked locked>unused]", "["+strings.Join(told, " ")+"]")
}

func TestLocksLastHalfAnHourUnlessSaidOtherwise(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template(func(t *coupon.Template) { t.Rule = coupon.Rule{Kind: coupon.RuleNever} })
	for _, c := range []struct {
		given string
		want  time.Duration
	}{{"", 30 * time.Minute}, {"168h", 168 * time.Hour}, {"1ms", time.Second}, {"1h30m", 90 * time.Minute}} {
		ids := s.grant(template, "u1", 1)
		r := s.verb("lock", "o1", "u1", ids, "lock_for", c.given).ok()
		left := timeOf(t, r.coupons()[0], "lock_until").Sub(r.at("now"))
		require.GreaterOrEqual(t, left, c.want)
		require.Less(t, left, c.want+time.Second)
		require.Nil(t, r.coupons()[0]["expires_at"], "never is null")
	}
	ids := s.grant(template, "u1", 1)
	for _, bad := range []string{"0", "0s", "-1m", "168h0m1s", "30", "soon", "1d", "9999999999h"} {
		s.verb("lock", "o1", "u1", ids, "lock_for", bad).refused(http.StatusBadRequest, "bad_request")
		s.verb("renew", "o1", "u1", ids, "lock_for", bad).refused(http.StatusBadRequest, "bad_request")
	}
	require.Equal(t, "unused", s.get(api.ScopeRead, "/v1/coupons/"+ids[0]).ok().body["state"])
}

func TestEveryRefusalOfAVerb(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	strict := s.template(func(t *coupon.Template) { t.Terms.LatePay = coupon.Strict })
	one := func() []string { return s.grant(template, "u1", 1) }
	voided := func() []string {
		ids := one()
		s.ask(api.ScopeOps, http.MethodPost, "/v1/coupons/"+ids[0]+"/void", object{"reason": "r"}).ok()
		return ids
	}
	ended := func() []string { ids := one(); s.move(-1, 0, ids...); return ids }
	held := func(by string) []string { ids := one(); s.verb("lock", by, "u1", ids).ok(); return ids }
	used := func(by string) []string { ids := one(); s.verb("redeem", by, "u1", ids).ok(); return ids }
	for _, c := range []struct {
		name, verb  string
		ids         []string
		code, state string
	}{
		{"lock held by another", "lock", held("o9"), "locked_by_other_order", "locked"},
		{"lock ended", "lock", ended(), "expired", "expired"},
		{"lock used", "lock", used("o1"), "already_used", "used"},
		{"lock voided", "lock", voided(), "voided", "voided"},
		{"lock not begun", "lock", s.grant(template, "u1", 1, func(g *coupon.Grant) {
			g.ValidFrom, g.ExpiresAt = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), "not_yet_valid", "unused"},
		{"renew not locked", "renew", one(), "not_locked", "unused"},
		{"renew held by another", "renew", held("o9"), "locked_by_other_order", "locked"},
		{"renew ended", "renew", ended(), "expired", "expired"},
		{"redeem held by another", "redeem", held("o9"), "locked_by_other_order", "locked"},
		{"redeem used by another", "redeem", used("o9"), "already_used", "used"},
		{"redeem ended", "redeem", ended(), "expired", "expired"},
		{"redeem voided", "redeem", voided(), "voided", "voided"},
		{"redeem past the end under a strict lock", "redeem", func() []string {
			ids := s.grant(strict, "u1", 1)
			s.verb("lock", "o1", "u1", ids).ok()
			s.move(-1, 60, ids...)
			return ids
		}(), "expired", "locked"},
		{"release not locked", "release", one(), "not_locked", "unused"},
		{"release held by another", "release", held("o9"), "locked_by_other_order", "locked"},
		{"release used", "release", used("o1"), "already_used", "used"},
		{"refund not used", "refund", one(), "not_used", "unused"},
		{"refund used by another", "refund", used("o9"), "used_by_other_order", "used"},
	} {
		r := s.verb(c.verb, "o1", "u1", c.ids).refused(http.StatusConflict, c.code)
		require.Equal(t, c.state, r.body["state"], c.name)
		require.Equal(t, c.ids[0], r.body["coupon_id"], c.name)
		require.Equal(t, []any{c.ids[0]}, field(r.coupons(), "coupon_id"))
		require.Equal(t, []any{c.code}, field(r.coupons(), "code"))
		require.Equal(t, []any{c.state}, field(r.coupons(), "state"))
		require.NotEmpty(t, r.coupons()[0]["detail"])
	}
}

func TestAllOrNoneOfAnOrdersCoupons(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 10)
	s.verb("lock", "o9", "u1", ids[4:5]).ok()
	s.move(-1, 0, ids[7])
	r := s.verb("lock", "o1", "u1", ids).refused(http.StatusConflict, "locked_by_other_order")
	require.Equal(t, ids[4], r.body["coupon_id"], "the first that refused")
	require.Len(t, r.coupons(), 10)
	for i, c := range r.coupons() {
		require.Equal(t, ids[i], c["coupon_id"])
		switch i {
		case 4:
			require.Equal(t, "locked_by_other_order", c["code"])
		case 7:
			require.Equal(t, "expired", c["code"])
			require.Equal(t, "expired", c["state"])
		default:
			require.NotContains(t, c, "code")
			require.Equal(t, "unused", c["state"])
		}
	}
	require.EqualValues(t, 1, s.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 2`), "nothing moved")
}

func TestSixtyFourLocksAtOnceOneWins(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 3)
	type result struct {
		order string
		reply
	}
	results := make(chan result, 64)
	var wg sync.WaitGroup
	for i := range 64 {
		order := "o" + strconv.Itoa(i)
		wg.Go(func() {
			for {
				r := s.verb("lock", order, "u1", ids)
				if r.status == http.StatusServiceUnavailable { // busy: says when to come again, and nothing was done
					require.NotEmpty(t, r.header.Get("Retry-After"))
					continue
				}
				results <- result{order, r}
				return
			}
		})
	}
	wg.Wait()
	close(results)
	winner := ""
	for r := range results {
		if r.status == http.StatusOK {
			require.Empty(t, winner, "two orders hold the same coupon")
			winner = r.order
			continue
		}
		r.refused(http.StatusConflict, "locked_by_other_order")
	}
	require.NotEmpty(t, winner)
	require.EqualValues(t, 3, s.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 2 AND order_id = ?`, winner))
	require.EqualValues(t, 3, s.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE from_status = 1 AND to_status = 2`))
}

func TestAnotherUsersCouponIsNotThere(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 2)
	for _, verb := range []string{"lock", "renew", "redeem", "release", "refund"} {
		r := s.verb(verb, "o1", "u2", ids[:1]).refused(http.StatusNotFound, "not_found")
		require.NotContains(t, r.body, "state")
		require.NotContains(t, string(r.raw), "u1")
		absent := s.verb(verb, "o1", "u2", []string{"18446744073709551615"}).refused(http.StatusNotFound, "not_found")
		require.Equal(t, strings.ReplaceAll(string(r.raw), `"`+ids[0]+`"`, `"18446744073709551615"`),
			strings.ReplaceAll(string(absent.raw), "coupon 18446744073709551615", "coupon "+ids[0]), "not to be told apart")
	}
	s.ask(api.ScopeRead, http.MethodPost, "/v1/coupons/"+ids[0]+"/validate", object{"user_id": "u2"}).refused(http.StatusNotFound, "not_found")
	require.Empty(t, s.get(api.ScopeRead, "/v1/users/u2/coupons").ok().coupons())
	require.Equal(t, "unused", s.get(api.ScopeRead, "/v1/coupons/"+ids[0]).ok().body["state"])
	for _, path := range []string{"/v1/coupons/18446744073709551615", "/v1/coupons/18446744073709551615/timeline"} {
		s.get(api.ScopeRead, path).refused(http.StatusNotFound, "not_found")
	}
}

func TestPastTheEndItSaysSo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()

	ids := s.grant(template, "u1", 1)
	s.verb("redeem", "o1", "u1", ids).ok()
	s.move(-5, 0, ids...)
	r := s.verb("refund", "o1", "u1", ids).ok().coupons()[0]
	require.Equal(t, "expired", r["state"])
	require.Equal(t, "refund", r["expire_cause"])
	require.Contains(t, r["note"], "its end had passed")
	again := s.verb("refund", "o1", "u1", ids).ok().coupons()[0]
	require.Equal(t, true, again["repeated"])
	require.Equal(t, r["note"], again["note"])

	ids = s.grant(template, "u1", 1)
	s.verb("lock", "o2", "u1", ids).ok()
	s.move(-5, 60, ids...)
	require.Equal(t, "locked", s.get(api.ScopeRead, "/v1/coupons/"+ids[0]).ok().body["state"], "a live lock shields it")
	r = s.verb("release", "o2", "u1", ids).ok().coupons()[0]
	require.Equal(t, "expired", r["state"])
	require.Contains(t, r["note"], "its end has passed")

	// Paying under a live lock is honoured past the end.
	ids = s.grant(template, "u1", 1)
	s.verb("lock", "o3", "u1", ids).ok()
	s.move(-5, 60, ids...)
	require.Equal(t, "used", s.verb("redeem", "o3", "u1", ids).ok().coupons()[0]["state"])

	// A run-out lock is free for the next order, and its own order may still redeem.
	ids = s.grant(template, "u1", 2)
	s.verb("lock", "o4", "u1", ids).ok()
	s.move(60, -1, ids...)
	require.Equal(t, "unused", s.get(api.ScopeRead, "/v1/coupons/"+ids[0]).ok().body["state"])
	s.verb("lock", "o5", "u1", ids[:1]).ok()
	s.verb("redeem", "o4", "u1", ids[1:]).ok()
	s.verb("redeem", "o4", "u1", ids[:1]).refused(http.StatusConflict, "locked_by_other_order")
}

func TestARefusalForAPassedEndRings(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 3)
	s.move(-1, 0, ids...)
	s.verb("lock", "o1", "u1", ids).refused(http.StatusConflict, "expired")
	s.verb("redeem", "o1", "u1", ids).refused(http.StatusConflict, "expired")
	require.Eventually(t, func() bool { return len(s.bell.messages()) == 3 }, patience, time.Millisecond)
	require.Equal(t, 3, lazyCount(t, s.reg, "repeated"))
	require.EqualValues(t, 3, s.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1`), "who asks settles nothing")
}

func TestIdsOfOrdersAndUsersAreAnyText(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	template := s.template()
	for _, id := range []string{ // all but a lone slash, which no router of the standard library's takes for a segment
		"a/b", "//", "..", ".", "a b", " ", "日本 №7", "a%2Fb", "a+b", "a?b#c", `"'\`, strings.Repeat("x", 128), "e\u0301", "\u00e9", "A", "a", "a ",
	} {
		path := "/v1/users/" + escape(id) + "/coupons"
		ids := s.grant(template, id, 1)
		body := object{"user_id": id, "coupon_ids": ids}
		r := s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/"+escape(id)+"/lock", body).ok()
		require.Equal(t, id, r.coupons()[0]["order_id"])
		require.Equal(t, id, r.coupons()[0]["user_id"])
		wallet := s.get(api.ScopeRead, path).ok()
		require.Equal(t, []any{ids[0]}, field(wallet.coupons(), "coupon_id"), "of %q alone", id)
		s.get(api.ScopeRead, path+"/summary").ok()
	}
	ids := s.grant(template, "u1", 1)
	for _, bad := range []string{"%00", "a%00b", "%0A", "%FF", "%C3%28", "%EF%BF%BD", "%7F", strings.Repeat("x", 129), strings.Repeat("%C3%A9", 65)} {
		s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/"+bad+"/lock", object{"user_id": "u1", "coupon_ids": ids}).refused(http.StatusBadRequest, "bad_request")
		s.get(api.ScopeRead, "/v1/users/"+bad+"/coupons").refused(http.StatusBadRequest, "bad_request")
		s.get(api.ScopeRead, "/v1/users/"+bad+"/coupons/summary").refused(http.StatusBadRequest, "bad_request")
		s.ask(api.ScopeRead, http.MethodPost, "/v1/users/"+bad+"/coupons/best", object{"amount": 1, "currency": "CNY"}).refused(http.StatusBadRequest, "bad_request")
	}
}

// escape escapes every byte that may have a meaning, dots too.
func escape(s string) string { return strings.ReplaceAll(url.PathEscape(s), ".", "%2E") }

func TestWhoHoldsARowMakesOthersBusyNotWrong(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(_ *api.Config, c *store.Config) { c.LockWait = time.Second })
	ids := s.grant(s.template(), "u1", 1)
	tx, err := s.db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `SELECT id FROM coupon WHERE id = `+ids[0]+` FOR UPDATE`)
	require.NoError(t, err)
	r := s.verb("lock", "o1", "u1", ids).refused(http.StatusServiceUnavailable, "busy")
	require.Equal(t, "1", r.header.Get("Retry-After"))
	require.NoError(t, tx.Rollback())
	s.verb("lock", "o1", "u1", ids).ok()
}

func TestBadRequestsOfVerbsNameTheFault(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	ids := s.grant(s.template(), "u1", 11)
	post := func(verb string, body any) reply {
		return s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/o1/"+verb, body)
	}
	for _, c := range []struct {
		name, verb string
		body       any
		want       string
	}{
		{"no body", "lock", nil, ""},
		{"no JSON", "lock", "{", ""},
		{"an array", "lock", "[]", ""},
		{"no user", "lock", object{"coupon_ids": ids[:1]}, "user_id"},
		{"an empty user", "lock", object{"user_id": "", "coupon_ids": ids[:1]}, "user_id"},
		{"no user to redeem", "redeem", object{"coupon_ids": ids[:1]}, "user_id"},
		{"a control character", "lock", object{"user_id": "u\x00", "coupon_ids": ids[:1]}, "user_id"},
		{"no coupons", "lock", object{"user_id": "u1"}, "coupon_ids"},
		{"null", "lock", object{"user_id": "u1", "coupon_ids": nil}, "coupon_ids"},
		{"none", "lock", object{"user_id": "u1", "coupon_ids": []string{}}, "coupon_ids"},
		{"too many", "lock", object{"user_id": "u1", "coupon_ids": ids}, "coupon_ids"},
		{"twice", "lock", object{"user_id": "u1", "coupon_ids": []string{ids[0], ids[0]}}, "coupon_ids"},
		{"a number", "lock", object{"user_id": "u1", "coupon_ids": []int{1}}, "coupon_ids"},
		{"zero", "lock", object{"user_id": "u1", "coupon_ids": []string{"0"}}, "coupon_ids[0]"},
		{"leading zero", "lock", object{"user_id": "u1", "coupon_ids": []string{ids[0], "01"}}, "coupon_ids[1]"},
		{"a sign", "lock", object{"user_id": "u1", "coupon_ids": []string{"+1"}}, "coupon_ids[0]"},
		{"too large", "lock", object{"user_id": "u1", "coupon_ids": []string{"18446744073709551616"}}, "coupon_ids[0]"},
		{"unknown field", "lock", object{"user_id": "u1", "coupon_ids": ids[:1], "partial": true}, "partial"},
		{"unknown field of redeem", "redeem", object{"user_id": "u1", "coupon_ids": ids[:1], "lock_for": "1m"}, "lock_for"},
		{"a name twice", "lock", `{"user_id":"u1","user_id":"u2","coupon_ids":["1"]}`, "user_id"},
		{"a duration as a number", "lock", object{"user_id": "u1", "coupon_ids": ids[:1], "lock_for": 30}, "lock_for"},
		{"not a boolean", "refund", object{"coupon_ids": ids[:1], "partial": "yes"}, "partial"},
	} {
		r := post(c.verb, c.body)
		require.Equal(t, http.StatusBadRequest, r.status, "%s: %s", c.name, r.raw)
		r.refused(http.StatusBadRequest, "bad_request")
		require.Contains(t, string(r.raw), c.want, c.name)
	}
	require.Zero(t, s.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status <> 1`))
}
