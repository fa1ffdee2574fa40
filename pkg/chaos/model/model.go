package model

import "time"

// State of a coupon, as the database numbers it; None is before the grant.
type State int

// The states.
const (
	None State = iota
	Unused
	Locked
	Used
	Expired
	Voided
)

// String names it.
func (s State) String() string {
	switch s {
	case None:
		return "none"
	case Unused:
		return "unused"
	case Locked:
		return "locked"
	case Used:
		return "used"
	case Expired:
		return "expired"
	case Voided:
		return "voided"
	default:
		return "unknown"
	}
}

// Verb is what was asked of a coupon.
type Verb string

// The verbs; the last four are events of the order.
const (
	Lock     Verb = "lock"
	Renew    Verb = "renew"
	Redeem   Verb = "redeem"
	Release  Verb = "release"
	Refund   Verb = "refund"
	Extend   Verb = "extend"
	Void     Verb = "void"
	Paid     Verb = "paid"
	Closed   Verb = "closed"
	Failed   Verb = "payment_failed"
	Refunded Verb = "refunded"
)

// told reports whether the verb is an event: nobody waits for its answer.
func (v Verb) told() bool { return v == Paid || v == Closed || v == Failed || v == Refunded }

// Answer is how a call ended.
type Answer string

// The answers. Done of an event says that the broker has it.
const (
	Done     Answer = "done"
	Repeated Answer = "repeated" // it had been done before
	Refused  Answer = "refused"
	Unknown  Answer = "unknown" // no answer came: it may have happened
)

// The codes of refusals that the judge knows.
const (
	CodeAlreadyEnded  = "already_ended"
	CodeInvalid       = "invalid"
	CodeLockedByOther = "locked_by_other_order"
	CodeLocked        = "locked"
	CodeNotLocked     = "not_locked"
	CodeExpired       = "expired"
	CodeAlreadyUsed   = "already_used"
	CodeNotUsed       = "not_used"
	CodeUsedByOther   = "used_by_other_order"
	CodeVoided        = "voided"
	CodeOrderClosed   = "order_closed"
	CodeOrderRefunded = "order_refunded"
)

// Call is one thing that was asked of a coupon, with all its attempts. The calls of a coupon are made one after the other.
type Call struct {
	Verb     Verb
	Order    string
	Sent     time.Time // not before
	Got      time.Time // answered by then; zero: never, or an event
	Answer   Answer
	Code     string    // of a refusal
	Attempts int       // how often it was sent
	End      time.Time // of Extend
}

// Promise is a coupon that was asked for.
type Promise struct {
	Key, User string
	End       time.Time
	Sent, Got time.Time // of the grant
	Answer    Answer    // Done also of a grant that the broker has, as long as nothing came back
	Code      string
	ID        uint64 // of the answer; 0: none came
	Calls     []Call
}

// Row is a coupon as the database has it, with its history.
type Row struct {
	ID      uint64
	Keys    []string // grant keys that stand for it
	User    string
	State   State
	Version uint32
	Expires time.Time
	Lock    time.Time // end of the lock; zero: none
	Order   string
	Used    bool // there is an instant of use
	Ended   bool // … of expiry
	Steps   []Step
}

// Step is a row of history.
type Step struct {
	Version  uint32
	From, To State
	Cause    string
	Order    string
	At       time.Time
	Expires  time.Time // after it
	Lock     time.Time // after it if To is Locked, else of the lock that it ended
}

// Event is one that was heard: once in this list for each id.
type Event struct {
	ID      string
	What    string // second word of its type
	Coupon  uint64
	Version uint32
	Times   int       // how often it was heard
	By      time.Time // it was heard first at this instant at the latest
}

// Notice is what was to be told by one channel.
type Notice struct {
	Window  uint64
	Channel string
	State   string
	Coupons []uint64 // that it names
}

// Facts are what was found after a run.
type Facts struct {
	Low, High time.Time     // the database's clock when the rows were read
	Bound     time.Duration // how long after its end a coupon must be settled
	Rows      []Row
	Events    []Event
	// RedeemRefused are payments that an event told of as refused, by coupon and order ("7:order"): their code.
	RedeemRefused map[string]string
	GrantRefused  map[string]string // by grant key
	Notices       []Notice
	Arrived       map[string]int // how often a message of a channel that must not repeat came, by its id
	Unsettled     []string       // what still waits and should not, in words: messages, windows, parked ones
}
