package coupon

import "time"

// Operation is long work that an operator asked for: a rebuild, a bulk change, a replay of events. It is a row, so that the same command goes on
// with one that stopped, and two do not work on it at once.
type Operation struct {
	ID       uint64
	Kind     string
	Ask      []byte // JSON of what was asked for
	Progress []byte // JSON of whoever works on it; empty: none yet
	Epoch    uint64 // of the claim
	Created  time.Time
	Moved    time.Time     // the last step was stored
	Idle     time.Duration // since then
	Left     time.Duration // how long the lease of who has it still runs; 0: nobody has it
	Resumed  bool          // it had been begun before
	Held     bool          // false: another process works on it
}

// OperationHold is what a holder shows for every step.
type OperationHold struct {
	Owner string
	ID    uint64
	Epoch uint64
	Lease time.Duration
}
