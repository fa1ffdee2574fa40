// Package rig starts and kills real processes: the three workers of a fleet, and the servers of this checkout's stack. It is for
// tests and lapsectl.
//
// Invariants:
//   - only the stack's own servers are touched: found by its pid files, the start time compared
//   - whatever is started here has an owner that stops it and waits for it
package rig
