// Package adopt takes coupons of another system over: it reads them from a CSV or JSONL file, or from another MySQL, makes of each row, by a
// mapping file, what it would be here, and gives that to the store in batches, at a rate. It also holds what was observed against what the
// other system did.
//
// # Invariants
//
//   - A mapping is a value, and what it makes of a row is pure: the same row gives the same coupon, whenever and how often it is read.
//   - The source is only read: in a read-only session, a page at a time by its key, each statement under a time limit.
//   - The place in the source moves in the transaction that takes a batch over: whoever goes on after a kill misses no row and takes none twice.
//   - A row that no coupon can be made of is told with its line, or key, and the reason. It keeps no other row.
package adopt
