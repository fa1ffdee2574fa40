// Package demo runs the three real processes against the stack, in a database and prefix of their own, grants coupons
// over RabbitMQ, lets them expire, kills and damages on request, and has everything audited from outside.
//
//	clear what an earlier run kept ─► database, topology ─► audit listens ─► fleet ─► grants ─► ends ─► audit ─► clear or keep
//
// Invariants:
//   - nothing is touched before the stack's fence has let the servers pass;
//   - a run removes whatever it made, however it ends, unless it is to be kept; what was kept is removed by the next run;
//   - the ends asked for are fixed before the first grant, whole seconds of the database's clock, and none lies before
//     its grant.
package demo
