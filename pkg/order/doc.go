// Package order lets orders and coupons meet by events: it takes order.paid, order.closed, order.payment_failed and
// order.refunded from P.orders and does to the coupons what they ask for, by the same verbs as the API.
//
//	order.paid            redeem each coupon; one that the order cannot have is told by coupon.redeem_refused
//	order.closed          release, and a tombstone: a lock that comes after the close is refused
//	order.payment_failed  release; the shopper may pay again
//	order.refunded        refund, and a tombstone: a payment told after it takes nothing; a partial refund moves nothing
//
// # Invariants
//
//   - Out of order and repeated is normal. Every verb is keyed by coupon, order and action, so that a delivery that
//     comes again changes nothing, and what the order has lost meanwhile is not taken from the one that has it now.
//   - A delivery is acked only after its coupons, and the event of every refused redemption, are committed.
//   - Each coupon of an event stands by itself: one that was used elsewhere does not keep the others locked.
//   - Events that share a coupon keep their order within a batch; others are worked on side by side.
//   - A coupon that somebody holds in a transaction delays its own events alone: they wait on the ladder and come back
//     to the queue. After the last attempt they are parked, as is what cannot be read or stored.
//   - While the database is away nothing is decided: consumption pauses, and no attempt counts.
package order
