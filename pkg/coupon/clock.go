package coupon

import "time"

// ClockReport is what a process last said of the clocks (requirement R25). The database's clock decides; a report is for
// people, and for processes that start while others have stopped expiring.
type ClockReport struct {
	Pod  string
	Role string // publisher, expirer, notifier
	// Offset is how far the database's clock is ahead of the process's own; no decision rests on it.
	Offset time.Duration
	// Jump is how far the database's clock is ahead of where the process's monotonic clock expects it.
	Jump     time.Duration
	Anchored time.Time // the database's clock when the expectation was last set from scratch; zero: not yet
	Tripped  bool      // it expires nothing, for the jump
	Since    time.Time // the first reading since the database's clock last stepped; of a tripped process
	Accepted time.Time // the last acceptance that it went by
	At       time.Time // when it said so, by the database's clock
}
