// Package audit judges a run from outside: by plain SQL and by an AMQP consumer of its own. It imports no other
// package of this module, so that a mistake there cannot hide itself here.
//
// It is told what was asked for (which grant, whose, ending when) and keeps that; what the rows say of their own
// ends is checked against it, never trusted. It is opened before the first grant and listens from then on.
//
// Invariants:
//   - instants are compared on the database's clock, sampled by a connection of the audit's own. An observation
//     counts as early only if even the latest instant at which it can have been made lies before the asked end, so
//     a slow machine cannot make a good run fail;
//   - every event is counted by its id. What the broker delivers again because the audit lost its own connection
//     is not counted as a repeat;
//   - the queue is durable and shared with nobody: it survives the broker's kill and is deleted by Close.
package audit
