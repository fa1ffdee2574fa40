// Package console is one page for people: what expires when, how the fleet is doing, and why a coupon cannot be used. The publisher
// serves it on its admin port, below /console/.
//
// The page is three kinds of thing: files that are embedded (no build chain; the chart library is vendored as its release has it),
// readings that are the same for everybody (status, forecast, templates), and look-ups (a coupon, a user, what was set aside). Files
// are for everybody, all else needs a bearer token of the API with the scope read or ops; to look at and to replay what was set aside,
// ops.
//
// Invariants: a reading is made at most once in its time, however many look, is bounded by a deadline and by the rows that it may
// count, and is made only while somebody looks; readings that count many rows are made one at a time. The page has no inline script and
// no inline style, takes nothing from another origin, and makes no markup from text. Only a replay changes anything: it names who and
// why. Nothing of a user is logged.
package console
