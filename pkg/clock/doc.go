// Package clock watches the one clock that decides, the database's, from every process (design.md §3).
//
// The Guard anchors it to the process's monotonic clock. When it runs ahead of that by more than the tolerance the
// process expires nothing: late can be mended and early cannot. It goes on when both agree again, or after an operator
// has accepted the database's clock: a machine that was suspended, whose monotonic clock stood still, looks the same
// from within as a database whose clock was set, and only a person can tell them apart.
//
// The Watch looks every second, reports what the process sees to the others, and hears of an acceptance. A process
// that starts while others have stopped and none goes on is held until one does, or until an acceptance: it has no anchor
// of its own to know better by.
package clock
