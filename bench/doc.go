// Program bench measures the fleet, what people use instead of it, and two limits, in one run on the servers of this checkout's stack,
// and writes docs/benchmarks.json and docs/benchmarks.md. `make bench` runs it; it is a module of its own so that the rivals'
// libraries stay out of the product.
//
// Invariants:
//   - nothing is touched before the stack's fence has let it pass (rig.Stack.Check);
//   - what is compared runs alternately, on the same servers with the same settings, all of them durable;
//   - the same ear measures everybody: a consumer of its own that shares no code with the workers, and plain SQL;
//   - whatever was lost, doubled or early is in the report, ours and the rivals'.
package main
