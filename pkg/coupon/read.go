package coupon

import "time"

// WalletQuery asks for a page of a user's coupons. Those of one state as seen now: by earliest end first, expired ones by
// latest end first.
type WalletQuery struct {
	UserID string
	State  Status // as seen; zero: every state
	Limit  int
	After  string // Page.Next of the page before; empty: from the beginning
}

// ListQuery asks for a page of coupons as an operator sees them, in the order of ids (with Batch or Template) or of
// ends. At least one of Template, Batch and State is set.
type ListQuery struct {
	Template uint64
	Batch    string
	State    Status    // as stored; zero: every state
	EndsFrom time.Time // inclusive; zero: no bound
	EndsTo   time.Time // exclusive; zero: no bound
	Limit    int
	After    string
}

// Page is a part of a list. A page may hold fewer coupons than the limit, even none, and still have a next one: what a
// page costs is bounded by what it looks at.
type Page struct {
	Now     time.Time // the database's clock of the reading
	Coupons []Coupon
	Next    string // where the next page begins; empty: there is none
}

// Summary is a user's wallet in figures.
type Summary struct {
	Now     time.Time
	Usable  int        // seen as unused, and valid
	Ending  int        // of those, ending within the time asked for
	NextEnd time.Time  // the earliest end of those; zero: none ends
	Value   []MoneySum // of those, by currency
	More    bool       // there are more than were counted
}

// MoneySum is an amount of one currency, in minor units.
type MoneySum struct {
	Amount   int64
	Currency string
}

// Idempotent is what is known of an Idempotency-Key.
type Idempotent struct {
	State  IdempotentState
	Status int    // of the answer, if Answered
	Answer []byte // likewise
}

// IdempotentState says how a request with a key is to be treated.
type IdempotentState uint8

// The states.
const (
	IdempotentFresh    IdempotentState = iota // ours: do it, then say FinishIdempotent
	IdempotentAnswered                        // done: give the same answer
	IdempotentBusy                            // somebody is at it
	IdempotentReused                          // the key came with another body
)

// Counted is one event as the statistics count it.
type Counted struct {
	CouponID   uint64
	Version    uint32
	TemplateID uint64
	From, To   Status
	Moved      bool // a lock that was renewed or an end that was moved: counts nothing
	At         time.Time
	Value      int64
}

// DayStats are the counts of a template on a UTC day. Values are minor units of the template's currency.
type DayStats struct {
	Day                                                               time.Time
	Granted, Locked, Released, Used, Refunded, Expired, Voided        int64
	GrantedValue, UsedValue, RefundedValue, ExpiredValue, VoidedValue int64
}
