// Package planner walks the plans of an installation: slices of the (status, due_at, id) index, each so long before they
// come due.
//
// The promotion brings coupons into the horizon: with a finite horizon a coupon that ends later waits as a row, and the
// planner publishes its trigger in time. Beside it stands a plan for every offset at which users are reminded: it publishes
// coupon.expiring events, an offset and its lead ahead of the coupons' ends.
//
// One pod holds a plan by lease; the plan's place (slice, cursor, frontier) is a row, moved only after the broker has
// confirmed what lies before it, so that a pod that dies is resumed where it stood and repeats at most a page.
// Repeats are no-ops: at the expiry core by the row, of reminders by the event's id.
//
// Nothing falls between the verbs and the planner: a verb that leaves a coupon unused writes its trigger itself if
// the coupon is due before max(now + H, frontier) + guard, and a slice [m, m + slice) is walked when m ≤ now + H,
// lowest first. With guard > 2 × slice + the longest transaction, a coupon that was locked or not yet committed
// while its slice passed is within the verb's reach when it comes back. Of reminders H is the offset and its lead; a verb
// tells of those alone whose instants are ahead, and of the latest that passed while an order held the coupon.
//
// The settings are rows that all verbs read. What changes in them is heeded by the planner only when every transaction that
// may have read the former value has ended.
package planner
