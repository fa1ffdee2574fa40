// Package profile keeps what notices need to know of users: it takes user.activity, user.profile and user.deleted from P.users,
// seals addresses before the database sees them, opens them for who sends, forgets whom nothing was heard of for a while, and
// seals again what an old key sealed.
//
// # Invariants
//
//   - An address is in memory and in RabbitMQ, never in a column, a log line, a label or an error. Without a key addresses are
//     dropped, which is said once.
//   - A delivery is acked only after what it tells is committed. Repeated, late and out of order is normal: of each fact the last
//     by its event's time holds (coupon.Known).
//   - What cannot be read or stored is parked with the names of the bad fields, and without its content.
//   - While the database is away nothing is decided: consumption pauses.
package profile
