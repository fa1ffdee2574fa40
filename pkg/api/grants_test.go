package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
)

func (r reply) results() []object {
	r.Helper()
	list, ok := r.ok().body["results"].([]any)
	require.True(r, ok, "%s", r.raw)
	out := make([]object, len(list))
	for i := range list {
		out[i] = list[i].(object)
	}
	return out
}

// TestAHotTemplate: 5000 claim one coupon each of a template that has 100, one request for each. Exactly 100 get one, and
// each of these finds it again.
func TestAHotTemplate(t *testing.T) {
	t.Parallel()
	const claimers, quota = 5000, 100
	s := newSite(t, func(c *api.Config, _ *api.Deps) { c.Limits.Issue.PerSecond = 0 })
	id := fmt.Sprint(s.template(func(t *coupon.Template) { t.Quota = quota }))
	var granted, exhausted atomic.Int64
	next := make(chan int)
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			for i := range next {
				body := object{"grants": []object{{"grant_key": fmt.Sprint("k", i), "template_id": id, "user_id": fmt.Sprint("u", i)}}}
				switch r := s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", body).results()[0]; {
				case r["result"] == "granted" && r["coupon_id"] != "":
					granted.Add(1)
				case r["code"] == "quota_exhausted":
					exhausted.Add(1)
				default:
					t.Error(r)
				}
			}
		})
	}
	for i := range claimers {
		next <- i
	}
	close(next)
	all.Wait()
	require.EqualValues(t, quota, granted.Load())
	require.EqualValues(t, claimers-quota, exhausted.Load())
	require.EqualValues(t, quota, s.db.Int(t, "SELECT COUNT(*) FROM coupon"))
	require.EqualValues(t, quota, s.db.Int(t, "SELECT taken FROM template_stock"))
}

// TestGrantsHaveResultsOfTheirOwn: whatever becomes of one is its own.
func TestGrantsHaveResultsOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := fmt.Sprint(s.template(func(t *coupon.Template) { t.PerUser = 1 }))
	stopped := fmt.Sprint(s.template())
	s.ask(api.ScopeOps, http.MethodPost, "/v1/templates/"+stopped+"/stop", object{"reason": "r"}).ok()
	ask := func(key, template, user string, more ...any) object {
		o := object{"grant_key": key, "template_id": template, "user_id": user}
		for i := 0; i+1 < len(more); i += 2 {
			o[more[i].(string)] = more[i+1]
		}
		return o
	}
	body := object{"grants": []object{
		ask("a", id, "u"), ask("a", id, "u"), ask("b", id, "u"), ask("a", id, "v"), ask("c", "4711", "u"), ask("d", stopped, "u"),
		ask("e", id, "v", "expires_at", nil, "batch_id", "spring"), ask("f", id, "w", "expires_at", "2020-01-01T00:00:00+08:00"),
		ask("g", id, "x", "expires_at", "2030-01-01T00:00:00.5+08:00", "valid_from", "2029-01-01T00:00:00Z"),
	}}
	got := s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", body).results()
	require.Equal(t, []any{"granted", "repeated", "refused", "refused", "refused", "refused", "granted", "refused", "granted"}, field(got, "result"))
	require.Equal(t, []any{
		nil, nil, "user_limit", "grant_key_conflict", "template_not_found", "template_stopped", nil, "already_ended", nil,
	}, field(got, "code"))
	require.Equal(t, got[0]["coupon_id"], got[1]["coupon_id"])
	require.Nil(t, got[6]["expires_at"], "never")
	require.Equal(t, "2029-12-31T16:00:01Z", got[8]["expires_at"])

	c := s.get(api.ScopeRead, "/v1/grants/e").ok().body
	require.Equal(t, got[6]["coupon_id"], c["coupon_id"])
	require.Equal(t, "spring", c["batch_id"])
	s.get(api.ScopeRead, "/v1/grants/e?issuer=other").refused(404, "not_found")
	s.get(api.ScopeRead, "/v1/grants/b").refused(404, "not_found")

	odd := "schlüssel/ä %?#" // any text can be a key
	body = object{"grants": []object{ask(odd, id, "y")}}
	first := s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", body).results()[0]
	require.Equal(t, first["coupon_id"], s.get(api.ScopeRead, "/v1/grants/"+url.PathEscape(odd)).ok().body["coupon_id"])
}

