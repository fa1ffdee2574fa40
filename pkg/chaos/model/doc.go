// Package model is what must have come of a run of chaos, and the judge that holds it against what is there. It is pure, and
// shares no code with what it judges.
//
// The driver of the load writes down what it asked for and what it was answered: a Promise for each coupon, with its Calls.
// Whoever looks afterwards gathers Facts: rows and their history, the events that an independent consumer heard, the
// notices that were recorded and that arrived. Judge sets the one against the other:
//
//   - history is the order of things. It must be unbroken, allowed step by step, on time, and lead to the row;
//   - every step of history must have been asked for by a call of that verb and order, between the instants at which the
//     call was sent and answered, or have come by itself when its time had come;
//   - every call that was answered must be found in history: what was confirmed is there, what was repeated had happened,
//     and what was refused was refused with good reason, in a state that the coupon was in meanwhile. A call without an
//     answer may have happened or not, but at most as often as it was tried;
//   - every step has exactly one event id, and no event tells of a step that is not there;
//   - every coupon that expired is named by one notice, and no more.
//
// All instants are of the database's clock. Those of calls are bounds: the earliest at which it can have been sent, the
// latest at which it can have been answered. So a slow machine cannot make a good run fail.
package model
