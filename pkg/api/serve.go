package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Handler is the whole API without its listener. Run's loops are needed for grants of single coupons.
func (a *API) Handler() http.Handler { return http.HandlerFunc(a.serveHTTP) }

// request is what is known of a request while it is served.
type request struct {
	id     string
	route  *route // nil: none
	caller caller
	err    error // what to tell the log
	span   *telemetry.Span
}

// operation is the route's id; none: empty.
func (r *request) operation() string {
	if r.route == nil {
		return ""
	}
	return r.route.id
}

type requestKey struct{}

// note keeps a problem's cause for the access log's neighbour: faults of ours and of the database are logged once,
// with the request's id.
func (a *API) note(ctx context.Context, p *Problem) {
	gone := errors.Is(ctx.Err(), context.Canceled) // nobody's fault
	if req, ok := ctx.Value(requestKey{}).(*request); ok && p.Status >= http.StatusInternalServerError && !gone {
		req.err = p
	}
}

const statusGone = 499 // the client did not wait for the answer

func (a *API) serveHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	req := &request{id: requestID(r.Header)}
	w.Header().Set("X-Request-Id", req.id)
	ans := newAnswer(w)
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), requestKey{}, req), a.cfg.RequestTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	if p := a.serveSafely(ans, r, req); p != nil {
		a.note(ctx, p)
		ans.fail(p)
	}
	crash.Before(crash.Answer, req.operation())
	ans.send()
	if crash.Enabled {
		_ = http.NewResponseController(w).Flush() // or it is not sent before we return
	}
	crash.After(crash.Answer, req.operation())
	req.traced(ans.status)
	a.record(req, r.Method, ans, time.Since(start), ans.cut || errors.Is(r.Context().Err(), context.Canceled))
	if ans.cut {
		panic(http.ErrAbortHandler) //nolint:forbidigo // the server's way to cut an answer short, so that it cannot pass for a whole one
	}
}

// serveSafely gives the problem to answer with, if there is one.
func (a *API) serveSafely(ans *answer, r *http.Request, req *request) (p *Problem) {
	defer func() {
		if v := recover(); v != nil {
			a.log.Error("a handler panicked", zap.Any("panic", v), zap.String("request_id", req.id), zap.ByteString("stack", debug.Stack()))
			p = problem(http.StatusInternalServerError, CodeInternal, "a fault of ours; it is in the log under the request's id")
		}
	}()
	return a.serve(ans, r, req)
}

func (a *API) serve(ans *answer, r *http.Request, req *request) *Problem {
	if body, contentType, ok := a.spec.of(r.URL.Path); ok {
		return serveSpec(ans, r, body, contentType)
	}
	if p := a.find(r, req); p != nil {
		return p
	}
	if req.route.signed {
		return a.serveSigned(ans, r, req)
	}
	t, p := a.guard.find(r.Header)
	if p != nil {
		return p
	}
	req.caller.name = t.name
	scope, p := t.allow(req.route.scopes)
	if p != nil {
		return p
	}
	if req.route.sandbox && !a.cfg.Sandbox {
		return notSandbox()
	}
	if p := a.limits.rate(t.name, scope, time.Now()); p != nil {
		return p
	}
	if req.caller, p = t.caller(r.Header); p != nil {
		return p
	}
	a.begin(req)
	if p := checkURL(r.URL); p != nil {
		return p
	}
	body, p := a.body(ans, r, req.route)
	if p != nil {
		return p
	}
	in := a.metrics.waiting.WithLabelValues(string(scope))
	in.Inc()
	defer in.Dec()
	return a.handle(ans, r, req, scope, body)
}

// handle is the request itself, once it may be done.
func (a *API) handle(ans *answer, r *http.Request, req *request, scope Scope, body []byte) *Problem {
	k, p := keyOf(r.Header, req.route)
	if p != nil {
		return p
	}
	req.caller.idem = k
	ctx := withLender(withCaller(r.Context(), req.caller))
	work := func() {
		ans.stream = req.route.stream
		a.mux.ServeHTTP(ans, r.WithContext(ctx))
	}
	gated := func(ctx context.Context, f func() *Problem) *Problem { return a.gated(ctx, scope, f) }
	now := func(_ context.Context, f func() *Problem) *Problem { return f() }
	switch {
	case k != nil && req.route.ungated: // the handler waits for its turn itself
		return a.withKey(ctx, ans, k, bodyHash(r, body), gated, work)
	case k != nil: // one turn for all of it
		return gated(ctx, func() *Problem { return a.withKey(ctx, ans, k, bodyHash(r, body), now, work) })
	case req.route.ungated:
		work()
		return nil
	default:
		return gated(ctx, func() *Problem {
			work()
			return nil
		})
	}
}

// gated runs f in its turn.
func (a *API) gated(ctx context.Context, scope Scope, f func() *Problem) *Problem {
	leave, p := a.limits.gates[scope].enter(ctx)
	if p != nil {
		return p
	}
	defer leave()
	return f()
}

