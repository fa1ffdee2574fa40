package linear

import (
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Bounds of what happens to one pair: they make its state comparable.
const (
	MaxOrders = 4
	MaxKeys   = 8
	NoKey     = -1
)

// Show is the verb of a reader.
const Show coupon.Verb = "show"

// Call is one call about a pair's coupons.
type Call struct {
	Verb      coupon.Verb   // or Show
	Of        []int         // which of the two, in the order in which the call names them; one for Show, extend and void
	Order     int           // of the verbs of orders: which of the pair's
	Key       int           // which of the pair's idempotency keys, or NoKey
	LockFor   time.Duration // lock, renew: whole seconds
	EndsAt    time.Time     // extend: a whole second
	BreakLock bool          // void
	Partial   bool          // refund
	Stranger  bool          // of a user who has none of the coupons
}

// String is a line about it.
func (c Call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v", c.Verb, c.Of)
	if c.Verb != Show && c.Verb.OfOrder() {
		fmt.Fprintf(&b, " for order %d", c.Order)
	}
	if c.Verb == coupon.VerbLock || c.Verb == coupon.VerbRenew {
		fmt.Fprintf(&b, ", %s", c.LockFor)
	}
	if c.Verb == coupon.VerbExtend {
		fmt.Fprintf(&b, " to %s", clock(c.EndsAt))
	}
	for _, fact := range []struct {
		is   bool
		name string
	}{{c.BreakLock, "breaking"}, {c.Partial, "partial"}, {c.Stranger, "by a stranger"}, {c.Key != NoKey, fmt.Sprint("key ", c.Key)}} {
		if fact.is {
			b.WriteString(", " + fact.name)
		}
	}
	return b.String()
}

// Answer is what came back, as far as it is compared.
type Answer struct {
	Code  coupon.Code // of a refusal; empty: it was done
	Now   time.Time   // the database's clock that decided; zero if the answer does not tell it
	Shown [2]Shown    // as many as the call named, in its order
}

// Shown is a coupon in an answer. Of a refusal only the code and the state are told.
type Shown struct {
	Code      coupon.Code
	State     string // as seen
	Stored    string
	Version   uint32
	OrderID   string
	LockUntil time.Time
	ExpiresAt time.Time // zero: never
	Repeated  bool
}

// String is a line about it.
func (a Answer) String() string {
	var b strings.Builder
	if a.Code != "" {
		b.WriteString(string(a.Code))
	} else {
		b.WriteString("ok")
	}
	if !a.Now.IsZero() {
		b.WriteString(" at " + clock(a.Now))
	}
	for _, s := range a.Shown {
		if s == (Shown{}) {
			continue
		}
		b.WriteString("; ")
		if a.Code != "" {
			fmt.Fprintf(&b, "%s %s", s.State, s.Code)
			continue
		}
		fmt.Fprintf(&b, "%s (%s) v%d", s.State, s.Stored, s.Version)
		if s.OrderID != "" {
			b.WriteString(" of " + s.OrderID)
		}
		if !s.LockUntil.IsZero() {
			b.WriteString(" until " + clock(s.LockUntil))
		}
		b.WriteString(", ends " + clock(s.ExpiresAt))
		if s.Repeated {
			b.WriteString(", repeated")
		}
	}
	return b.String()
}

// Event is a call with its answer.
type Event struct {
	Client int
	Call   Call
	Answer *Answer // nil: it is not known what became of the call
	Sent   time.Time
	Got    time.Time // when the answer came, or the caller gave up
}

func clock(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return at.UTC().Format("05.000")
}
