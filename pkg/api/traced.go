package api

import (
	"net/http"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

// begin begins the span of a request that changes something, in the trace that it came with, if it is sampled. What the request leaves
// follows from it.
func (a *API) begin(req *request) {
	if !req.route.mutates {
		return
	}
	req.span = a.deps.Traces.Begin(telemetry.Step{Name: req.operation(), Kind: telemetry.Server, Parent: req.caller.trace})
	req.caller.trace = req.span.Trace(req.caller.trace)
}

// traced ends it.
func (r *request) traced(status int) {
	r.span.Set("http.response.status_code", status)
	if status >= http.StatusInternalServerError {
		r.span.End(http.StatusText(status))
		return
	}
	r.span.End("")
}
