package coupon

import "time"

// LockCount is how many coupons are locked. Counts are bounded by who asks.
type LockCount struct {
	Locked int64
	RunOut int64         // of them: past the end of their lock and a grace
	Oldest time.Duration // how long ago the first of those ended; from all that ran out
}

// PlanState is where the planner stands.
type PlanState struct {
	Now      time.Time
	Horizon  time.Duration // 0: unlimited
	Frontier time.Time     // end of the last walked slice; zero: none
	Owner    string        // who walks it
	Held     bool          // by a lease that lives
	Lag      time.Duration // how long the next coupon has been within the horizon without its trigger

	Reminders []RemindState // by offset, as the fleet reminds
}

// RemindState is where the planner stands at one offset.
type RemindState struct {
	Offset   string
	Frontier time.Time     // as of a plan; zero: not begun
	Lag      time.Duration // how long the next coupon has been within the lead without its reminder
}
