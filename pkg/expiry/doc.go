// Package expiry is the core that ends coupons, and the drivers that ring it: the ladder's due queues and the sweep.
//
// The core (Core.Settle) hands a batch of triggers to the store's one transaction and turns what became of each into
// a result. It is idempotent: duplicates, replays and races are answered by the row and change nothing. What may
// stop it is the clock guard alone: when the database's clock runs ahead of the monotonic one, nothing is expired,
// since late can be mended and early cannot.
//
// The Handler settles deliveries of a due queue: ack what is done, hold what is a moment early, send the rest of a
// delay through the ladder again, retry what failed with growing delay, park what cannot be helped. The Sweeper
// picks up what the ladder missed, behind the ladder's own mark, so that the two do not fight in a spike.
package expiry
