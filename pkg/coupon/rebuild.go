package coupon

import "time"

// RebuildAsk is what a rebuild is to do.
type RebuildAsk struct {
	Target      string        // broker and installation that the triggers go to
	FromScratch bool          // do not go on where an unfinished one stands
	Grace       time.Duration // what is overdue for longer is the sweep's
}

// RebuildPlace is where a rebuild stands: locks are walked first, then what is unused.
type RebuildPlace struct {
	Until   time.Time `json:"-"` // coupons that are due before it are within the horizon; Never when that is unlimited
	Since   time.Time `json:"-"` // what was due before it is left to the sweep
	Unused  bool      `json:"unused"`
	Cursor  Cursor    `json:"cursor"` // the last row that was published
	Unlocks int64     `json:"unlocks"`
	Expires int64     `json:"expires"`
	Done    bool      `json:"done"`
}

// RebuildCounts is what there is to do.
type RebuildCounts struct {
	Unlocks, Expires int64 // triggers that a rebuild from its place on would publish
	Overdue          int64 // left to the sweep, locks included
	Beyond           int64 // unused, beyond the horizon: left to the planner
}
