package telemetry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogIsOneJSONObjectALine(t *testing.T) {
	var out bytes.Buffer
	logger, err := telemetry.NewLogger(telemetry.DefaultLogConfig(), &out, zap.String("service", "expirer"))
	require.NoError(t, err)
	logger.Named("relay").Info("sent", zap.Int("messages", 3), zap.Duration("took", 1500*time.Millisecond))
	logger.Debug("not at info")
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")))
	var entry map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &entry))
	at, err := time.Parse("2006-01-02T15:04:05.000Z", fmt.Sprint(entry["time"]))
	require.NoError(t, err, "UTC, whatever the host's zone")
	require.WithinDuration(t, time.Now(), at, time.Minute)
	delete(entry, "time")
	require.Equal(t, map[string]any{
		"level": "info", "msg": "sent", "component": "relay", "service": "expirer", "messages": 3.0, "took": "1.5s",
	}, entry)
}

func TestLogConfig(t *testing.T) {
	require.NoError(t, telemetry.DefaultLogConfig().Validate())
	bad := telemetry.LogConfig{Level: "loud", Format: "xml"}
	require.EqualError(t, bad.Validate(), "level: must be debug, info, warn or error, got \"loud\"\n"+
		"format: must be json or console, got \"xml\"")
	_, err := telemetry.NewLogger(bad, &bytes.Buffer{})
	require.Error(t, err)
	var out bytes.Buffer
	logger, err := telemetry.NewLogger(telemetry.LogConfig{Level: "debug", Format: "console"}, &out)
	require.NoError(t, err)
	logger.Debug("shown")
	require.Contains(t, out.String(), "shown")
}

func TestRepeats(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	r := telemetry.NewRepeats(zap.New(core), time.Minute, func() time.Time { return now })
	r.Recovered("back")
	require.Zero(t, logs.Len(), "nothing had failed")

	for port := range 10 {
		r.Failed("connecting", fmt.Errorf("dial 127.0.0.1:%d: refused", 40000+port))
		now = now.Add(time.Second)
	}
	require.Equal(t, 1, logs.Len(), "the same but for the port")
	r.Failed("connecting", errors.New("access denied"))
	require.Equal(t, 2, logs.Len(), "another error is news")
	require.EqualValues(t, 9, logs.All()[1].ContextMap()["withheld"])

	now = now.Add(time.Minute)
	r.Failed("connecting", errors.New("access denied"), zap.String("to", "broker"))
	require.Equal(t, 3, logs.Len(), "said again when it lasts")
	require.Equal(t, "broker", logs.All()[2].ContextMap()["to"])

	r.Recovered("connected")
	last := logs.All()[3]
	require.Equal(t, "connected", last.Message)
	require.EqualValues(t, 12, last.ContextMap()["failures"])
	require.Equal(t, 70*time.Second, last.ContextMap()["after"])
	r.Failed("connecting", errors.New("access denied"))
	require.Equal(t, 5, logs.Len(), "a new run of failures begins")
	require.Equal(t, zap.WarnLevel, logs.All()[4].Level)
}

func TestBuildInfo(t *testing.T) {
	b := telemetry.NewBuild("expirer", "")
	require.Equal(t, "dev", b.Version)
	require.Contains(t, b.String(), "expirer dev (revision ")
	reg := telemetry.NewRegistry(telemetry.NewBuild("expirer", "v1.2.3"))
	n, err := testutil.GatherAndCount(reg, "lapse_build_info", "go_goroutines", "process_start_time_seconds")
	require.NoError(t, err)
	require.Equal(t, 3, n)
}
