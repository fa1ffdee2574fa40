package conform

import (
	"fmt"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

func (s *site) ahead(id string, body object) reply {
	s.Helper()
	return s.post(api.ScopeOps, "/v1/sandbox/coupons/"+id+"/forward", body)
}

func forwardEnd(s *site) {
	user := s.name("user")
	id := s.grant(s.template(), user)
	end := s.coupon(id).instant("expires_at")
	r := s.ahead(id, object{"what": "end", "in_seconds": 2}).ok()
	at := r.instant("at")
	require.WithinRange(s, at, r.instant("now").Add(2*time.Second), r.instant("now").Add(3*time.Second))
	require.Equal(s, at, r.instant("expires_at"))
	require.Equal(s, 2, r.number("version"))
	require.Equal(s, "unused", r.text("state"))
	steps := s.get(api.ScopeOps, "/v1/coupons/"+id+"/timeline").ok()
	require.Equal(s, "sandbox", steps.text("steps", 1, "actor"))
	require.Contains(s, steps.text("steps", 1, "reason"), "forward end")
	require.Equal(s, end, steps.instant("steps", 1, "previous_expires_at"))
	s.Until(s, at)
	c := s.coupon(id)
	require.Equal(s, "expired", c.text("state"))
	require.Equal(s, at, c.instant("expires_at"))
	require.Equal(s, []string{"coupon.issued", "coupon.extended", "coupon.expired"}, s.Heard(s, id))
	s.ahead(id, object{"what": "end", "in_seconds": 1}).refused(http.StatusConflict, "expired")

	never := s.grant(s.template("rule", object{"kind": "never"}), user)
	require.NotNil(s, s.ahead(never, object{"what": "end", "in_seconds": 3600}).ok().get("expires_at"))
}

func forwardLock(s *site) {
	user, order := s.name("user"), s.name("order")
	tpl := s.template()
	id := s.grant(tpl, user)
	s.ahead(id, object{"what": "lock", "in_seconds": 1}).refused(http.StatusConflict, "not_locked")
	s.verb("lock", order, []string{id}, "user_id", user).ok()
	r := s.ahead(id, object{"what": "lock", "in_seconds": 1}).ok()
	require.Equal(s, r.instant("at"), r.instant("lock_until"))
	require.Equal(s, order, r.text("order_id"))
	s.Until(s, r.instant("at"))
	c := s.coupon(id)
	require.Equal(s, []string{"unused", "", "4"}, []string{c.text("state"), c.text("order_id"), fmt.Sprint(c.number("version"))})
	require.Nil(s, c.get("lock_until"))
	require.Equal(s, []string{"coupon.issued", "coupon.locked", "coupon.locked", "coupon.released"}, s.Heard(s, id))

	capped := s.grant(tpl, user)
	s.verb("lock", order, []string{capped}, "user_id", user).ok()
	r = s.ahead(capped, object{"what": "lock", "in_seconds": 86_400}).ok()
	require.Equal(s, r.instant("expires_at").Add(30*time.Minute), r.instant("at"), "no further than a lock may reach")
	s.verb("redeem", order, []string{capped}, "user_id", user).ok()
	s.ahead(capped, object{"what": "lock", "in_seconds": 1}).refused(http.StatusConflict, "already_used")
}

func forwardReminder(s *site) {
	user := s.name("user")
	tpl := s.template("rule", object{"kind": "after", "after": "48h"}) // -1d is next
	id := s.grant(tpl, user)
	r := s.ahead(id, object{"what": "reminder", "in_seconds": 5}).ok()
	require.Equal(s, r.instant("at").Add(24*time.Hour), r.instant("expires_at"), "so that the next reminder's instant comes")
	other := s.grant(tpl, user)
	r = s.ahead(other, object{"what": "reminder", "in_seconds": 1, "offset": "-30m"}).ok()
	require.Equal(s, r.instant("at").Add(30*time.Minute), r.instant("expires_at"))
	s.Until(s, r.instant("at"))
	require.Equal(s, []string{"coupon.issued", "coupon.extended"}, s.Heard(s, other))
	require.Contains(s, s.Reminded(s, other), fmt.Sprintf("%s:%d:expiring:-30m", other, r.instant("expires_at").Unix()))
	held := s.grant(tpl, user)
	s.verb("lock", s.name("order"), []string{held}, "user_id", user).ok()
	s.ahead(held, object{"what": "reminder", "in_seconds": 1}).refused(http.StatusConflict, "locked")
	s.ahead(s.grant(s.template("reminders", "none"), user), object{"what": "reminder", "in_seconds": 1}).refused(http.StatusBadRequest, "invalid")
}

func forwardFaults(s *site) {
	user := s.name("user")
	id := s.grant(s.template(), user)
	for _, c := range []struct {
		body  object
		names string
	}{
		{object{"in_seconds": 1}, "what"},
		{object{"what": "time", "in_seconds": 1}, "body.what"},
		{object{"what": "end"}, "in_seconds"},
		{object{"what": "end", "in_seconds": 0}, "body.in_seconds"},
		{object{"what": "end", "in_seconds": -5}, "body.in_seconds"},
		{object{"what": "end", "in_seconds": 31_622_401}, "body.in_seconds"},
		{object{"what": "end", "in_seconds": 1.5}, "in_seconds"},
		{object{"what": "end", "in_seconds": 1, "offset": "-30m"}, "offset"},
		{object{"what": "reminder", "in_seconds": 1, "offset": "soon"}, "offset"},
		{object{"what": "end", "in_seconds": 1, "x": 1}, "body.x"},
	} {
		s.ahead(id, c.body).refused(http.StatusBadRequest, "bad_request", c.names)
	}
	s.ahead(id, object{"what": "reminder", "in_seconds": 1, "offset": "-7d"}).refused(http.StatusBadRequest, "invalid", "-7d")
	s.ahead("999999999", object{"what": "end", "in_seconds": 1}).refused(http.StatusNotFound, "not_found")
	s.ahead("x", object{"what": "end", "in_seconds": 1}).refused(http.StatusBadRequest, "bad_request", "path.coupon_id")
	require.Equal(s, 1, s.coupon(id).number("version"))
	k := s.name("idem")
	first := s.post(api.ScopeOps, "/v1/sandbox/coupons/"+id+"/forward", object{"what": "end", "in_seconds": 600}, "Idempotency-Key", k).ok()
	again := s.post(api.ScopeOps, "/v1/sandbox/coupons/"+id+"/forward", object{"what": "end", "in_seconds": 600}, "Idempotency-Key", k).ok()
	require.Equal(s, string(first.raw), string(again.raw))
}
