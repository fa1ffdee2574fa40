package conform

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

func life(s *site) {
	tpl, user := s.template(), s.name("user")
	id, order := s.grant(tpl, user), s.name("order")
	ids := []string{id}
	r := s.verb("lock", order, ids, "user_id", user, "lock_for", "90s").ok()
	require.Equal(s, "locked", r.text("coupons", 0, "state"))
	require.Equal(s, order, r.text("coupons", 0, "order_id"))
	require.Equal(s, false, r.get("coupons", 0, "repeated"))
	until := r.instant("coupons", 0, "lock_until")
	require.WithinRange(s, until, r.instant("now").Add(90*time.Second), r.instant("now").Add(91*time.Second))
	require.Equal(s, r.instant("now"), r.instant("coupons", 0, "locked_at"))
	again := s.verb("lock", order, ids, "user_id", user, "lock_for", "1h").ok()
	require.Equal(s, true, again.get("coupons", 0, "repeated"))
	require.Equal(s, until, again.instant("coupons", 0, "lock_until"), "a repeat is answered as it stands")

	r = s.verb("renew", order, ids, "lock_for", "40m").ok()
	require.True(s, r.instant("coupons", 0, "lock_until").After(until))
	require.Equal(s, 3, r.number("coupons", 0, "version"))
	r = s.verb("renew", order, ids, "lock_for", "1s").ok()
	require.Equal(s, true, r.get("coupons", 0, "repeated"), "a renewal never takes time away")

	r = s.verb("redeem", order, ids, "user_id", user).ok()
	require.Equal(s, "used", r.text("coupons", 0, "state"))
	require.Equal(s, r.instant("now"), r.instant("coupons", 0, "used_at"))
	require.Nil(s, r.get("coupons", 0, "lock_until"))
	require.Equal(s, true, s.verb("redeem", order, ids, "user_id", user).ok().get("coupons", 0, "repeated"))

	part := s.verb("refund", order, ids, "partial", true).ok()
	require.Equal(s, "used", part.text("coupons", 0, "state"))
	require.NotEmpty(s, part.text("coupons", 0, "note"))
	r = s.verb("refund", order, ids).ok()
	require.Equal(s, "unused", r.text("coupons", 0, "state"))
	require.Empty(s, r.text("coupons", 0, "order_id"))
	require.Nil(s, r.get("coupons", 0, "used_at"))
	require.Equal(s, true, s.verb("refund", order, ids).ok().get("coupons", 0, "repeated"))
	late := s.verb("redeem", order, ids, "user_id", user).ok()
	require.Equal(s, true, late.get("coupons", 0, "repeated"), "a late repeat burns nothing")
	require.Equal(s, "unused", late.text("coupons", 0, "state"))

	other := s.name("order")
	s.verb("lock", other, ids, "user_id", user).ok()
	r = s.verb("release", other, ids, "user_id", user).ok()
	require.Equal(s, "unused", r.text("coupons", 0, "state"))
	require.Equal(s, true, s.verb("release", other, ids).ok().get("coupons", 0, "repeated"))
	require.Equal(s, []string{
		"coupon.issued", "coupon.locked", "coupon.locked", "coupon.used", "coupon.refunded", "coupon.locked", "coupon.released",
	}, s.Heard(s, id))
}

