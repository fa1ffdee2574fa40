package api_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// TestRatesAreOfATokenAndAScope: whoever reads too much is told to wait; orders of the same caller, and other callers,
// are not.
func TestRatesAreOfATokenAndAScope(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *api.Config, _ *api.Deps) {
		c.Limits.Read.PerSecond, c.Limits.Read.Burst = 0.001, 3
		for _, name := range []string{"a", "b"} {
			c.Tokens = append(c.Tokens, api.Token{Name: name, Hash: api.HashToken(name), Scopes: []string{"read", "order"}})
		}
		c.Tokens = append(c.Tokens, api.Token{Name: "a", Hash: api.HashToken("a2"), Scopes: []string{"read", "order"}})
	})
	for range 3 {
		s.get("a", "/v1/users/u/coupons").ok()
	}
	got := s.get("a", "/v1/users/u/coupons").refused(429, "rate_limited")
	wait, err := strconv.Atoi(got.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Greater(t, wait, 1)
	s.get("a2", "/v1/users/u/coupons").refused(429, "rate_limited") // another secret, the same caller
	s.get("b", "/v1/users/u/coupons").ok()
	for range 50 {
		s.ask("a", http.MethodPost, "/v1/orders/o/lock", object{"user_id": "u", "coupon_ids": []string{"1"}}).refused(404, "not_found")
	}
}

// held are reads that do not come back until they may.
type held struct {
	api.Wallets
	began chan struct{}
	goOn  chan struct{}
}

func (h *held) Wallet(ctx context.Context, q coupon.WalletQuery) (coupon.Page, error) {
	h.began <- struct{}{}
	select {
	case <-h.goOn:
		return h.Wallets.Wallet(ctx, q)
	case <-ctx.Done():
		return coupon.Page{}, ctx.Err()
	}
}

// TestReadsDoNotTakeWhatOrdersNeed: with every turn of the readers taken, and their queue full, others of them are
// refused at once, and orders are done as ever.
func TestReadsDoNotTakeWhatOrdersNeed(t *testing.T) {
	t.Parallel()
	h := &held{began: make(chan struct{}), goOn: make(chan struct{})}
	s := newSite(t, func(c *api.Config, d *api.Deps) {
		c.Limits.Read.Concurrent, c.Limits.Read.Waiting, c.QueueTimeout = 2, 1, 50*time.Millisecond
		h.Wallets = d.Wallets
		d.Wallets = h
	})
	ids := s.grant(s.template(), "u", 1)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { s.get(api.ScopeRead, "/v1/users/u/coupons").ok() })
		<-h.began
	}
	// One may wait, and is refused when its patience ends.
	got := s.get(api.ScopeRead, "/v1/users/u/coupons").refused(503, "busy")
	require.NotEmpty(t, got.header.Get("Retry-After"))
	for _, verb := range []string{"lock", "renew", "redeem", "refund"} {
		s.verb(verb, "o", "u", ids).ok()
	}
	close(h.goOn)
	all.Wait()
}

// TestARequestHasADeadline: what takes longer is answered as a timeout, and one may come again.
func TestARequestHasADeadline(t *testing.T) {
	t.Parallel()
	h := &held{began: make(chan struct{}, 1), goOn: make(chan struct{})}
	s := newSite(t, func(c *api.Config, d *api.Deps) {
		c.RequestTimeout = 100 * time.Millisecond
		d.Wallets = h
	})
	got := s.get(api.ScopeRead, "/v1/users/u/coupons").refused(504, "timeout")
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.Equal(t, 1, s.gauge(t, "lapse_http_requests_total"))
}

// TestStopping: what is at work is answered; what comes later is not taken.
func TestStopping(t *testing.T) {
	t.Parallel()
	h := &held{began: make(chan struct{}), goOn: make(chan struct{})}
	s := newSite(t)
	h.Wallets = s.store
	c := siteConfig()
	a, err := api.New(c, api.Deps{Wallets: h, Keys: s.store, Grants: s.store}, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, a.Listen(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- a.Run(ctx) }()
	other := *s
	other.url = "http://127.0.0.1:" + strconv.Itoa(a.Port())
	transport := &http.Transport{DisableKeepAlives: true}
	other.client = &http.Client{Transport: transport, Timeout: patience}

	var got reply
	var all sync.WaitGroup
	all.Go(func() { got = other.get(api.ScopeRead, "/v1/users/u/coupons") })
	<-h.began
	stop()
	waitFor(t, "no more are taken", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, other.url+"/openapi.yaml", nil)
		require.NoError(t, err)
		res, err := other.client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	})
	select {
	case err := <-stopped:
		require.Fail(t, "it left a request at work", "%v", err)
	default:
	}
	close(h.goOn)
	all.Wait()
	got.ok()
	require.NoError(t, <-stopped)
}

// TestAHeldCouponDoesNotTakeTheTurnsOfOthers: however many ask for a coupon whose row somebody holds, they wait for it
// without the turns of their scope.
func TestAHeldCouponDoesNotTakeTheTurnsOfOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *api.Config, _ *api.Deps) {
		c.Limits.Order.Concurrent, c.QueueTimeout = 3, 100*time.Millisecond
	})
	ids := s.grant(s.template(), "u", 2)
	tx, err := s.db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var id uint64
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT id FROM coupon WHERE id = ? FOR UPDATE`, ids[0]).Scan(&id))
	ask := func(order, id string) reply {
		return s.ask(api.ScopeOrder, http.MethodPost, "/v1/orders/"+order+"/lock", object{"user_id": "u", "coupon_ids": []string{id}})
	}
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			if got := ask("held"+strconv.Itoa(i), ids[0]); got.status != 503 {
				t.Errorf("of the held coupon: %d %s", got.status, got.raw)
			}
		})
	}
	require.Eventually(t, func() bool { return s.gauge(t, "lapse_http_inflight") > 3 }, patience, time.Millisecond)
	for range 20 {
		ask("other", ids[1]).ok()
	}
	all.Wait()
	require.NoError(t, tx.Rollback())
	ask("next", ids[0]).ok()
}
