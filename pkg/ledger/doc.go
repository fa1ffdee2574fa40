// Package ledger keeps what is counted: the statistics of each template and day, from the events of its coupons, and the
// quota that expired and voided coupons give back.
//
//	P.bundles ─► P.ledger ─► decode ─► CountEvents (≤ batch events, one transaction) ─► ack
//	quota_return ─► FoldQuota (a transaction) ─► template_stock, user_quota
//	coupon_history of earlier releases ─► SeedStats, once
//
// # Invariants
//
//   - A delivery is acked only after it is counted, and an event is counted once, whoever brings it and how often: an
//     event is its coupon and version, and noting it and adding it up are one transaction.
//   - Statistics follow the events: they are behind by what waits in the queue, and agree with the rows when it is empty.
//   - Nothing here stands in a transition's way. The hot counters are touched by these loops alone, after the commit.
//   - Seeding begins when the queue is bound, not before: an event that the queue missed was committed before that, and
//     is found in history.
//   - What tells of no step of a coupon (refusals, notices ahead) is acked unread; what cannot be read, or counted, is
//     parked by itself.
package ledger
