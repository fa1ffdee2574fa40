// Package wakeup finds users who were about to buy and are about to lose coupons, and may give them a reason to come back
// (requirement R35).
//
// A reminder's window of the configured offset that closes asks More: a user who browsed or filled a cart a short while ago and
// has not ordered since is told of by coupon.at_risk, in the transaction that closes the window. Others act on that event; so
// does Handle, which grants a coupon of a template of its own, if one is configured and what is at risk is worth it.
//
// # Invariants
//
//   - One event for a user and a day, by its id, and one grant, by its key, however often either comes and whichever pod does it.
//   - The grant's stock and its cap per user are the template's own: campaigns are not touched. A refusal is an answer.
//   - Of an erased user, of one who wants to hear nothing at all, and of coupons that have ended, nothing.
package wakeup