func TestATokenOfAnIssuer(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *api.Config, _ *api.Deps) {
		c.Tokens = append(c.Tokens, api.Token{Name: "crm", Hash: api.HashToken("crm"), Scopes: []string{"issue"}, Issuer: "crm"})
	})
	id := fmt.Sprint(s.template())
	ask := func(scope api.Scope, issuer string) reply {
		g := object{"grant_key": "k", "template_id": id, "user_id": "u"}
		if issuer != "" {
			g["issuer"] = issuer
		}
		return s.ask(scope, http.MethodPost, "/v1/grants", object{"grants": []object{g}})
	}
	mine := ask("crm", "").results()[0]
	require.Equal(t, "granted", mine["result"])
	require.Equal(t, "repeated", ask("crm", "crm").results()[0]["result"])
	ask("crm", "shop").refused(403, "forbidden")
	require.Equal(t, "granted", ask(api.ScopeIssue, "").results()[0]["result"], "another issuer's key")
	require.Equal(t, "repeated", ask(api.ScopeIssue, "crm").results()[0]["result"], "a token without an issuer names any")
	require.Equal(t, mine["coupon_id"], s.get("crm", "/v1/grants/k").ok().body["coupon_id"])
	s.get("crm", "/v1/grants/k?issuer=shop").refused(403, "forbidden")
}

// gatheredGrants is an issuer that tells of each call, and does as it is told.
type gatheredGrants struct {
	api.Grants
	mu    sync.Mutex
	sizes []int
	hold  chan struct{} // if there is one, the first call waits for it
	held  chan struct{}
	bad   string // the database refuses this key
	err   error
}

func (g *gatheredGrants) Issue(ctx context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	g.mu.Lock()
	g.sizes = append(g.sizes, len(grants))
	first, err := len(g.sizes) == 1, g.err
	g.mu.Unlock()
	if first && g.hold != nil {
		close(g.held)
		select {
		case <-g.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	for _, one := range grants {
		if one.Key == g.bad {
			return nil, fmt.Errorf("x: %w", coupon.ErrIntegrity)
		}
	}
	return g.Grants.Issue(ctx, grants)
}

// TestABadGrantHarmsNobody: the database refuses one of those that were put together; it alone is refused.
func TestABadGrantHarmsNobody(t *testing.T) {
	t.Parallel()
	g := &gatheredGrants{bad: "k-17", hold: make(chan struct{}), held: make(chan struct{})}
	s := newSite(t, func(c *api.Config, d *api.Deps) {
		c.Limits.Issue.Concurrent = 1 // while the first is held, the others gather
		g.Grants = d.Grants
		d.Grants = g
	})
	id := fmt.Sprint(s.template())
	one := func(key string) reply {
		return s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", object{"grants": []object{{"grant_key": key, "template_id": id, "user_id": "u"}}})
	}
	var all sync.WaitGroup
	all.Go(func() { one("first").ok() })
	<-g.held

	// One gives up while it waits; it is left out.
	ctx, giveUp := context.WithCancel(t.Context())
	all.Go(func() { s.givesUp(ctx, `{"grants":[{"grant_key":"gone","template_id":"`+id+`","user_id":"u"}]}`) })
	results := make([]string, 40)
	for i := range results {
		all.Go(func() {
			r := one(fmt.Sprintf("k-%d", i)).results()[0]
			results[i] = fmt.Sprint(r["result"], r["code"])
		})
	}
	waitFor(t, "all wait", func() bool { return s.gauge(t, "lapse_http_inflight") == 42 })
	giveUp()
	waitFor(t, "one has gone", func() bool { return s.gauge(t, "lapse_http_inflight") == 41 })
	close(g.hold)
	all.Wait()
	for i, r := range results {
		if i == 17 {
			require.Equal(t, "refusedinvalid", r)
		} else {
			require.Equal(t, "granted<nil>", r)
		}
	}
	require.Equal(t, 1, g.sizes[0])
	require.Equal(t, 40, g.sizes[1], "all that waited went together: %v", g.sizes)
	require.EqualValues(t, 40, s.db.Int(t, "SELECT COUNT(*) FROM coupon"))
}

// TestGrantsWithoutADatabase: everybody is told, and told when to come again.
func TestGrantsWithoutADatabase(t *testing.T) {
	t.Parallel()
	g := &gatheredGrants{err: fmt.Errorf("x: %w", coupon.ErrUnavailable)}
	s := newSite(t, func(_ *api.Config, d *api.Deps) { d.Grants = g })
	for _, n := range []int{1, 2} {
		got := s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", grants("1", "k", n)).refused(503, "unavailable")
		require.NotEmpty(t, got.header.Get("Retry-After"))
	}
	g.mu.Lock()
	g.err = fmt.Errorf("x: %w", coupon.ErrContention)
	g.mu.Unlock()
	s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", grants("1", "k", 1)).refused(503, "busy")
}

func TestABatchOfAThousand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := fmt.Sprint(s.template())
	require.Len(t, s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", grants(id, "k", 1000)).results(), 1000)
	s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", grants(id, "k", 1001)).refused(400, "bad_request")
	s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", object{"grants": []object{}}).refused(400, "bad_request")
	require.EqualValues(t, 1000, s.db.Int(t, "SELECT COUNT(*) FROM coupon"))
}

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, 5*time.Millisecond, what)
}
