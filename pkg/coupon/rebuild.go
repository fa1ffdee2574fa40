package coupon

import "time"

// RebuildAsk is what a rebuild is to do.
type RebuildAsk struct {
	Target      string        // broker and installation that the triggers go to; at most 128 bytes
	FromScratch bool          // do not go on where an unfinished one stands
	Grace       time.Duration // what is overdue for longer is the sweep's
}

// RebuildPlace is where a rebuild stands: locks are walked first, then what is unused.
type RebuildPlace struct {
	Now     time.Time // the database's clock of the claim
	Began   time.Time // when it was begun, maybe by an earlier process
	Until   time.Time // coupons that are due before it are within the horizon; Never when that is unlimited
	Since   time.Time // what was due before it is left to the sweep
	Unused  bool      // the locks are done
	Cursor  Cursor    // the last row that was published
	Unlocks int64     // triggers published since Began
	Expires int64
	Done    bool
	Epoch   uint64 // of the claim
}

// RebuildClaim answers whoever wants to rebuild.
type RebuildClaim struct {
	Place   RebuildPlace
	Held    bool          // by the one that asked
	Resumed bool          // an unfinished one goes on
	Left    time.Duration // not held: how long the other's lease still runs
	Moved   time.Time     // not held: when the other moved last
}

// RebuildCounts is what there is to do.
type RebuildCounts struct {
	Unlocks, Expires int64 // triggers that a rebuild from its place on would publish
	Overdue          int64 // left to the sweep, locks included
	Beyond           int64 // unused, beyond the horizon: left to the planner
}
