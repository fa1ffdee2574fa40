// Package ladder is the delay ladder as a pure plan: which exchanges, queues
// and bindings make a message come due after a delay, and which routing key
// sends a message through them. It talks to nobody; package broker declares
// what Plan returns and publishes what Route answers.
//
// A delay is written in mixed radix, one digit for each level (by default
// months of 30 days, days, hours, minutes, seconds). Every digit but zero is
// one stay in one queue whose only TTL is digit × unit, so within a queue the
// order of arrival is the order of expiry and nothing waits behind a longer
// message. A queue dead-letters to the exchange of the next lower level, the
// last one to the due exchange.
//
// Invariants, each held by a test:
//
//   - the stays of a route sum to the delay rounded up to the millisecond,
//     never less: nothing comes early;
//   - a route visits a queue at most once (a message that dead-letters twice
//     into one queue would be dropped as a cycle);
//   - at every exchange on the way exactly one binding matches;
//   - a routing key always has five digits, kind, class and partition, however
//     many levels are declared, so queues can be split later by bindings alone;
//   - names and arguments of queues are fixed: the broker refuses to change
//     arguments, and never frees a name.
package ladder
