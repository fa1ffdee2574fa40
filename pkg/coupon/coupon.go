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

// The causes kept in history. CauseGrant is the cause of the first row alone; CauseLock that of a lock which ran out, and of every
// locked coupon that expires.
const (
	CauseGrant  Cause = "grant"
	CauseLadder Cause = "ladder"
	CauseSweep  Cause = "sweep"
	CauseLazy   Cause = "lazy"
	CauseLock   Cause = "lock"
	CauseOrder  Cause = "order" // an order locked, renewed, redeemed or released it
	CauseRefund Cause = "refund"
	CauseAdmin  Cause = "admin"
	CauseImport Cause = "import"
)

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
	ValidFrom time.Time
	ExpiresAt time.Time
	DueAt     time.Time // ExpiresAt plus the spread of its precision class
	LockUntil time.Time // zero unless locked
	OrderID   string    // that holds it or has used it; empty else
	Observed  bool      // another system owns it: no verb moves it, and what the core decides is only noted
	LatePay   LatePay   // of the lock while there is one, else of the template
	// LateWindow is how far beyond ExpiresAt a lock may reach; of the lock or the template, likewise.
	LateWindow time.Duration
}

// Seen is the state that a reader must be shown at the instant now: the passed end and the run-out lock count,
// whether or not a worker has settled them (requirement R20).
func (r Row) Seen(now time.Time) Status {
	switch {
	case r.Status == Unused && !r.ExpiresAt.After(now):
		return Expired
	case r.Status == Locked && !r.LockUntil.After(now) && !r.ExpiresAt.After(now):
		return Expired
	case r.Status == Locked && !r.LockUntil.After(now):
		return Unused
	default:
		return r.Status
	}
}

// Terms are what a template says of its coupons and what every event of them repeats.
type Terms struct {
	TemplateID uint64
	Revision   uint32
	Value      int64  // integer minor units
	Currency   string // ISO 4217
	Precision  Precision
	Offer      Offer
	LatePay    LatePay       // HonourLock by default
	LateWindow time.Duration // whole seconds
	QuotaBack  QuotaBack     // QuotaBackNone by default
	Reminders  Picks         // at which of the fleet's offsets: all by default
}

// QuotaBack says what an expired or voided coupon gives back of its template's quota (requirement R12).
type QuotaBack string

// The policies.
const (
	QuotaBackNone         QuotaBack = "none"
	QuotaBackTotal        QuotaBack = "total"          // the template's total
	QuotaBackTotalAndUser QuotaBack = "total_and_user" // and the user's count
)

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
	Since     time.Time // From Locked or Used: when that began; zero else, and where history is read
	OrderID   string
	LockUntil time.Time // To Locked: its lock's end; From Locked else: of the lock that ended; zero else
	Previous  time.Time // the end before it was moved; zero if it was not
	Actor     string
	Reason    string
	TriggerID string // the trigger that caused it, if one did
	Origin    Origin // of that trigger
	Trace     string // W3C traceparent, may be empty
}

// Lateness is how long after it was owed the transition happened; only meaningful when it left for expired, and below
// zero if a reader's trigger came before the due instant. A lock that reaches the end shields beyond it: then the
// expiry is owed when the lock ends, and is not spread. A coupon that was released, and a used one that was refunded,
// expire by that act, at once.
func (t Transition) Lateness() time.Duration {
	switch {
	case t.From == Unused:
		return t.At.Sub(t.DueAt)
	case t.From == Locked && !t.At.Before(t.LockUntil):
		return t.At.Sub(owed(t.ExpiresAt, t.DueAt, t.LockUntil))
	default:
		return 0
	}
}

// owed is when the expiry of a coupon is owed: at its due instant, or at the end of a lock that reached the coupon's end.
func owed(expiresAt, dueAt, lockUntil time.Time) time.Time {
	if lockUntil.Before(expiresAt) {
		return dueAt
	}
	return lockUntil
}

// Owed is when the row's expiry is owed: at its due instant, or at the end of a lock that reaches the coupon's end.
func (r Row) Owed() time.Time { return owed(r.ExpiresAt, r.DueAt, r.LockUntil) }

// Coupon is a coupon as it is stored, with the terms of its revision.
type Coupon struct {
	Row
	Terms     Terms
	UserID    string
	BatchID   string
	GrantedAt time.Time
	LockedAt  time.Time // zero: not locked; likewise below
	UsedAt    time.Time
	ExpiredAt time.Time
	Cause     Cause // of the expiry
	Archived  bool
}
