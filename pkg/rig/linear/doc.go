// Package linear checks that the lifecycle API is linearizable: that whatever several clients asked of the same coupons at the same time,
// and whatever they were answered, could have been asked and answered one call after the other, in an order in which none begins before
// another has ended.
//
// A history is what clients recorded: every call with when it was sent, every answer with when it came, and the calls that were cut off,
// which may have been done at any later point of the order, or not at all. The order is searched for by Porcupine. What one call after the other must answer says the table of
// package coupon, with what the table is told: an order's past with the coupon, and the database's clock. The clock is part of the state,
// for each coupon: it does not go back from one act to the next, since an act reads it while it holds the row. An act's answer tells it; a
// refusal and a reader do not, so theirs may be any instant between the call and the answer. Workers settle passed ends and run-out locks
// whenever they come by, which is a step that nobody asked for, allowed from the end on and never due.
//
// Two coupons make a Pair: orders ask for one of them or both, all or none, so that they are one object. Pairs know nothing of each other.
package linear
