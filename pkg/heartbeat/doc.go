// Package heartbeat shows that the walk goes through, also when nobody's coupon ends. A publisher grants a coupon of each
// precision now and then, which lives for some seconds; it goes by outbox, ladder and expirer as any other, its event is relayed to
// the notifier, which notes that it has come. How long ago the latest of each class did is lapse_heartbeat_age_seconds.
//
// Heartbeats have templates and a user of their own, which no list, statistics or reconciliation shows, and which nobody is told of. Of
// several publishers whichever comes first when it is time grants them; those that ended are removed with the next, so there are about
// twenty at a time, and no more than a hundred when nobody expires them.
package heartbeat