// failed is the problem of an error, noted for the log.
func (a *API) failed(ctx context.Context, err error) *Problem {
	p := problemOf(ctx, err)
	a.note(ctx, p)
	return p
}

// find gives the request its route.
func (a *API) find(r *http.Request, req *request) *Problem {
	escaped := r.URL.EscapedPath()
	if escaped == "" || path.Clean(escaped) != escaped {
		return problem(http.StatusNotFound, CodeBadRequest, "there is no such path")
	}
	if _, pattern := a.mux.Handler(r); pattern != "" && r.Method != http.MethodHead {
		if rt := a.routes[pattern]; rt != nil {
			req.route = rt
			return nil
		}
	}
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := *r
		probe.Method = method
		if _, pattern := a.mux.Handler(&probe); a.routes[pattern] != nil {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return problem(http.StatusNotFound, CodeBadRequest, "there is no such path")
	}
	p := problem(http.StatusMethodNotAllowed, CodeBadRequest, fmt.Sprintf("the path takes %s, not %s", strings.Join(allowed, ", "), clip(r.Method)))
	p.headers = http.Header{"Allow": {strings.Join(allowed, ", ")}}
	return p
}

// checkURL refuses what is no text, and parameters that come twice: of two values one would be ignored in silence.
func checkURL(u *url.URL) *Problem {
	if !utf8.ValidString(u.Path) {
		return badRequest("path", u.Path, "must be UTF-8")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return badRequest("query", u.RawQuery, "cannot be read")
	}
	for name, values := range query {
		switch {
		case !utf8.ValidString(name):
			return badRequest("query", name, "must be UTF-8")
		case len(values) > 1:
			return badRequest("query."+clip(name), strings.Join(values, " and "), "must be given once")
		case !utf8.ValidString(values[0]):
			return badRequest("query."+clip(name), values[0], "must be UTF-8")
		}
	}
	return nil
}

const (
	smallBody   = 64 << 10 // what any request needs but a batch of grants
	largeBodies = 16       // that are read at the same time
	// signedBodies are fewer: who sent one is known only once it has been read.
	signedBodies = 4
	// drained is what is thrown away of a body that is too large: who sends it whole before reading anything would else be
	// hung up on, and never hear why.
	drained = 32 << 20
)

// body reads the body and puts it back. Bodies are read before their request has its turn, so that a slow client takes
// nobody's; large ones are few at a time, or their sum would have no bound.
func (a *API) body(ans *answer, r *http.Request, rt *route) ([]byte, *Problem) {
	if rt.method == http.MethodGet {
		r.Body = http.NoBody
		return nil, nil
	}
	most := a.cfg.MaxBody
	if !rt.large {
		most = min(most, smallBody)
	}
	from := http.MaxBytesReader(ans.w, r.Body, most)
	leave := func() {}
	body, err := io.ReadAll(io.LimitReader(from, smallBody))
	if err == nil && len(body) == smallBody && rt.large {
		gate := a.large
		if rt.signed {
			gate = a.signed
		}
		var p *Problem
		if leave, p = gate.enter(r.Context()); p != nil {
			return nil, p
		}
	}
	if err == nil && len(body) == smallBody { // there may be more, or too much
		var rest []byte
		rest, err = io.ReadAll(from)
		body = append(body, rest...)
	}
	leave() // what is too much is thrown away as it comes, and takes no room
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		_, _ = io.CopyN(io.Discard, r.Body, drained)
		return nil, problem(http.StatusRequestEntityTooLarge, CodeTooLarge, fmt.Sprintf("the body may have %d bytes at most", most))
	case err != nil:
		return nil, problem(http.StatusRequestTimeout, CodeTimeout, "the body did not come in time, or not whole").because(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.Header.Set("Content-Type", strings.ToLower(r.Header.Get("Content-Type"))) // huma takes media types to have a case
	return body, nil
}

// record writes the access log and the metrics. Paths hold ids, so the route's pattern stands for them.
func (a *API) record(req *request, method string, ans *answer, took time.Duration, gone bool) {
	at, status := noRoute, ans.status
	if gone {
		status = statusGone
	}
	if req.route != nil {
		at = req.route.path
	} else {
		method = noRoute // a client can make up as many as it likes
	}
	a.metrics.count(at, method, status, took)
	fields := []zap.Field{
		zap.String("route", at), zap.String("method", method), zap.Int("status", status), zap.Duration("took", took),
		zap.Int("bytes", ans.size()), zap.String("token", req.caller.name), zap.String("request_id", req.id),
	}
	if req.err != nil {
		a.log.Warn("request failed", append(fields, zap.Error(req.err))...)
		return
	}
	a.log.Info("request", fields...)
}

const maxRequestID = 64

// requestID takes the client's if it is sane, else makes one.
func requestID(h http.Header) string {
	id := h.Get("X-Request-Id")
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !slices.Contains([]rune("._-"), r)
	}
	if id == "" || len(id) > maxRequestID || strings.ContainsFunc(id, odd) {
		return strings.ToLower(rand.Text()[:20])
	}
	return id
}
