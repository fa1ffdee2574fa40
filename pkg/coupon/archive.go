package coupon

// ArchivePage is what a look for finished coupons found, without a lock (requirement R24).
type ArchivePage struct {
	Old  []Finished // whose last change is old enough, in the order of the walk
	Next Cursor     // where to go on
	More bool       // the page was full
}

// Finished is a coupon in a final state, at the version at which it was seen. One that changes is left where it is.
type Finished struct {
	ID      uint64
	Version uint32
}

// Archived is what became of a batch.
type Archived struct {
	Moved   int // coupons, with their history
	Steps   int // rows of history that went with them
	Waiting int // left: something of theirs is still to be sent, folded or told
	Left    int // left: somebody holds them, or they have changed
}

// FinalStatuses are the states in which a coupon goes into the archive. Used is one of them: a refund brings it back.
func FinalStatuses() []Status { return []Status{Expired, Used, Voided} }
