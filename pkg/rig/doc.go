// Package rig handles what tests and lapsectl run for real: this checkout's stack of servers behind its fence, fleets of
// worker processes that can be killed, and a proxy for faults of the network. Package demo below it runs the demo.
//
// Invariants:
//   - nothing writes to a server before Stack.Check has let it pass: loopback, and answering with this checkout's token;
//   - no process is signalled but our own children, and those of a pid file whose start time and boot still agree.
//
// Only tests and lapsectl import it.
package rig
