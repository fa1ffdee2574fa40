// Package broker speaks to RabbitMQ for everyone else: it owns connections,
// declares and verifies a ladder.Plan, publishes with confirms, and consumes
// in batches. It is the only importer of amqp091-go.
//
// # Sessions
//
// A session is one connection and the channels opened on it. It is made, used
// and thrown away; nothing in it is ever repaired, and the library's own
// recovery stays off: over a reconnect that lets an ack with an old tag settle
// a new delivery. A delivery belongs to the session that delivered it. When
// the session dies its unsettled deliveries are forgotten, a late ack for one
// of them is refused, and the broker delivers the message again.
//
//	dial ──► declare (topology.declare) ──► serve ──► gone
//	  ▲                                                │
//	  └────────── jittered backoff, for ever ◄─────────┘
//
// Publishing and consuming use separate connections, because the broker stops
// reading from a connection that publishes into an alarm. Four ends are
// watched: connection close, channel close, consumer cancel, end of the
// delivery channel; each leads to a new session or subscription.
//
// # Invariants
//
//   - No call hangs. Writes go through a bounded buffer with a deadline of its
//     own (wire), every request to the broker has a deadline after which the
//     connection is torn down, and callers never touch the socket.
//   - A message counts as published only if the broker confirmed it and, if it
//     was mandatory, did not return it.
//   - A delivery is acked after everything that replaces it is confirmed.
//   - What cannot be settled is requeued by closing its channel, once, and
//     consumption pauses until there is reason to go on: never a hot loop.
//   - What is published is always a fresh message: headers that the broker's
//     dead-lettering left on it are taken off, or it would be dropped as a
//     cycle when it dies in the same queue again.
package broker
