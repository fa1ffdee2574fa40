package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// keyed is a shop whose requests bear a key.
func (s *shop) keyed(key string) *shop { return s.with("Idempotency-Key", key) }

// TestOneKeyOneEffectOneAnswer: 64 requests at once with one key make one template; whoever is answered at all, then or
// later, gets the same bytes.
func TestOneKeyOneEffectOneAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *api.Config, _ *api.Deps) { c.Limits.Ops.PerSecond = 0 })
	k := s.keyed("k-1")
	var mu sync.Mutex
	answers := map[string]int{}
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for {
				got := k.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template())
				if got.status == http.StatusConflict && got.body["code"] == "in_progress" {
					if got.header.Get("Retry-After") == "" {
						t.Error("does not say when to ask again")
					}
					continue // as a client does
				}
				if got.status == http.StatusServiceUnavailable {
					continue
				}
				mu.Lock()
				answers[fmt.Sprint(got.status, got.header.Get("Idempotency-Replayed"), string(got.raw))]++
				mu.Unlock()
				return
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, s.db.Int(t, "SELECT COUNT(*) FROM template_stock"))
	require.Len(t, answers, 2, "%v", answers)
	for answer, n := range answers {
		require.True(t, strings.HasPrefix(answer, "201"), answer)
		if strings.HasPrefix(answer, "201true") {
			require.Equal(t, 63, n)
		} else {
			require.Equal(t, 1, n)
		}
	}

	k.ask(api.ScopeOps, http.MethodPost, "/v1/templates", template("value", 501)).refused(422, "idempotency_key_reused")
	id := fmt.Sprint(s.db.Int(t, "SELECT MAX(template_id) FROM template_stock"))
	k.ask(api.ScopeOps, http.MethodPost, "/v1/templates/"+id+"/stop", object{"reason": "r"}).refused(422, "idempotency_key_reused")
	k.ask(api.ScopeOps, http.MethodPost, "/v1/templates?x=1", template()).refused(422, "idempotency_key_reused")
}

func TestKeysThatCannotBe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, key := range []string{"a b", strings.Repeat("k", 129), "é", "a\tb"} {
		s.keyed(key).ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).refused(400, "bad_request")
	}
	require.Equal(t, 201, s.keyed(strings.Repeat("~", 128)).ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).status)
	require.EqualValues(t, 1, s.db.Int(t, "SELECT COUNT(*) FROM idempotency_key"))
}

// TestWhatIsRemembered: refusals by the state of things are; what cannot be read, and what says "later", is not.
func TestWhatIsRemembered(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	s := newSite(t, func(_ *api.Config, d *api.Deps) {
		f.plain = d.Templates
		d.Templates = f
	})
	post := func(key, path string, body any) reply {
		return s.keyed(key).ask(api.ScopeOps, http.MethodPost, path, body)
	}

	post("a", "/v1/templates", `{"name":`).refused(400, "bad_request")
	post("a", "/v1/templates", template("value", -1)).refused(400, "bad_request")
	post("b", "/v1/templates", strings.Repeat("x", 2<<20)).refused(413, "too_large")
	require.Zero(t, s.db.Int(t, "SELECT COUNT(*) FROM idempotency_key"))

	f.err.Store(&errUnavailable)
	got := post("a", "/v1/templates", template()).refused(503, "unavailable")
	require.NotEmpty(t, got.header.Get("Retry-After"))
	f.err.Store(&errContention)
	post("a", "/v1/templates", template()).refused(503, "busy")
	f.err.Store(&errBroken)
	got = post("a", "/v1/templates", template()).refused(500, "internal")
	require.NotContains(t, string(got.raw), "disk", "what is wrong inside is not the caller's to know")
	require.Zero(t, s.db.Int(t, "SELECT COUNT(*) FROM idempotency_key"))
	f.err.Store(nil)
	require.Equal(t, 201, post("a", "/v1/templates", template()).status)

	first := post("c", "/v1/templates/4711/stop", object{"reason": "r"}).refused(404, "not_found")
	again := post("c", "/v1/templates/4711/stop", object{"reason": "r"}).refused(404, "not_found")
	require.Equal(t, first.raw, again.raw)
	require.Empty(t, first.header.Get("Idempotency-Replayed"))
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
}

var (
	errUnavailable = fmt.Errorf("x: %w", coupon.ErrUnavailable)
	errContention  = fmt.Errorf("x: %w", coupon.ErrContention)
	errBroken      = errors.New("the disk is on fire")
)

// plain is a store's templates: embedded, the interface's own name would hide its method Templates.
type plain interface{ api.Templates }

// faulty templates fail as told; or only after the commit, as a connection does that dies before its answer.
type faulty struct {
	plain
	err  atomic.Pointer[error]
	dies atomic.Bool
}

