package coupon

import "time"

// FindingKind is a way in which the books can disagree (requirement R23).
type FindingKind string

// The kinds. The first four can be repaired: nothing is lost by it, whatever the cause was.
const (
	FindOverdue    FindingKind = "overdue"    // unused though its end is long over
	FindStuckLock  FindingKind = "stuck_lock" // locked though its lock has long run out
	FindQuota      FindingKind = "quota"      // a counter of a template or a user is not what the coupons say
	FindStatistics FindingKind = "statistics" // a day's figure is not what the history says

	FindBalance  FindingKind = "balance"        // both counters of a template tell of more, or fewer, coupons than there are
	FindLost     FindingKind = "lost"           // a grant key whose coupon is nowhere
	FindTwice    FindingKind = "twice"          // a coupon that is in the table and in the archive
	FindHistory  FindingKind = "history"        // a coupon's history has a gap, or its steps do not join
	FindState    FindingKind = "state"          // a coupon is not as the last step of its history left it
	FindUnsent   FindingKind = "unsent"         // rows of the outbox that nobody sends
	FindParked   FindingKind = "parked"         // rows of the outbox that the broker refused
	FindReturn   FindingKind = "quota_return"   // returned quota that nobody folds
	FindUntold   FindingKind = "untold"         // notices that nobody sends, or windows of them that nobody closes
	FindUncount  FindingKind = "uncounted"      // steps that the statistics have not counted for long
	FindPaid     FindingKind = "order_paid"     // a paid order whose coupon it has not used
	FindClosed   FindingKind = "order_closed"   // a closed order that still holds or has used its coupon
	FindRefunded FindingKind = "order_refunded" // a refunded order whose coupon is still used by it
)

// FindingKinds lists them all, in the order in which people read them.
func FindingKinds() []FindingKind {
	return []FindingKind{
		FindOverdue, FindStuckLock, FindQuota, FindStatistics, FindBalance, FindLost, FindTwice, FindHistory, FindState,
		FindUnsent, FindParked, FindReturn, FindUntold, FindUncount, FindPaid, FindClosed, FindRefunded,
	}
}

// Repairable reports whether findings of the kind can be mended without a person's judgement.
func (k FindingKind) Repairable() bool {
	return k == FindOverdue || k == FindStuckLock || k == FindQuota || k == FindStatistics
}

// Finding is one disagreement.
type Finding struct {
	Kind     FindingKind
	Subject  string // "coupon 7", "template 3", "template 3 2026-11-01"
	Expected string
	Found    string
}

// Fence is where a reconciliation stands in time and in the coupons.
type Fence struct {
	Now     time.Time // the database's clock
	Settled uint64    // coupons up to this id were granted a while ago: none of them is still being written
	Last    uint64    // the highest coupon
	Seeded  bool      // the statistics hold what happened before they were kept
}

// Tally is how many coupons of a template's revision are in a state.
type Tally struct {
	Template uint64
	Revision uint32
	Status   Status
	Archived bool
	Coupons  int64
}

// Book is what a template's counters say at one instant, beside the coupons that were granted too late to be settled.
type Book struct {
	Template uint64
	Revision uint32 // that issues now
	Taken    int64  // of the quota
	Pending  int64  // returns that are not folded yet
	// Reinstated is how many coupons that had given their piece of the quota back have taken it again, ever.
	Reinstated int64
	Late       []Tally
}

// StepTally is how many steps of one kind the history of a template's revision tells of, on a UTC day.
type StepTally struct {
	Template  uint64
	Revision  uint32
	Day       time.Time
	From, To  Status
	Counted   int64 // which the statistics have seen
	Uncounted int64 // which they have not, though it is long ago
}

// TemplateDay is a row of the statistics.
type TemplateDay struct {
	Template uint64
	DayStats
}

// UserCount is a user's counter that disagrees with the user's coupons.
type UserCount struct {
	Template uint64
	UserID   string
	Taken    int64 // what the counter says
	Coupons  int64 // what the coupons say
	Revised  bool  // the template was revised, so that coupons from before a limit need no counter
}

// Backlog is what waits too long somewhere.
type Backlog struct {
	Kind   FindingKind
	Where  string
	Rows   int64
	Oldest time.Time
}
