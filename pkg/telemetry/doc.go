// Package telemetry is how a process tells about itself: a JSON log, a metrics registry, and an admin server with /livez,
// /readyz and /metrics.
//
// Invariants:
//   - nothing here is global: the logger and the registry are made once by cmd and passed on
//   - liveness depends on nothing outside the process; readiness names each check that fails, and why
//   - the same error in a loop is logged once, then counted (Repeats)
package telemetry