func allOrNone(s *site) {
	tpl, user := s.template(), s.name("user")
	a, b, c := s.grant(tpl, user), s.grant(tpl, user), s.grant(tpl, s.name("user"))
	mine, theirs := s.name("order"), s.name("order")
	s.verb("lock", theirs, []string{b}, "user_id", user).ok()
	r := s.verb("lock", mine, []string{a, b}, "user_id", user).refused(http.StatusConflict, "locked_by_other_order", b)
	require.Equal(s, b, r.text("coupon_id"))
	require.Equal(s, "locked", r.text("state"))
	require.Equal(s, []string{a, b}, r.texts("coupon_id", "coupons"))
	require.Equal(s, []string{"", "locked_by_other_order"}, r.texts("code", "coupons"))
	require.Equal(s, []string{"unused", "locked"}, r.texts("state", "coupons"))
	require.Equal(s, "unused", s.coupon(a).text("state"), "nothing moved")

	r = s.verb("lock", mine, []string{a, c}, "user_id", user).refused(http.StatusNotFound, "not_found")
	require.Empty(s, r.text("coupons", 1, "state"), "another user's coupon is none")
	s.verb("lock", mine, []string{a, "999999999"}, "user_id", user).refused(http.StatusNotFound, "not_found")
	s.verb("release", theirs, []string{b}, "user_id", s.name("user")).refused(http.StatusNotFound, "not_found")

	s.verb("release", theirs, []string{b}).ok()
	s.verb("lock", mine, []string{b}, "user_id", user).ok()
	r = s.verb("lock", mine, []string{b, a}, "user_id", user).ok()
	require.Equal(s, []string{b, a}, r.texts("coupon_id", "coupons"), "in the order of the request")
	require.Equal(s, true, r.get("coupons", 0, "repeated"))
	require.Equal(s, false, r.get("coupons", 1, "repeated"))
	many := make([]string, 10)
	for i := range many {
		many[i] = s.grant(tpl, user)
	}
	require.Len(s, s.verb("redeem", s.name("order"), many, "user_id", user).ok().list("coupons"), 10)
}

func locks(s *site) {
	user := s.name("user")
	id := s.grant(s.template(), user)
	end := s.coupon(id).instant("expires_at")
	r := s.verb("lock", s.name("order"), []string{id}, "user_id", user, "lock_for", "168h").ok()
	require.Equal(s, end.Add(30*time.Minute), r.instant("coupons", 0, "lock_until"), "no further than the late-pay window beyond the end")
	id = s.grant(s.template("late_pay_policy", "strict", "late_pay_window", "0s"), user)
	r = s.verb("lock", s.name("order"), []string{id}, "user_id", user, "lock_for", "2h").ok()
	require.Equal(s, r.instant("coupons", 0, "expires_at"), r.instant("coupons", 0, "lock_until"))
	id = s.grant(s.template("rule", object{"kind": "never"}), user)
	r = s.verb("lock", s.name("order"), []string{id}, "user_id", user).ok()
	require.WithinRange(s, r.instant("coupons", 0, "lock_until"), r.instant("now").Add(30*time.Minute), r.instant("now").Add(30*time.Minute+time.Second), "by default")
}

// lockRunOut: whoever comes next meets the coupon as free.
func lockRunOut(s *site) {
	tpl, user := s.template(), s.name("user")
	a, b := s.grant(tpl, user), s.grant(tpl, user)
	first, next := s.name("order"), s.name("order")
	s.verb("lock", first, []string{a, b}, "user_id", user).ok()
	s.forward(a, "lock", 1)
	s.Until(s, s.forward(b, "lock", 1))
	require.Equal(s, "unused", s.coupon(a).text("state"))
	s.verb("renew", first, []string{a}).refused(http.StatusConflict, "not_locked")
	require.Equal(s, true, s.verb("release", first, []string{a}).ok().get("coupons", 0, "repeated"), "what it asks for has come about")
	s.verb("lock", next, []string{a}, "user_id", user).ok()
	s.verb("redeem", first, []string{a}, "user_id", user).refused(http.StatusConflict, "locked_by_other_order")
	s.verb("redeem", first, []string{b}, "user_id", user).ok()
	require.Equal(s, []string{"coupon.issued", "coupon.locked", "coupon.locked", "coupon.released", "coupon.locked"}, s.Heard(s, a))
}