func (f *faulty) CreateTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint64, error) {
	if err := f.err.Load(); err != nil {
		return 0, *err
	}
	id, err := f.plain.CreateTemplateOnce(ctx, t, caller, key)
	if f.dies.Load() {
		err = errBroken
	}
	return id, err
}

func (f *faulty) ReviseTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint32, error) {
	n, err := f.plain.ReviseTemplateOnce(ctx, t, caller, key)
	if f.dies.Load() {
		err = errBroken
	}
	return n, err
}

// TestAfterADeathTheKeyFindsWhatWasMade: a try that fails between its commit and its answer leaves one template, not two,
// and the next try answers with it.
func TestAfterADeathTheKeyFindsWhatWasMade(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	s := newSite(t, func(_ *api.Config, d *api.Deps) {
		f.plain = d.Templates
		d.Templates = f
	})
	f.dies.Store(true)
	s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).refused(500, "internal")
	s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template("value", 1)).refused(422, "idempotency_key_reused")
	f.dies.Store(false)
	got := s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template())
	require.Equal(t, 201, got.status, "%s", got.raw)
	require.EqualValues(t, 1, s.db.Int(t, "SELECT COUNT(*) FROM template_stock"))

	path := "/v1/templates/" + got.body["template_id"].(string) + "/revisions"
	f.dies.Store(true)
	s.keyed("r").ask(api.ScopeOps, http.MethodPost, path, object{"revision": 1, "value": 7, "reason": "r"}).refused(500, "internal")
	f.dies.Store(false)
	got = s.keyed("r").ask(api.ScopeOps, http.MethodPost, path, object{"revision": 1, "value": 7, "reason": "r"})
	require.Equal(t, 201, got.status, "%s", got.raw)
	require.InDelta(t, 2, got.body["revision"], 0)
	require.InDelta(t, 7, got.body["value"], 0)
	s.keyed("r2").ask(api.ScopeOps, http.MethodPost, path, object{"revision": 1, "value": 8, "reason": "r"}).refused(409, "conflict")
}

// TestOvertaken: a try so slow that its lease has ended is overtaken by another with the same key; both clients get the
// one answer.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	slow := &slowTemplates{began: make(chan struct{}), goOn: make(chan struct{})}
	s := newSite(t, func(c *api.Config, d *api.Deps) {
		c.RequestTimeout = time.Minute
		slow.plain = d.Templates
		d.Templates = slow
	})
	var first reply
	var all sync.WaitGroup
	all.Go(func() { first = s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()) })
	<-slow.began
	s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template()).refused(409, "in_progress")
	s.db.Exec(t, "UPDATE idempotency_key SET lease_until = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND")
	second := s.keyed("k").ask(api.ScopeOps, http.MethodPost, "/v1/templates", template())
	require.Equal(t, 201, second.status, "%s", second.raw)
	close(slow.goOn)
	all.Wait()
	require.Equal(t, second.raw, first.raw)
	require.Equal(t, 201, first.status)
	require.Equal(t, "true", first.header.Get("Idempotency-Replayed"))
	require.EqualValues(t, 1, s.db.Int(t, "SELECT COUNT(*) FROM template_stock"))
}

// slowTemplates hold the first to come.
type slowTemplates struct {
	plain
	held  atomic.Bool
	began chan struct{}
	goOn  chan struct{}
}

func (s *slowTemplates) CreateTemplateOnce(ctx context.Context, t coupon.Template, caller, key string) (uint64, error) {
	if s.held.CompareAndSwap(false, true) {
		close(s.began)
		select {
		case <-s.goOn:
		case <-ctx.Done():
		}
	}
	return s.plain.CreateTemplateOnce(ctx, t, caller, key)
}

// TestKeysOfGrants: a batch with a key is answered once; its grants have keys of their own besides.
func TestKeysOfGrants(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := fmt.Sprint(s.template())
	for name, n := range map[string]int{"one": 1, "many": 50} {
		asks := grants(id, name, n)
		first := s.keyed(name).ask(api.ScopeIssue, http.MethodPost, "/v1/grants", asks).ok()
		again := s.keyed(name).ask(api.ScopeIssue, http.MethodPost, "/v1/grants", asks).ok()
		require.Equal(t, first.raw, again.raw)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
		anew := s.ask(api.ScopeIssue, http.MethodPost, "/v1/grants", asks).ok()
		require.Equal(t, strings.ReplaceAll(string(first.raw), `"granted"`, `"repeated"`), string(anew.raw))
	}
	require.EqualValues(t, 51, s.db.Int(t, "SELECT COUNT(*) FROM coupon"))
}

// grants asks for n coupons of users of their own.
func grants(template, name string, n int) object {
	asks := make([]object, n)
	for i := range asks {
		asks[i] = object{"grant_key": fmt.Sprintf("%s-%d", name, i), "template_id": template, "user_id": fmt.Sprintf("u-%d", i)}
	}
	return object{"grants": asks}
}
