// Package notice tells each user once of many events: it gathers events in windows, one open window for each user
// and kind, and when a window closes tells the user of its members with one notice per channel.
//
// The walk of an event, each arrow a commit, what follows it repeatable:
//
//	broker ──Collector──▶ item in the user's open window ──ack
//	window due ──Closer──▶ members fixed, state re-read, one notice per channel recorded (pending, leased)
//	pending notice ──Channel──▶ sent and recorded as sent
//
// Invariants:
//   - an event is in one window for ever, however often it comes: its id is unique
//   - the row (window, channel) of a notice exists before anything is sent, so no window is told twice on a channel
//   - adding to a window and closing it lock the same row: no item is lost between them or counted twice
//   - a member whose coupon has changed since drops out; a notice without members is recorded as suppressed
//   - the inbox row and the mark "sent" are one transaction: exactly once. Other channels send first and mark after:
//     a pod that dies between the two sends again when the lease has run out
//
// Any number of pods collect and close side by side; what one leaves unfinished another takes up after Config.Lease.
// All instants are the database's.
package notice