func pastTheEnd(s *site) {
	user, order := s.name("user"), s.name("order")
	honour, strict := s.template(), s.template("late_pay_policy", "strict")
	paid, held, given, refused, refunded := s.grant(honour, user), s.grant(honour, user), s.grant(honour, user), s.grant(strict, user), s.grant(honour, user)
	free := s.grant(honour, user)
	locked := []string{paid, held, given, refused}
	s.verb("lock", order, locked, "user_id", user).ok()
	for _, id := range append(locked, free) {
		s.forward(id, "end", 5)
	}
	at := s.forward(refunded, "end", 5)
	s.verb("redeem", order, []string{refunded}, "user_id", user).ok()
	s.Until(s, at)

	require.Equal(s, "locked", s.coupon(held).text("state"), "a live lock shields")
	require.Equal(s, "used", s.verb("redeem", order, []string{paid}, "user_id", user).ok().text("coupons", 0, "state"))
	s.verb("redeem", order, []string{refused}, "user_id", user).refused(http.StatusConflict, "expired")
	r := s.verb("release", order, []string{given}).ok()
	require.Equal(s, "expired", r.text("coupons", 0, "state"))
	require.Equal(s, "lock", r.text("coupons", 0, "expire_cause"))
	require.NotEmpty(s, r.text("coupons", 0, "note"))
	r = s.verb("refund", order, []string{refunded}).ok()
	require.Equal(s, "expired", r.text("coupons", 0, "state"))
	require.Contains(s, r.text("coupons", 0, "note"), "expired")
	require.Equal(s, "expired", s.coupon(free).text("state"))
	require.Equal(s, []string{"coupon.issued", "coupon.extended", "coupon.expired"}, s.Heard(s, free))
	require.Equal(s, []string{"coupon.issued", "coupon.locked", "coupon.extended", "coupon.expired"}, s.Heard(s, given))
	s.verb("lock", s.name("order"), []string{free}, "user_id", user).refused(http.StatusConflict, "expired", "ended at")
}

func checkoutFaults(s *site) {
	user := s.name("user")
	id := s.grant(s.template(), user)
	eleven := make([]string, 11)
	for i := range eleven {
		eleven[i] = fmt.Sprint(i + 1)
	}
	for _, c := range []struct {
		verb  string
		ids   []string
		more  []any
		names string
	}{
		{"lock", []string{id}, nil, "user_id"},
		{"redeem", []string{id}, nil, "user_id"},
		{"lock", nil, []any{"user_id", user}, "coupon_ids"},
		{"lock", []string{}, []any{"user_id", user}, "coupon_ids"},
		{"lock", eleven, []any{"user_id", user}, "coupon_ids"},
		{"lock", []string{id, id}, []any{"user_id", user}, "coupon_ids"},
		{"lock", []string{"x"}, []any{"user_id", user}, "body.coupon_ids[0]"},
		{"lock", []string{id}, []any{"user_id", user, "lock_for", "169h"}, "lock_for"},
		{"lock", []string{id}, []any{"user_id", user, "lock_for", "-1s"}, "lock_for"},
		{"renew", []string{id}, []any{"lock_for", "soon"}, "lock_for"},
		{"redeem", []string{id}, []any{"user_id", user, "lock_for", "1m"}, "lock_for"},
		{"release", []string{id}, []any{"user_id", "a\x7f"}, "user_id"},
		{"refund", []string{id}, []any{"partial", "yes"}, "partial"},
	} {
		s.verb(c.verb, "o", c.ids, c.more...).refused(http.StatusBadRequest, "bad_request", c.names)
	}
	s.verb("burn", "o", []string{id}).refused(http.StatusNotFound, "bad_request")
	s.verb("lock", fmt.Sprintf("%0129d", 1), []string{id}, "user_id", user).refused(http.StatusBadRequest, "bad_request", "order_id")
	require.Equal(s, 1, s.coupon(id).number("version"))
	odd := "an%20order%2Fwith%20%C3%BC"
	require.Equal(s, "an order/with ü", s.verb("lock", odd, []string{id}, "user_id", user).ok().text("coupons", 0, "order_id"))
}

