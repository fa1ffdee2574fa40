// Package issuance takes grants from RabbitMQ: it decodes the deliveries of P.issuance, gathers their grants into
// transactions, and answers each delivery once its coupons are committed.
//
//	deliveries ─► decode ─► gather ─► Issue (≤ batch grants, one transaction) ─► ack
//	                 │                   │
//	                 └── not readable ───┴── the database refuses it for what it holds ─► parked, with the reason
//
// # Invariants
//
//   - A delivery is acked only after everything in it is committed or parked. Grants are idempotent by key, so a
//     delivery that comes again changes nothing.
//   - A business refusal is an answer, written by Issue itself; only what cannot be read, or cannot be stored, is
//     parked. Bad members are parked by themselves, as an issuance that can be mended and replayed; the rest of their
//     batch goes on.
//   - One member that the database refuses does not hold up others: its transaction is halved until it is alone.
//   - While the database is away nothing is decided: consumption pauses, and no attempt counts.
//   - One call works on a bounded number of grants, so that a stop never waits for long.
package issuance
