// Package conform is the one suite that every server of Lapse's HTTP API passes: the publisher's over a real database, and that
// of package lapsetest in memory. What is written here is what integrators may rely on.
//
// Cases are independent of one another and run side by side: each has templates, users, orders and keys of its own. They make time
// go by with the sandbox's forward alone, so that a real clock need not be waited for longer than seconds.
package conform

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
)

// Target is a server that the suite is run against: in sandbox mode, with the default limits but for rates, and with the default
// offsets of reminders (-3d, -1d, -30m, UTC).
type Target struct {
	URL   string
	Token func(scope api.Scope) string // that has this scope alone; callers of different scopes have different names
	// Until returns once the clock that decides has reached the instant, and what was due by then has been settled as workers
	// settle it.
	Until func(t testing.TB, at time.Time)
	// Settle has done what is done beside the API and is not due at an instant: quota that comes back is counted.
	Settle func(t testing.TB)
	// Heard gives the routing keys of the events of a coupon's steps, in their order; those of reminders are not among them.
	Heard func(t testing.TB, couponID string) []string
	// Reminded gives the ids of the events of a coupon's reminders whose instants have come, and of others that were told ahead.
	Reminded func(t testing.TB, couponID string) []string
}

// testCase is one of the suite.
type testCase struct {
	name string
	run  func(s *site)
}

func cases() []testCase {
	return []testCase{
		{"templates", templates},
		{"template faults", templateFaults},
		{"template lists", templateLists},
		{"template keys", templateKeys},
		{"grants", grants},
		{"grants: keys and issuers", grantKeys},
		{"grants: ends", grantEnds},
		{"grants: limits", grantLimits},
		{"grants: faults", grantFaults},
		{"a coupon's life", life},
		{"all or none", allOrNone},
		{"checkout: locks", locks},
		{"checkout: lock run out", lockRunOut},
		{"checkout: past the end", pastTheEnd},
		{"checkout: faults", checkoutFaults},
		{"every verb in every state", everyVerb},
		{"operators", operators},
		{"quota comes back", quotaBack},
		{"a coupon and its timeline", timeline},
		{"wallets", wallets},
		{"summaries", summaries},
		{"the best coupon", best},
		{"validation", validation},
		{"lists", lists},
		{"CSV", csvList},
		{"page tokens and limits", pages},
		{"idempotency keys", keys},
		{"refusals are remembered", keysOfRefusals},
		{"tokens and scopes", tokens},
		{"what is no request", noRequest},
		{"problems", problems},
		{"notices of nobody", notices},
		{"sandbox: the end", forwardEnd},
		{"sandbox: a lock", forwardLock},
		{"sandbox: a reminder", forwardReminder},
		{"sandbox: faults", forwardFaults},
	}
}

// Run runs every case.
func Run(t *testing.T, target Target) {
	t.Helper()
	names := &atomic.Int64{}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	t.Cleanup(client.CloseIdleConnections)
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(&site{TB: t, Target: target, client: client, names: names})
		})
	}
}

// site is the target as one case sees it.
type site struct {
	testing.TB
	Target
	client *http.Client
	names  *atomic.Int64
}

// name gives one that no other case has.
func (s *site) name(kind string) string { return fmt.Sprintf("%s-%d", kind, s.names.Add(1)) }

// now is the target's clock.
func (s *site) now() time.Time {
	s.Helper()
	return s.get(api.ScopeRead, "/v1/users/nobody/coupons").ok().instant("now")
}

// template makes one of 5.00 off everything, for an hour, unless changed; it gives its id.
func (s *site) template(more ...any) string {
	s.Helper()
	return s.post(api.ScopeOps, "/v1/templates", terms(more...)).is(http.StatusCreated).text("template_id")
}

func terms(more ...any) object {
	return object{"name": "t", "rule": object{"kind": "after", "after": "1h"}, "value": 500, "currency": "CNY", "reason": "r"}.with(more...)
}

// grant gives a user one coupon and gives its id.
func (s *site) grant(template, user string, more ...any) string {
	s.Helper()
	g := object{"grant_key": s.name("key"), "template_id": template, "user_id": user}.with(more...)
	r := s.post(api.ScopeIssue, "/v1/grants", object{"grants": []object{g}}).ok()
	require.Equal(s, "granted", r.text("results", 0, "result"), "%s", r.raw)
	return r.text("results", 0, "coupon_id")
}

// coupon reads one.
func (s *site) coupon(id string) reply {
	s.Helper()
	return s.get(api.ScopeRead, "/v1/coupons/"+id).ok()
}

// verb asks for an order.
func (s *site) verb(verb, order string, ids []string, more ...any) reply {
	s.Helper()
	return s.post(api.ScopeOrder, "/v1/orders/"+order+"/"+verb, object{"coupon_ids": ids}.with(more...))
}

// forward brings something near, and gives when it comes.
func (s *site) forward(id, what string, seconds int) time.Time {
	s.Helper()
	return s.post(api.ScopeOps, "/v1/sandbox/coupons/"+id+"/forward", object{"what": what, "in_seconds": seconds}).ok().instant("at")
}

// end lets a coupon's end come.
func (s *site) end(id string) {
	s.Helper()
	s.Until(s, s.forward(id, "end", 1))
}
