// Package archive moves finished coupons out of the way (requirement R24): expired, used and voided ones whose last change
// is old go with their history into tables of their own, and old notices are removed.
//
//	quiet hours ─► page of (status, due_at, id) ─► those old enough ─► batches ─► coupon_archive, coupon_history_archive
//
// # Invariants
//
//   - A coupon is in exactly one place at every instant, and readers look in both; a refund brings one back.
//   - None goes while something of it is still in the outbox, to be folded into a quota, or to be told to a user.
//   - Transactions are small and wait for nobody: rows that somebody holds are passed over and met again the next day.
//   - Pods share the work without leases: what one has locked, the others pass over.
//   - A page that yields nothing moves the cursor on. Where the walk over used and voided coupons stands is kept, so that
//     what is not done within one night's budget is done in the next: their ends say nothing of when they were used.
//   - While the outbox is long, it rests: quiet hours are not quiet then.
package archive
