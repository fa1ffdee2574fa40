package telemetry_test

import (
	"context"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

const (
	sampled    = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	another    = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	notSampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

// tracing is a process's traces, and the receiver of them.
type tracing struct {
	*telemetry.Traces
	spans *receive.Spans
	logs  *observer.ObservedLogs
	stop  func()
}

func startTracing(t *testing.T, ratio float64) *tracing {
	t.Helper()
	spans, err := receive.StartSpans(t.Context())
	require.NoError(t, err)
	core, logs := observer.New(zap.DebugLevel)
	cfg := telemetry.DefaultTracesConfig()
	cfg.Endpoint, cfg.Ratio = spans.URL(), ratio
	traces, err := telemetry.NewTraces(t.Context(), cfg, telemetry.NewBuild("test", "v1"), "pod-1", zap.New(core))
	require.NoError(t, err)
	running, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- traces.Run(running) }()
	stopped := false
	x := &tracing{Traces: traces, spans: spans, logs: logs, stop: func() {
		if stopped {
			return
		}
		stopped = true
		stop()
		require.NoError(t, <-ended)
	}}
	t.Cleanup(func() {
		x.stop()
		require.NoError(t, spans.Close())
	})
	return x
}

// came is what has arrived once the process has stopped.
func (x *tracing) came() map[string]receive.Span {
	x.stop()
	out := make(map[string]receive.Span)
	for _, s := range x.spans.Spans() {
		out[s.Name] = s
	}
	return out
}

func TestSpansArriveOverOTLP(t *testing.T) {
	x := startTracing(t, 1)
	first := x.Begin(telemetry.Step{Name: "first", Kind: telemetry.Consumer, Parent: sampled})
	first.Set("text", "a")
	first.Set("number", 7)
	first.Set("id", uint64(8))
	first.Set("wait", 3*time.Second)
	second := x.Follow(telemetry.Step{Name: "second", Kind: telemetry.Producer, Parent: first.Trace("")})
	second.End("refused")
	first.End("")
	own := x.Begin(telemetry.Step{Name: "own", Kind: telemetry.Server})
	require.True(t, telemetry.Sampled(own.Trace("")))
	own.End("")
	many := x.Begin(telemetry.Step{Name: "many", Links: []string{sampled, "nonsense", another, notSampled}})
	many.End("")

	came := x.came()
	require.Len(t, came, 4)
	a := came["first"]
	require.Equal(t, [3]string{"4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "SPAN_KIND_CONSUMER"}, [3]string{a.Trace, a.Parent, a.Kind})
	require.Equal(t, map[string]string{"text": "a", "number": "7", "id": "8", "wait": "3s"}, a.Attributes)
	require.Equal(t, "lapse-test", a.Service)
	require.Empty(t, a.Failed)
	require.Equal(t, [3]string{a.Trace, a.ID, "refused"}, [3]string{came["second"].Trace, came["second"].Parent, came["second"].Failed})
	require.Empty(t, came["own"].Parent)
	require.NotEqual(t, a.Trace, came["own"].Trace)
	require.Empty(t, came["many"].Parent)
	require.Equal(t, [][2]string{{a.Trace, "00f067aa0ba902b7"}, {"0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"}}, came["many"].Links)
}

// What is not sampled is carried on as it came, and costs nothing.
func TestWhatIsNotSampledIsCarriedOn(t *testing.T) {
	x := startTracing(t, 0)
	for _, s := range []telemetry.Step{
		{Name: "not sampled", Parent: notSampled},
		{Name: "without", Parent: ""},
		{Name: "nonsense", Parent: "nonsense"},
		{Name: "links that are not sampled", Links: []string{notSampled}},
	} {
		span := x.Begin(s)
		require.Nil(t, span, s.Name)
		require.Equal(t, s.Parent, span.Trace(s.Parent))
		span.Set("a", "b")
		span.End("")
	}
	require.Nil(t, x.Follow(telemetry.Step{Name: "nothing to follow"}))
	x.Begin(telemetry.Step{Name: "told to", Parent: sampled}).End("")
	x.Begin(telemetry.Step{Name: "linked", Links: []string{sampled}}).End("")
	came := x.came()
	require.Len(t, came, 2)
	require.Contains(t, came, "told to")
	require.Contains(t, came, "linked")
}

// A receiver that refuses costs spans: it is said once, in our log, and nothing else happens.
func TestAReceiverThatRefuses(t *testing.T) {
	x := startTracing(t, 1)
	x.spans.Refuse(http.StatusBadRequest)
	for range 3 {
		x.Begin(telemetry.Step{Name: "lost"}).End("")
	}
	require.Empty(t, x.came())
	require.Equal(t, 1, x.logs.FilterMessageSnippet("does not take spans").Len())
}

func TestNoTraces(t *testing.T) {
	traces, err := telemetry.NewTraces(t.Context(), telemetry.DefaultTracesConfig(), telemetry.NewBuild("test", ""), "pod", zap.NewNop())
	require.NoError(t, err)
	require.Nil(t, traces)
	require.False(t, traces.On())
	require.Equal(t, sampled, traces.Begin(telemetry.Step{Parent: sampled}).Trace(sampled))
	require.Nil(t, traces.Follow(telemetry.Step{Parent: sampled}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, traces.Run(ctx))
}

func TestTraceparent(t *testing.T) {
	require.Equal(t, sampled, telemetry.Traceparent(sampled))
	require.True(t, telemetry.Sampled(sampled))
	require.Equal(t, notSampled, telemetry.Traceparent(notSampled))
	require.False(t, telemetry.Sampled(notSampled))
	for _, bad := range []string{
		"", "nonsense", "01" + sampled[2:], sampled + "-x", strings.ToUpper(sampled), sampled[:53] + "0x", sampled[:53] + "X1",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
	} {
		require.Empty(t, telemetry.Traceparent(bad), bad)
		require.False(t, telemetry.Sampled(bad), bad)
	}
}

func TestTracesConfig(t *testing.T) {
	require.NoError(t, telemetry.DefaultTracesConfig().Validate())
	require.EqualError(t, telemetry.TracesConfig{Endpoint: "collector:4318", Ratio: 1.5, Timeout: time.Hour, Queue: 1}.Validate(),
		"endpoint: must be http(s)://host:port\nratio: must be between 0 and 1, got 1.5\ntimeout: must be between 100ms and 30s, got 1h0m0s\n"+
			"queue: must be between 512 and 1000000, got 1")
	c := telemetry.DefaultTracesConfig()
	c.Endpoint, c.Ratio = "https://u:s3cret@collector:4318", math.NaN()
	err := c.Validate()
	require.ErrorContains(t, err, "OTEL_EXPORTER_OTLP_HEADERS")
	require.ErrorContains(t, err, "ratio:")
	require.NotContains(t, err.Error(), "s3cret")
	_, err = telemetry.NewTraces(t.Context(), c, telemetry.NewBuild("test", ""), "pod", zap.NewNop())
	require.Error(t, err)
}

// What is carried on as a trace is a traceparent of version 00, unchanged, and only such a one is sampled.
func FuzzTraceparent(f *testing.F) {
	for _, seed := range []string{
		sampled, another, notSampled, "", strings.ToUpper(sampled), sampled + "-x", "ff" + sampled[2:], sampled[:3] + strings.Repeat("0", 32) + sampled[35:], sampled[:53] + "0G",
	} {
		f.Add(seed)
	}
	form := regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])$`)
	f.Fuzz(func(t *testing.T, text string) {
		m := form.FindStringSubmatch(text)
		valid := m != nil && strings.Trim(m[1], "0") != "" && strings.Trim(m[2], "0") != ""
		if !valid {
			require.Empty(t, telemetry.Traceparent(text))
			require.False(t, telemetry.Sampled(text))
			return
		}
		require.Equal(t, text, telemetry.Traceparent(text))
		require.Equal(t, strings.ContainsAny(m[3], "13579bdf"), telemetry.Sampled(text))
	})
}
