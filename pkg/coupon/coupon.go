// Package coupon is the domain, pure: the states of a coupon, the decision that a trigger meets, the rules that
// turn "end of 31 October in Shanghai" into an instant, and the errors that callers can tell apart.
//
// It imports the standard library only, reads no clock and does no I/O. Instants are UTC; an end has a
// resolution of one second, and Never stands for "no end".
package coupon

import (
	"fmt"
	"time"
)

// Status is the state of a coupon.
type Status uint8

// The five states (requirement R1). The numbers are stored and never change.
const (
	Unused  Status = 1 // granted and not reserved
	Locked  Status = 2 // reserved by an order until LockUntil
	Used    Status = 3 // redeemed
	Expired Status = 4 // ended before it was used
	Voided  Status = 5 // withdrawn by an operator
)

// String gives the name used in events, the API and metric labels.
func (s Status) String() string {
	switch s {
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
		return fmt.Sprintf("status(%d)", uint8(s))
	}
}

// Cause says what drove a transition (requirement R7).
type Cause string

// The causes kept in history. CauseGrant is the cause of the first row alone.
const (
	CauseGrant  Cause = "grant"
	CauseLadder Cause = "ladder"
	CauseSweep  Cause = "sweep"
	CauseLazy   Cause = "lazy"
	CauseLock   Cause = "lock"
	CauseRefund Cause = "refund"
	CauseAdmin  Cause = "admin"
	CauseImport Cause = "import"
)

// Precision is a template's promise of how close to its end a coupon is processed (requirement R19).
type Precision string

// The precision classes. Until the spread comes, all of them are processed at the end itself.
const (
	Exact    Precision = "exact"
	Standard Precision = "standard"
	Relaxed  Precision = "relaxed"
)

// Class is the letter of the precision in a routing key: 'x' for exact, 'r' for the others.
func (p Precision) Class() byte {
	if p == Exact {
		return 'x'
	}
	return 'r'
}

// Valid reports whether p is one of the three classes.
func (p Precision) Valid() bool { return p == Exact || p == Standard || p == Relaxed }

// Never is the end of a coupon that has none: the table cannot hold NULL there, since a comparison with NULL is
// neither true nor false. Events and the API say null.
var Never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant instant

// IsNever reports whether t stands for "no end".
func IsNever(t time.Time) bool { return !t.Before(Never) }

// Partitions is the number of partitions of routing keys and of the outbox. It is part of the wire format.
const Partitions = 16

// Partition of a coupon: one coupon's triggers and events keep their order within it.
func Partition(id uint64) int { return int(id % Partitions) }

// CeilSecond rounds t up to a whole second: a fraction never shortens a coupon.
func CeilSecond(t time.Time) time.Time {
	if f := t.Truncate(time.Second); !f.Equal(t) {
		return f.Add(time.Second).UTC()
	}
	return t.UTC()
}

// Row is what a decision needs to know of a coupon.
type Row struct {
	ID        uint64
	Status    Status
	Version   uint32
	ExpiresAt time.Time
	DueAt     time.Time // ExpiresAt plus the spread of its precision class
	LockUntil time.Time // zero unless locked
}

// Terms are what a template says of its coupons and what every event of them repeats.
type Terms struct {
	TemplateID uint64
	Revision   uint32
	Value      int64  // integer minor units
	Currency   string // ISO 4217
	Precision  Precision
}

// Transition is one step of a coupon's life: everything that its history row holds and that its event carries.
type Transition struct {
	CouponID  uint64
	Version   uint32 // after the step; 1 for the grant
	From      Status // zero for the grant
	To        Status
	Cause     Cause
	UserID    string
	BatchID   string
	GrantKey  string // of the grant alone
	Issuer    string // of the grant alone
	Terms     Terms
	ValidFrom time.Time
	ExpiresAt time.Time
	DueAt     time.Time
	At        time.Time // the database's clock when it happened, to the millisecond
	OrderID   string
	Actor     string
	Reason    string
	TriggerID string // the trigger that caused it, if one did
	Origin    Origin // of that trigger
	Trace     string // W3C traceparent, may be empty
}

// Lateness is how long after its due instant the transition happened; only meaningful when it left for expired.
func (t Transition) Lateness() time.Duration { return t.At.Sub(t.DueAt) }
