// Package compare runs the delay mechanisms one after the other under the same load, on the same servers, and measures them.
//
//	each round, each mechanism: installation ─► ends one after the other ─► a spike ─► a spike with a kill in its midst ─► audit
//	                                                                        └ costs, by /proc
//
// Invariants:
//   - every mechanism gets the same load from the same seed, through the same processes, over the same way in; only delay.mechanism
//     differs;
//   - the order within a round is drawn anew each round, so that no mechanism always comes after the same one;
//   - it kills its own workers and nothing else; servers are left running;
//   - whatever a run made is removed, however it ends, and every wait is bounded.
//
// What was found is [report.Result]. Only tests and lapsectl import this package.
package compare
