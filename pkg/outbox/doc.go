// Package outbox is the relay between the database and the broker: it reads what transactions left in the outbox,
// publishes it with confirms, and deletes what was confirmed.
//
// # How it works
//
// The relays of all processes share sixteen partitions by leases. A relay makes passes over a lane of its partitions,
// the triggers' lane first; a pass is a pipeline of three: while one batch is being confirmed the next is read and the
// one before is deleted. Passes walk by cursor from id zero to what was the end when the walk began, and then again: a
// row that was committed late, below ids that are gone already, is found by the next walk, and no walk comes upon a row
// that was written after one it has missed (see the statement outbox.batch in store).
//
// # Invariants
//
//   - A row is deleted only by its own id and only after the broker's confirm. No transaction is open meanwhile.
//   - A coupon's event is sent only after the confirm of the coupon's event before it. When one fails, the coupon's
//     later rows are held back, and only those.
//   - Repeats happen: an unknown outcome, a crash, a lease that ran out while its owner stalled. They carry the same
//     message id. Loss and a changed order of first appearances do not.
//   - Only the broker's answer to a message itself (returned, nacked) counts as a refusal. After store.RefusalLimit of
//     them the store parks the row, and its partition goes on. A broker that is away or blocked costs waiting alone.
//   - Delays are computed from the database's clock, read with the batch, and monotonic time since the answer: the
//     estimate is never ahead of the database.
package outbox
