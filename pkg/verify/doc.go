// Package verify holds what was promised against what runs: checks from outside, on real processes and real servers.
// lapsectl verify calls it.
//
// A verification is a list of sections, run one after the other; each yields checks, one number against one bound.
//
// Invariants:
//   - a check is judged by what was seen from outside: rows by plain SQL, events by the audit's own consumer, answers of
//     programs as they print them;
//   - whatever a section makes or changes is removed or put back before the next one begins, however it ends;
//   - a section that cannot run is an error, never a passed or a failed check.
package verify
