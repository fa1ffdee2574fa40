package api_test

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
)

// What it does is package conform's; here: that it does nothing anywhere else.
func TestNothingIsBroughtForwardOutsideASandbox(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(_ *api.Config, d *api.Deps) { d.Sandbox = nil })
	id := s.grant(s.template(), "u", 1)[0]
	before := s.rows(t)
	path := "/v1/sandbox/coupons/" + id + "/forward"
	got := s.ask(api.ScopeOps, http.MethodPost, path, object{"what": "end", "in_seconds": 1}).refused(http.StatusForbidden, "forbidden")
	require.Contains(t, got.body["detail"], "only in sandbox mode")
	s.ask(api.ScopeOps, http.MethodPost, path, "what").refused(http.StatusForbidden, "forbidden")
	s.ask(api.ScopeRead, http.MethodPost, path, object{}).refused(http.StatusForbidden, "forbidden")
	require.Equal(t, before, s.rows(t))
}

func TestSandboxModeNeedsWhatItDoes(t *testing.T) {
	t.Parallel()
	c := siteConfig()
	require.False(t, api.DefaultConfig().Sandbox)
	c.Sandbox = true
	_, err := api.New(c, api.Deps{}, zap.NewNop(), prometheus.NewRegistry())
	require.ErrorContains(t, err, "sandbox")
}
