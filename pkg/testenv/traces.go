package testenv

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Traces gives traces of which everything that comes with one is sampled, and of the rest the ratio. came ends them and gives what a
// receiver has read over OTLP.
func Traces(t testing.TB, ratio float64) (traces *telemetry.Traces, came func() []receive.Span) {
	t.Helper()
	spans, err := receive.StartSpans(t.Context())
	require.NoError(t, err)
	cfg := telemetry.DefaultTracesConfig()
	cfg.Endpoint, cfg.Ratio = spans.URL(), ratio
	traces, err = telemetry.NewTraces(t.Context(), cfg, telemetry.NewBuild("test", ""), "pod", zap.NewNop())
	require.NoError(t, err)
	running, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- traces.Run(running) }()
	came = func() []receive.Span {
		stop()
		require.NoError(t, <-ended)
		ended <- nil
		return spans.Spans()
	}
	t.Cleanup(func() {
		came()
		require.NoError(t, spans.Close())
	})
	return traces, came
}
