// Package chaos runs the fleet under load while faults strike at seeded times, and judges afterwards whether what was promised
// holds.
//
//	own stack ─► fleet behind fault proxies ─► load, with a model ┐
//	                                           schedule of faults ┴─► quiet ─► facts by SQL, events, notices ─► judge
//
// Invariants:
//   - it stops and kills servers, and so runs on a stack of its own (rig.OwnStack), never on one that others use;
//   - the schedule, the load and everything else that is drawn come from the seed; the same seed strikes alike at the same
//     times, though the machine makes of it what it will;
//   - every fault is undone, however the run ends;
//   - the judge (chaos/model) is pure, imports no package of ours, and reads only what an outsider can see.
//
// Only tests and lapsectl import it.
package chaos
