// Package lapsetest is Lapse in memory, for the tests of those who integrate it: a server of the whole HTTP API on a port of its
// own, a client of it, a clock that the test moves, and every event that consumers would hear.
//
//	lapse := lapsetest.New(t)
//	tpl, err := lapse.Client().CreateTemplate(ctx, …)   // the real client, the real HTTP
//	lapse.Advance(24 * time.Hour)                       // what ends in that time ends, in its order
//	lapse.Events()                                      // coupon.issued.v1, coupon.expired.v1, …
//
// The HTTP is package api itself, and what becomes of a coupon is decided by package coupon: only the tables are maps here. Server
// and memory pass the suite that the API over a real database passes (package conform), so that a test which passes here is about
// what integrators will meet.
//
// What differs, since there is neither broker nor database:
//   - the clock stands still until Advance; then every end, lock and reminder on the way comes at its own instant, none late
//   - nothing waits for anything: no busy, no unavailable (but see Server.Outage), no timeouts of others
//   - events are collected in the order of what happened, each once; over RabbitMQ they come at least once, and one coupon's may
//     come out of order
//   - there are no notices: inboxes are empty. Reminders are told of as coupon.expiring.v1 at their instants, not ahead of them
//   - quota comes back at once, statistics count at once, nothing is archived
//   - everything is lost at the end of the test
package lapsetest
