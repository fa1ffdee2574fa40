// Package notice tells each user once of many events: it gathers events in windows, one open window for each user, kind and
// slot (of reminders: offset and local day of the end), and when a window closes tells the user of its members with one notice
// per channel that the policy chooses.
//
// The walk of an event, each arrow a commit, what follows it repeatable:
//
//	broker ──Collector──▶ item in the user's open window ──ack
//	window due ──Closer──▶ members fixed, state re-read, decided; one row per channel: pending or suppressed
//	pending row ──Sender──▶ claimed (leased), prepared (state re-read, caps), sent, settled
//
// Invariants:
//   - an event is in one window for ever, however often it comes: its id is unique
//   - the row (window, channel) of a notice exists before anything is sent, so no window is told twice on a channel
//   - adding to a window and closing it lock the same row: no item is lost between them or counted twice
//   - a member whose coupon has changed since drops out, also in the last step before the send; a notice without members is
//     recorded as suppressed
//   - the inbox row and the mark "sent" are one transaction: exactly once. A channel that sends at most once is marked before it
//     sends: a pod that dies between leaves unknown. Others send first and mark after, and may repeat with the same notice id
//   - each channel has a loop of its own: none waits for another's provider, nor do Collector and Closer for any
//   - a channel claims what it may send at once and no more: memory is bounded whatever the backlog
//   - no address, text or user is in logs at info or above, labels, errors or reasons
//
// Any number of pods collect, close and send side by side; what one leaves unfinished another takes up after Config.Lease.
// Instants that are stored are the database's.
package notice
