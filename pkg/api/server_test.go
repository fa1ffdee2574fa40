package api_test

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// newSite is a shop on a listener of its own, with all that runs beside it. change may put something before the store.
func newSite(t testing.TB, change ...func(*api.Config, *api.Deps)) *shop {
	t.Helper()
	s := &shop{TB: t, db: testenv.NewDatabase(t), bell: &bell{}, reg: prometheus.NewRegistry()}
	s.store = s.db.Store(t)
	c, d := siteConfig(), api.Deps{
		Templates: s.store, Checkout: s.store, Coupons: s.store, Wallets: s.store, Grants: s.store, Stats: s.store, Keys: s.store,
		Notices: s.store, Receipts: s.store, Texts: noticeTexts(t), Signature: providers(),
	}
	for _, f := range change {
		f(&c, &d)
	}
	a, err := api.New(c, d, testenv.Log(t).WithOptions(zap.IncreaseLevel(zap.WarnLevel)), s.reg)
	require.NoError(t, err)
	s.open(a)
	return s
}

// siteConfig has a token for each scope, of its name.
func siteConfig() api.Config {
	c := api.DefaultConfig()
	c.Address = "127.0.0.1:0"
	c.Providers = providers()
	for _, scope := range api.Scopes() {
		c.Tokens = append(c.Tokens, api.Token{Name: string(scope) + "-shop", Hash: api.HashToken(string(scope)), Scopes: []string{string(scope)}})
	}
	return c
}

// open runs the API and points the client at it.
func (s *shop) open(a *api.API) {
	s.Helper()
	require.NoError(s, a.Listen(s.Context()))
	s.url = "http://127.0.0.1:" + strconv.Itoa(a.Port())
	transport := &http.Transport{MaxIdleConnsPerHost: 512}
	s.client = &http.Client{Timeout: patience, Transport: transport}
	testenv.Run(s, a.Run)
	s.Cleanup(transport.CloseIdleConnections)
}

// with sends headers with every request.
func (s *shop) with(headers ...string) *shop {
	c := *s
	inner := s.client.Transport
	c.client = &http.Client{Timeout: patience, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return inner.RoundTrip(r)
	})}
	return &c
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// template asks for one of 5.00 for an hour.
func template(more ...any) object {
	t := object{"name": "t", "rule": object{"kind": "after", "after": "1h"}, "value": 500, "currency": "CNY", "reason": "r"}
	for i := 0; i+1 < len(more); i += 2 {
		t[more[i].(string)] = more[i+1]
	}
	return t
}

// givesUp asks for grants and does not wait beyond ctx.
func (s *shop) givesUp(ctx context.Context, body string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/grants", strings.NewReader(body))
	if err != nil {
		s.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer issue")
	req.Header.Set("Content-Type", "application/json")
	res, err := s.client.Do(req)
	if err == nil {
		s.Error("it was answered: ", res.Status)
		_ = res.Body.Close()
	}
}

// gauge sums a metric of the site's.
func (s *shop) gauge(t testing.TB, name string) (sum int) {
	t.Helper()
	families, err := s.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += int(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			}
		}
	}
	return sum
}

// rows counts what a request can write.
func (s *shop) rows(t testing.TB) (sum int64) {
	t.Helper()
	for _, table := range []string{
		"coupon", "coupon_history", "coupon_template", "template_stock", "grant_key", "user_quota", "outbox", "idempotency_key", "order_tombstone", "setting",
		"inbox", "notice", "user_optout", "user_profile",
	} {
		sum += s.db.Int(t, "SELECT COUNT(*) FROM "+table)
	}
	return sum
}

// unquoted takes JSON's escapes of quotes away.
func unquoted(s string) string { return strings.ReplaceAll(s, `\"`, `"`) }
