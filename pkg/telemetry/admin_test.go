package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

func startAdmin(t *testing.T, change func(*telemetry.AdminConfig)) *telemetry.Admin {
	t.Helper()
	cfg := telemetry.DefaultAdminConfig()
	cfg.Address = "127.0.0.1:0"
	if change != nil {
		change(&cfg)
	}
	a := telemetry.NewAdmin(cfg, telemetry.NewRegistry(telemetry.NewBuild("test", "v1")), zaptest.NewLogger(t))
	require.Zero(t, a.Port())
	require.NoError(t, a.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		require.NoError(t, a.Stop(ctx))
	})

	return a
}

func get(t *testing.T, a *telemetry.Admin, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(a.Port())+path, nil)
	require.NoError(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)

	return res.StatusCode, string(body)
}

func TestReadinessNamesWhatIsAmiss(t *testing.T) {
	a := startAdmin(t, nil)
	var down atomic.Bool
	a.AddCheck("database", func(context.Context) error {
		if down.Load() {
			return errors.New("no connection since 12:00:01")
		}

		return nil
	})
	a.AddCheck("broker", func(context.Context) error { return nil })

	status, body := get(t, a, "/readyz")
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"ready":true,"checks":[{"name":"database","ready":true},{"name":"broker","ready":true}]}`, body)

	down.Store(true)
	status, body = get(t, a, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.JSONEq(t, `{"ready":false,"checks":[{"name":"database","ready":false,"reason":"no connection since 12:00:01"},
		{"name":"broker","ready":true}]}`, body)

	status, body = get(t, a, "/livez")
	require.Equal(t, http.StatusOK, status, "liveness depends on nothing outside")
	require.JSONEq(t, `{"live":true}`, body)
}

// TestHangingCheck: one that does not answer is named, does not hide the others, and is not started a second time.
func TestHangingCheck(t *testing.T) {
	a := startAdmin(t, func(c *telemetry.AdminConfig) { c.CheckTimeout = 20 * time.Millisecond })
	release := make(chan struct{})
	var runs atomic.Int32
	a.AddCheck("hangs", func(context.Context) error {
		runs.Add(1)
		<-release

		return nil
	})
	a.AddCheck("broker", func(context.Context) error { return nil })
	for range 3 {
		_, body := get(t, a, "/readyz")
		var got telemetry.Readiness
		require.NoError(t, json.Unmarshal([]byte(body), &got))
		require.Equal(t, "no answer within 20ms", got.Checks[0].Reason)
		require.False(t, got.Checks[0].Ready)
	}
	require.EqualValues(t, 1, runs.Load())
	close(release)
}

func TestMetricsAndPprof(t *testing.T) {
	a := startAdmin(t, nil)
	status, body := get(t, a, "/metrics")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `lapse_build_info{binary="test"`)
	require.Contains(t, body, "promhttp_metric_handler_errors_total")
	status, _ = get(t, a, "/debug/pprof/")
	require.Equal(t, http.StatusNotFound, status, "off unless asked for")

	b := startAdmin(t, func(c *telemetry.AdminConfig) { c.Pprof = true })
	status, body = get(t, b, "/debug/pprof/goroutine?debug=1")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "goroutine profile")
}

func TestStopBeforeStartAndTwice(t *testing.T) {
	a := telemetry.NewAdmin(telemetry.DefaultAdminConfig(), telemetry.NewRegistry(telemetry.NewBuild("test", "")), zaptest.NewLogger(t))
	require.NoError(t, a.Stop(t.Context()))
	b := startAdmin(t, nil)
	require.NoError(t, b.Stop(t.Context()))
	require.NoError(t, b.Stop(t.Context()))
}

func TestAddressInUseIsNamed(t *testing.T) {
	a := startAdmin(t, nil)
	cfg := telemetry.DefaultAdminConfig()
	cfg.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Port()))
	b := telemetry.NewAdmin(cfg, telemetry.NewRegistry(telemetry.NewBuild("test", "")), zaptest.NewLogger(t))
	require.ErrorContains(t, b.Start(t.Context()), cfg.Address)
}

func TestAdminConfig(t *testing.T) {
	require.NoError(t, telemetry.DefaultAdminConfig().Validate())
	require.EqualError(t, telemetry.AdminConfig{Address: "9101", CheckTimeout: time.Hour}.Validate(),
		"address: must be host:port, got \"9101\"\ncheck_timeout: must be between 10ms and 30s, got 1h0m0s")
	require.ErrorContains(t, telemetry.AdminConfig{Address: ":99999", CheckTimeout: time.Second}.Validate(), "address: the port")
}

func TestPortsFileAndHealthcheck(t *testing.T) {
	a := startAdmin(t, nil)
	dir := t.TempDir()
	file := filepath.Join(dir, "ports.json")
	require.NoError(t, telemetry.WritePorts(file, map[string]int{"admin": a.Port()}))
	require.NoError(t, telemetry.WritePorts(file, map[string]int{"admin": a.Port(), "api": 1}), "over an older one")
	ports, err := telemetry.ReadPorts(file)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"admin": a.Port(), "api": 1}, ports)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
	require.Error(t, telemetry.WritePorts(filepath.Join(dir, "absent", "ports.json"), ports))

	require.NoError(t, telemetry.CheckLive(t.Context(), ":0", file))
	require.NoError(t, telemetry.CheckLive(t.Context(), "0.0.0.0:"+strconv.Itoa(a.Port()), ""))
	require.ErrorContains(t, telemetry.CheckLive(t.Context(), ":0", ""), "-ports-file")
	require.NoError(t, a.Stop(t.Context()))
	require.ErrorContains(t, telemetry.CheckLive(t.Context(), ":0", file), "refused")
}
