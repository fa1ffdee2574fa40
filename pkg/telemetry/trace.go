package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// Kind is what a span is to others.
type Kind = trace.SpanKind

// The kinds.
const (
	Internal = trace.SpanKindInternal
	Server   = trace.SpanKindServer
	Client   = trace.SpanKindClient
	Producer = trace.SpanKindProducer
	Consumer = trace.SpanKindConsumer
)

// Step is what a span tells of.
type Step struct {
	Name   string
	Kind   Kind
	Parent string   // W3C traceparent; empty or not valid: it begins a trace
	Links  []string // of a step that many traces meet in; those that are not traced are left out
}

// Traces makes spans and sends them to an OTLP receiver. A receiver that is away costs spans and nothing else. Its methods may be
// called on nil, which traces nothing. Safe for concurrent use.
type Traces struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	timeout  time.Duration
}

// maxLinks of one span.
const maxLinks = 128

// NewTraces makes them for one process, which pod names; nil if none are asked for. Run sends what is left at the end.
func NewTraces(ctx context.Context, c TracesConfig, b Build, pod string, log *zap.Logger) (*Traces, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	if c.Endpoint == "" {
		return nil, nil //nolint:nilnil // traces nothing
	}
	at, err := url.Parse(c.Endpoint)
	if err != nil {
		return nil, errors.New("traces: endpoint: must be http(s)://host:port")
	}
	if at.Path == "" || at.Path == "/" {
		at.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, // it connects when it has something to send
		otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithTimeout(c.Timeout), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: c.Timeout, MaxElapsedTime: 2 * c.Timeout}),
	)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	limits.LinkCountLimit = maxLinks
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(&quietly{SpanExporter: exporter, said: NewRepeats(log, time.Minute, nil)}, sdk.WithMaxQueueSize(c.Queue), sdk.WithExportTimeout(3*c.Timeout)),
		sdk.WithSampler(byLinks{sdk.ParentBased(sdk.TraceIDRatioBased(c.Ratio))}),
		sdk.WithRawSpanLimits(limits),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "lapse-"+b.Name), attribute.String("service.version", b.Version), attribute.String("service.instance.id", pod),
		)),
	)
	return &Traces{provider: provider, tracer: provider.Tracer("github.com/lapsehq/lapse"), timeout: c.Timeout}, nil
}

// Run sends spans until ctx ends, and then, within StopsWithin, what is left.
func (t *Traces) Run(ctx context.Context) error {
	<-ctx.Done()
	if t == nil {
		return nil
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
	defer cancel()
	_ = t.provider.Shutdown(last) // the receiver does not answer, which has been said
	return nil
}

// StopsWithin is how long Run may take to end.
func (t *Traces) StopsWithin() time.Duration {
	if t == nil {
		return time.Second
	}
	return t.timeout + time.Second
}

// On reports whether there are any.
func (t *Traces) On() bool { return t != nil }

// Begin begins a span, unless its trace is not sampled: then it is nil. A step with a parent is in the parent's trace; one without, and
// without links, begins a trace for its share of Ratio; one with links begins one if a link is sampled.
func (t *Traces) Begin(s Step) *Span {
	if t == nil {
		return nil
	}
	parent := parse(s.Parent)
	if parent.IsValid() && !parent.IsSampled() {
		return nil
	}
	var links []trace.Link
	for _, l := range s.Links {
		if c := parse(l); c.IsValid() && c.IsSampled() && len(links) < maxLinks {
			links = append(links, trace.Link{SpanContext: c})
		}
	}
	if len(s.Links) > 0 && len(links) == 0 && !parent.IsValid() {
		return nil
	}
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), parent)
	_, span := t.tracer.Start(ctx, s.Name, trace.WithSpanKind(s.Kind), trace.WithLinks(links...))
	if !span.IsRecording() {
		return nil
	}
	return &Span{span: span}
}

// Follow begins a span in a trace that is there, and none otherwise.
func (t *Traces) Follow(s Step) *Span {
	if t == nil || !Sampled(s.Parent) {
		return nil
	}
	return t.Begin(s)
}

// Span is a step on its way. Its methods may be called on nil. For one goroutine at a time.
type Span struct{ span trace.Span }

// Trace is the traceparent for whatever follows from the step; of no span, what came.
func (s *Span) Trace(came string) string {
	if s == nil {
		return came
	}
	c := s.span.SpanContext()
	return "00-" + c.TraceID().String() + "-" + c.SpanID().String() + "-" + c.TraceFlags().String()
}

// Set says more of it. A value is a string, a whole number, or what fmt makes of it.
func (s *Span) Set(key string, value any) {
	if s == nil {
		return
	}
	switch v := value.(type) {
	case string:
		s.span.SetAttributes(attribute.String(key, v))
	case int:
		s.span.SetAttributes(attribute.Int(key, v))
	case int64:
		s.span.SetAttributes(attribute.Int64(key, v))
	case uint64:
		s.span.SetAttributes(attribute.Int64(key, int64(v)))
	default:
		s.span.SetAttributes(attribute.String(key, fmt.Sprint(v)))
	}
}

// End ends it. Of an error its text is not told, which might hold anything: class is a word of ours.
func (s *Span) End(class string) {
	if s == nil {
		return
	}
	if class != "" {
		s.span.SetStatus(codes.Error, class)
	}
	s.span.End()
}

// Sampled reports whether it is a traceparent of a trace that is sampled.
func Sampled(traceparent string) bool {
	c := parse(traceparent)
	return c.IsValid() && c.IsSampled()
}

// Traceparent gives what may be carried on: the text if it is a traceparent of version 00, else nothing.
func Traceparent(text string) string {
	if !parse(text).IsValid() {
		return ""
	}
	return text
}

// parse reads a traceparent of version 00; anything else is ignored, as that specification wants it.
func parse(s string) trace.SpanContext {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return trace.SpanContext{}
	}
	id, err := trace.TraceIDFromHex(s[3:35])
	if err != nil {
		return trace.SpanContext{}
	}
	span, err := trace.SpanIDFromHex(s[36:52])
	if err != nil {
		return trace.SpanContext{}
	}
	flags, ok := octet(s[53:])
	if !ok {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags), Remote: true})
}

func octet(s string) (byte, bool) {
	n := byte(0)
	for i := range 2 {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			n = n<<4 | (c - '0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | (c - 'a' + 10)
		default:
			return 0, false
		}
	}
	return n, true
}

// byLinks samples a step that has links and no parent: they are sampled, or it would not be asked.
type byLinks struct{ sdk.Sampler }

// ShouldSample decides.
func (b byLinks) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	if len(p.Links) > 0 && !trace.SpanContextFromContext(p.ParentContext).IsValid() {
		return sdk.SamplingResult{Decision: sdk.RecordAndSample}
	}
	return b.Sampler.ShouldSample(p)
}

// quietly says once that the receiver does not take spans, in our log instead of the library's.
type quietly struct {
	sdk.SpanExporter
	said *Repeats
}

// ExportSpans sends.
func (q *quietly) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	if err := q.SpanExporter.ExportSpans(ctx, spans); err != nil {
		q.said.Failed("traces: the receiver does not take spans; they are dropped", err, zap.Int("spans", len(spans)))
		return nil
	}
	q.said.Recovered("traces: the receiver takes spans again")
	return nil
}
