package conform

import (
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// scene is a coupon as a verb meets it: what was done to it before, and what each verb answers then. The answers are those of
// docs/transitions.md: → and the state, a code, or repeat.
type scene struct {
	name   string
	terms  []any
	grant  func(now time.Time) []any
	before []string // verbs of the own or the other order, and void
	ends   bool     // then its end passes, in any case after all of before but after
	after  []string
	lock   bool // then its lock runs out, and is settled
	want   string
}

// The verbs, in the order of a scene's answers.
const tableVerbs = "lock renew redeem release refund extend void"

func scenes() []scene {
	later := func(now time.Time) []any { return []any{"valid_from", rfc(now.Add(30 * time.Minute))} }
	strict := []any{"late_pay_policy", "strict"}
	return []scene{
		{name: "unused", want: "→locked not_locked →used not_locked not_used →unused →voided"},
		{name: "not yet valid", grant: later, want: "not_yet_valid not_locked not_yet_valid not_locked not_used →unused →voided"},
		{name: "past its end", ends: true, want: "expired expired expired expired not_used expired expired"},
		{name: "locked by own", before: []string{"own lock"}, want: "repeat →locked →used →unused not_used →locked locked"},
		{name: "locked by own, past its end", before: []string{"own lock"}, ends: true, want: "repeat →locked →used →expired not_used →locked locked"},
		{name: "the same, strict", terms: strict, before: []string{"own lock"}, ends: true, want: "repeat →locked expired →expired not_used →locked locked"},
		{name: "locked by own, run out", before: []string{"own lock"}, lock: true, want: "→locked not_locked →used repeat not_used →unused →voided"},
		{
			name: "locked by another", before: []string{"other lock"},
			want: "locked_by_other_order locked_by_other_order locked_by_other_order locked_by_other_order not_used →locked locked",
		},
		{name: "locked by another, run out", before: []string{"other lock"}, lock: true, want: "→locked not_locked →used not_locked not_used →unused →voided"},
		{name: "used by own", before: []string{"own redeem"}, want: "already_used already_used repeat already_used →unused already_used already_used"},
		{
			name: "used by own, past its end", ends: true, after: []string{"own redeem"},
			want: "already_used already_used repeat already_used →expired already_used already_used",
		},
		{
			name: "used by another", before: []string{"other redeem"},
			want: "already_used already_used already_used already_used used_by_other_order already_used already_used",
		},
		{name: "refunded", before: []string{"own redeem", "own refund"}, want: "→locked not_locked repeat not_locked repeat →unused →voided"},
		{name: "released", before: []string{"own lock", "own release"}, want: "→locked not_locked →used repeat not_used →unused →voided"},
		{name: "voided", before: []string{"void"}, want: "voided voided voided voided not_used voided repeat"},
	}
}

// everyVerb makes a coupon for every verb in every scene.
func everyVerb(s *site) {
	verbs := strings.Fields(tableVerbs)
	user, now := s.name("user"), s.now()
	var latest time.Time
	ids := map[string]string{}
	for _, sc := range scenes() {
		tpl := s.template(sc.terms...)
		require.Len(s, strings.Fields(sc.want), len(verbs), sc.name)
		for _, verb := range verbs {
			var more []any
			if sc.grant != nil {
				more = sc.grant(now)
			}
			id := s.grant(tpl, user, more...)
			ids[sc.name+verb] = id
			s.did(id, user, sc.before)
			if sc.ends {
				at := s.forward(id, "end", 5)
				latest = latestOf(latest, at)
			}
			s.did(id, user, sc.after)
			if sc.lock {
				at := s.forward(id, "lock", 1)
				latest = latestOf(latest, at)
			}
		}
	}
	s.Until(s, latest)
	for _, sc := range scenes() {
		want := strings.Fields(sc.want)
		for i, verb := range verbs {
			id := ids[sc.name+verb]
			before := s.coupon(id)
			r := s.do("own-"+id, verb, id, user)
			what := sc.name + ": " + verb
			state, repeated := r.state()
			switch {
			case strings.HasPrefix(want[i], "→"):
				require.Equal(s, http.StatusOK, r.status, "%s: %s", what, r.raw)
				require.Equal(s, strings.TrimPrefix(want[i], "→"), state, what)
				require.Equal(s, false, repeated, what)
			case want[i] == "repeat":
				require.Equal(s, http.StatusOK, r.status, "%s: %s", what, r.raw)
				require.Equal(s, before.text("state"), state, what)
				require.Equal(s, true, repeated, what)
			default:
				r.refused(http.StatusConflict, want[i])
				require.Equal(s, before.text("state"), r.text("state"), what)
				require.Equal(s, id, r.text("coupon_id"), what)
			}
			if !strings.HasPrefix(want[i], "→") {
				require.Equal(s, before.number("version"), s.coupon(id).number("version"), what)
			}
		}
	}
}

func latestOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// did does what is there before: "own lock", "void".
func (s *site) did(id, user string, acts []string) {
	s.Helper()
	for _, act := range acts {
		who, verb, ok := strings.Cut(act, " ")
		if !ok {
			who, verb = "", act
		}
		s.do(who+"-"+id, verb, id, user).ok()
	}
}

func (s *site) do(order, verb, id, user string) reply {
	s.Helper()
	switch verb {
	case "extend":
		return s.post(api.ScopeOps, "/v1/coupons/"+id+"/extend", object{"expires_at": rfc(s.now().Add(3 * time.Hour)), "reason": "r"})
	case "void":
		return s.post(api.ScopeOps, "/v1/coupons/"+id+"/void", object{"reason": "r"})
	default:
		return s.verb(verb, order, []string{id}, "user_id", user)
	}
}

// state of the one coupon of an answer to a verb, an order's or an operator's.
func (r reply) state() (state string, repeated any) {
	r.Helper()
	if r.status != http.StatusOK {
		return "", nil
	}
	if r.get("coupons") == nil {
		return r.text("state"), r.get("repeated")
	}
	return r.text("coupons", 0, "state"), r.get("coupons", 0, "repeated")
}
