package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// answer keeps an answer until it is whole: nobody gets half of one, and it can be remembered for an Idempotency-Key.
// A streamed one goes out as it comes.
type answer struct {
	w      http.ResponseWriter
	header http.Header
	status int
	body   bytes.Buffer
	stream bool
	sent   int  // bytes of a stream
	forced int  // the status of a problem that stands, whatever is said later
	cut    bool // a stream has begun and cannot be brought to its end: what went out must not pass for the whole
}

func newAnswer(w http.ResponseWriter) *answer { return &answer{w: w, header: http.Header{}} }

// Header of the answer to come.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader sets the status, once.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	if a.forced != 0 {
		a.status = a.forced
	}
	if a.stream {
		a.sendHeader()
	}
}

// Write adds to the body.
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if !a.stream {
		return a.body.Write(b)
	}
	n, err := a.w.Write(b)
	a.sent += n
	return n, err //nolint:wrapcheck // a writer's own
}

// Unwrap lets a streaming handler flush and move its deadline.
func (a *answer) Unwrap() http.ResponseWriter {
	if a.stream {
		return a.w
	}
	return nil
}

func (a *answer) insist(p *Problem) {
	a.forced = p.Status
	for name, values := range p.GetHeaders() {
		a.header[name] = values
	}
}

// fail replaces whatever there was by a problem; a stream that has begun is cut.
func (a *answer) fail(p *Problem) {
	if a.cut = a.stream && a.status != 0; a.cut {
		return
	}
	a.stream = false
	a.body.Reset()
	a.header = http.Header{}
	a.forced, a.status = 0, p.Status
	for name, values := range p.GetHeaders() {
		a.header[name] = values
	}
	a.header.Set("Content-Type", problemType)
	enc := json.NewEncoder(&a.body)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // texts and numbers only
}

func (a *answer) sendHeader() {
	h := a.w.Header()
	for name, values := range a.header {
		h[name] = values
	}
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if !a.stream {
		h.Set("Content-Length", strconv.Itoa(a.body.Len()))
	}
	a.w.WriteHeader(a.status)
}

// send gives the whole answer to the client.
func (a *answer) send() {
	if a.stream && a.status != 0 {
		return
	}
	a.stream = false
	if a.status == 0 {
		a.status = http.StatusNoContent
	}
	a.sendHeader()
	if a.body.Len() > 0 {
		_, _ = a.w.Write(a.body.Bytes()) // the client went away: nobody to tell
	}
}

// answerOf is the answer that a handler of huma's writes to.
func answerOf(ctx huma.Context) *answer {
	_, w := humago.Unwrap(ctx)
	a, _ := w.(*answer)
	return a
}

func (a *answer) size() int { return a.sent + a.body.Len() }