func operators(s *site) {
	user := s.name("user")
	tpl := s.template()
	id := s.grant(tpl, user)
	end := s.coupon(id).instant("expires_at")
	path := "/v1/coupons/" + id
	r := s.post(api.ScopeOps, path+"/extend", object{"expires_at": rfc(end.Add(time.Hour + time.Nanosecond)), "reason": "a delay of ours"}, "X-Actor", "mei").ok()
	require.Equal(s, end.Add(time.Hour+time.Second), r.instant("expires_at"))
	require.Equal(s, false, r.get("repeated"))
	require.Equal(s, true, s.post(api.ScopeOps, path+"/extend", object{"expires_at": r.text("expires_at"), "reason": "again"}).ok().get("repeated"))
	require.Nil(s, s.post(api.ScopeOps, path+"/extend", object{"expires_at": nil, "reason": "for good"}).ok().get("expires_at"))
	require.Equal(s, end, s.post(api.ScopeOps, path+"/extend", object{"expires_at": rfc(end), "reason": "not so"}).ok().instant("expires_at"))
	s.post(api.ScopeOps, path+"/extend", object{"expires_at": "2020-01-01T00:00:00Z", "reason": "r"}).refused(http.StatusBadRequest, "invalid", "expires_at")
	for _, body := range []object{
		{"expires_at": rfc(end)}, {"reason": "r"}, {"expires_at": "soon", "reason": "r"}, {"expires_at": rfc(end), "reason": ""}, {"expires_at": rfc(end), "reason": "a\x00"},
	} {
		s.post(api.ScopeOps, path+"/extend", body).refused(http.StatusBadRequest, "bad_request")
	}
	steps := s.get(api.ScopeOps, path+"/timeline").ok()
	require.Equal(s, "a delay of ours", steps.text("steps", 1, "reason"))
	require.Contains(s, steps.text("steps", 1, "actor"), "/mei")
	require.Equal(s, "admin", steps.text("steps", 1, "cause"))
	require.Equal(s, end, steps.instant("steps", 1, "previous_expires_at"))

	order := s.name("order")
	s.verb("lock", order, []string{id}, "user_id", user).ok()
	s.post(api.ScopeOps, path+"/void", object{"reason": "a mistake"}).refused(http.StatusConflict, "locked", "locked until")
	r = s.post(api.ScopeOps, path+"/void", object{"reason": "a mistake", "break_lock": true}).ok()
	require.Equal(s, "voided", r.text("state"))
	require.Equal(s, true, s.post(api.ScopeOps, path+"/void", object{"reason": "a mistake"}).ok().get("repeated"))
	s.verb("redeem", order, []string{id}, "user_id", user).refused(http.StatusConflict, "voided")
	s.post(api.ScopeOps, path+"/void", object{}).refused(http.StatusBadRequest, "bad_request", "reason")
	for _, act := range []object{{"expires_at": rfc(end), "reason": "r"}, {"reason": "r"}} {
		verb := "/void"
		if act["expires_at"] != nil {
			verb = "/extend"
		}
		s.post(api.ScopeOps, "/v1/coupons/999999999"+verb, act).refused(http.StatusNotFound, "not_found")
	}
	require.Equal(s, []string{
		"coupon.issued", "coupon.extended", "coupon.extended", "coupon.extended", "coupon.locked", "coupon.voided",
	}, s.Heard(s, id))
}

func quotaBack(s *site) {
	user := s.name("user")
	tpl := s.template("quota", 2, "per_user", 1, "quota_back", "total_and_user")
	ask := func(user string) string {
		s.Helper()
		return s.asks(object{"grant_key": s.name("key"), "template_id": tpl, "user_id": user}).ok().text("results", 0, "code")
	}
	id := s.grant(tpl, user)
	ended := s.grant(tpl, s.name("user"))
	require.Equal(s, "quota_exhausted", ask(s.name("user")))
	s.post(api.ScopeOps, "/v1/coupons/"+id+"/void", object{"reason": "r"}).ok()
	s.Settle(s)
	require.Equal(s, 1, s.get(api.ScopeOps, "/v1/templates/"+tpl).ok().number("issued"))
	require.Empty(s, ask(user), "to the user, too")
	require.Equal(s, "quota_exhausted", ask(s.name("user")))
	s.end(ended)
	s.Settle(s)
	require.Equal(s, "user_limit", ask(user))
	require.Empty(s, ask(s.name("user")))

	kept := s.template("quota", 1)
	s.post(api.ScopeOps, "/v1/coupons/"+s.grant(kept, user)+"/void", object{"reason": "r"}).ok()
	s.Settle(s)
	r := s.asks(object{"grant_key": s.name("key"), "template_id": kept, "user_id": user}).ok()
	require.Equal(s, "quota_exhausted", r.text("results", 0, "code"), "nothing by default")
}
