package telemetry

import (
	"context"
	"fmt"
	"net/http"
)

// check is a readiness check of which at most one run is under way, so that one that hangs cannot pile up.
type check struct {
	name string
	run  Check
	busy chan error // of the run under way; guarded by Admin.mu
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready  bool          `json:"ready"`
	Checks []CheckResult `json:"checks"`
}

// CheckResult is one check's answer; Reason is empty when it is ready.
type CheckResult struct {
	Name   string `json:"name"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

func (a *Admin) serveReady(w http.ResponseWriter, r *http.Request) {
	res := a.Readiness(r.Context())
	status := http.StatusOK
	if !res.Ready {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, res)
}

// Readiness runs every check, all at once, each for CheckTimeout at most, and gives their answers in order of registration.
func (a *Admin) Readiness(ctx context.Context) Readiness {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.CheckTimeout)
	defer cancel()
	a.mu.Lock()
	checks := append([]*check(nil), a.checks...)
	runs := make([]chan error, len(checks))
	for i, c := range checks {
		runs[i] = a.begin(c)
	}
	a.mu.Unlock()

	out := Readiness{Ready: true, Checks: make([]CheckResult, 0, len(checks))}
	for i, c := range checks {
		result := CheckResult{Name: c.name}
		select {
		case err := <-runs[i]:
			runs[i] <- err // for whoever else waits for this run
			if result.Ready = err == nil; err != nil {
				result.Reason = err.Error()
			}
		case <-ctx.Done():
			result.Reason = fmt.Sprintf("no answer within %s", a.cfg.CheckTimeout)
		}
		out.Ready = out.Ready && result.Ready
		out.Checks = append(out.Checks, result)
	}

	return out
}

// begin returns the run under way, or begins one. The run's time is its own: it ends after CheckTimeout, whoever asked.
func (a *Admin) begin(c *check) chan error {
	if c.busy != nil {
		return c.busy
	}
	done := make(chan error, 1)
	c.busy = done
	a.inFlight.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), a.cfg.CheckTimeout)
		defer cancel()
		err := c.run(ctx)
		a.mu.Lock()
		c.busy = nil
		a.mu.Unlock()
		done <- err
	})

	return done
}
