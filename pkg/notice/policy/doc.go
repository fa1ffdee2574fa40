// Package policy decides whom to tell of a closed window, by which channels and when (requirements R30 and R31).
//
// The first rule that matches by kind, offset and worth names routes; each is a chain of channels, of which the first that is
// permitted gets the notice and the rest are its fallbacks. A channel may be refused by an opt-out, by the user's inactivity
// (SMS alone), by erasure, by lateness or by quiet hours in the user's zone.
//
// Invariants, each held by a property test over the whole tz database:
//   - no notice is planned within its channel's quiet hours, nor at or after the instant from which on it is of no use;
//   - a reminder moves earlier, to margin before the quiet hours begin; only if that has passed, to the next permitted instant. What
//     is told after the end never moves earlier than now;
//   - every configured channel of the rule is in the decision exactly once: pending, suppressed with its reason, or as a fallback;
//   - the decision is a function of its arguments: it is made within a transaction, perhaps more than once.
//
// An instant is quiet by what the clock on the wall shows: an hour that the clocks repeat is quiet both times, one that they jump
// over is never there.
package policy
