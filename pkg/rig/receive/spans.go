package receive

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const spansLimit = 16 << 20 // bytes of a request, unpacked

// Span as a Spans receiver has read it. Ids are hexadecimal, as in a traceparent.
type Span struct {
	Trace, ID, Parent string
	Service, Name     string
	Kind              string
	Links             [][2]string // trace and span
	Attributes        map[string]string
	Start, End        time.Time
	Failed            string // what the status of an error says; "error" if nothing
}

// Spans is an OTLP receiver over HTTP on a free loopback port: it takes protobuf alone, plain or by gzip. Safe for concurrent use.
type Spans struct {
	server *http.Server
	addr   string
	owned  sync.WaitGroup

	mu    sync.Mutex
	spans []Span
	code  int // 0: all is well
}

// StartSpans starts one. It runs until Close.
func StartSpans(ctx context.Context) (*Spans, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for spans: %w", err)
	}
	s := &Spans{addr: l.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", s.take)
	s.server = &http.Server{Handler: mux, ReadHeaderTimeout: headerWait}
	s.owned.Go(func() { _ = s.server.Serve(l) }) // Close ends it
	return s, nil
}

// URL is what telemetry.traces.endpoint is set to.
func (s *Spans) URL() string { return "http://" + s.addr }

// Refuse answers with this code from now on; 0: with 200 again.
func (s *Spans) Refuse(code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.code = code
}

// Spans gives those that came, in their order.
func (s *Spans) Spans() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.spans...)
}

// Close ends it, and waits.
func (s *Spans) Close() error {
	err := s.server.Close()
	s.owned.Wait()
	if err != nil {
		return fmt.Errorf("closing the receiver of spans: %w", err)
	}
	return nil
}

func (s *Spans) take(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	code := s.code
	s.mu.Unlock()
	if code != 0 {
		w.WriteHeader(code)
		return
	}
	spans, err := readSpans(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.spans = append(s.spans, spans...)
	s.mu.Unlock()
	body, err := proto.Marshal(&collector.ExportTraceServiceResponse{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(body) // the peer went away
}

func readSpans(r *http.Request) ([]Span, error) {
	if r.Header.Get("Content-Type") != "application/x-protobuf" {
		return nil, errors.New("no protobuf")
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, fmt.Errorf("unpacking: %w", err)
		}
		body = unpacked
	}
	text, err := io.ReadAll(io.LimitReader(body, spansLimit))
	if err != nil {
		return nil, fmt.Errorf("reading: %w", err)
	}
	var in collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	var out []Span
	for _, resource := range in.GetResourceSpans() {
		service := attributes(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				out = append(out, spanOf(service, span))
			}
		}
	}
	return out, nil
}

func spanOf(service string, in *trace.Span) Span {
	out := Span{
		Trace: hex.EncodeToString(in.GetTraceId()), ID: hex.EncodeToString(in.GetSpanId()), Parent: hex.EncodeToString(in.GetParentSpanId()),
		Service: service, Name: in.GetName(), Kind: in.GetKind().String(), Attributes: attributes(in.GetAttributes()),
		Start: time.Unix(0, int64(in.GetStartTimeUnixNano())), End: time.Unix(0, int64(in.GetEndTimeUnixNano())),
	}
	for _, l := range in.GetLinks() {
		out.Links = append(out.Links, [2]string{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId())})
	}
	if in.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR {
		out.Failed = "error"
		if m := in.GetStatus().GetMessage(); m != "" {
			out.Failed = m
		}
	}
	return out
}

func attributes(in []*common.KeyValue) map[string]string {
	out := make(map[string]string, len(in))
	for _, kv := range in {
		switch v := kv.GetValue().GetValue().(type) {
		case *common.AnyValue_StringValue:
			out[kv.GetKey()] = v.StringValue
		case *common.AnyValue_IntValue:
			out[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		default:
			out[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return out
}
