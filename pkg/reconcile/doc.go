// Package reconcile holds the books of the installation against each other (requirement R23): counters, statistics and
// histories against coupons, what is overdue or waits too long, and an export of orders against what those orders did.
//
// # No false finding
//
// The database goes on while it is read, so nothing is concluded from two readings that could not both be true:
//
//   - A coupon, its history, its user's counter and what it returned change in one transaction, and are compared within
//     one statement, that is one view.
//   - Sums over all coupons take minutes. What they are of only grows (coupons granted, steps counted, quota returned),
//     so a sum made between two readings of the counter must lie between them; it is a finding when it does not. On a
//     quiet template both are equal, and so nothing is missed; drift that is smaller than what happened meanwhile is found
//     at a quieter hour.
//   - Coupons that were granted so lately that some with a lower id may not be committed are counted with the counters,
//     in their snapshot.
//   - What waits must have waited for long, and is looked at last.
//   - What an export of orders says was true when it was written: what happened later, by the coupon's history, is no
//     finding.
//
// # Repair
//
// Four kinds are mended, if asked: what is overdue is expired and dead locks are settled, through the one core; counters
// are moved by what they are off. A template of which coupons are lost or there twice, or whose histories do not hold, is
// not recounted: its counters are what still tells of the loss.
//
// # Bounds
//
// Ranges of ids are read one statement each; nothing is locked, no transaction outlives a few seconds. Memory holds a
// figure for each template, revision and day, and the findings that are shown; the others are counted.
package reconcile
