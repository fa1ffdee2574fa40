package coupon

import (
	"strconv"
	"time"
)

// Kind is what a trigger rings for.
type Kind string

// The kinds of trigger.
const (
	KindExpire Kind = "expire" // the coupon's end
	KindUnlock Kind = "unlock" // the end of its lock
)

// Origin says who sent a trigger.
type Origin string

// The origins. A rebuilt trigger counts as one of the ladder's.
const (
	OriginLadder  Origin = "ladder"
	OriginLazy    Origin = "lazy"
	OriginRebuild Origin = "rebuild"
	OriginSweep   Origin = "sweep"  // not a message: the sweep's own call
	OriginRepair  Origin = "repair" // not a message either: an operator mends what was overdue
)

// Cause is the cause of an expiry that the origin drove.
func (o Origin) Cause() Cause {
	switch o {
	case OriginLazy:
		return CauseLazy
	case OriginSweep:
		return CauseSweep
	case OriginRepair:
		return CauseAdmin
	case OriginLadder, OriginRebuild:
		return CauseLadder
	default:
		return CauseLadder
	}
}

// Trigger is the delayed message of one coupon. It only rings: the row decides.
type Trigger struct {
	Kind     Kind
	CouponID uint64
	At       time.Time // the instant it was scheduled for: expires_at, or lock_until of an unlock; a whole second
	ID       string    // who sent it, for which version: see TriggerID
	Origin   Origin
	Attempt  int    // failed attempts so far
	Actor    string // of a repair, who and why; no message carries these
	Reason   string
	Trace    string // W3C traceparent, may be empty; it travels beside the body, not in it
}

// The senders of a trigger, as the first letter of its id.
const (
	SentByVerb    = 'v' // written by the verb in its own transaction
	SentByPlanner = 'p' // promoted into the horizon
	SentByRebuild = 'b' // sent again from the row by lapsectl rebuild
)

// TriggerID names a trigger: its sender and the version of the row it was sent for.
func TriggerID(sender byte, id uint64, version uint32) string {
	b := make([]byte, 0, 32)
	b = append(b, sender)
	b = strconv.AppendUint(b, id, 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(version), 10)
	return string(b)
}

// Action is what the row answers a trigger.
type Action uint8

// The answers.
const (
	Drop       Action = iota // nothing to do
	Expire                   // unused or locked → expired
	Unlock                   // locked → unused: the lock ran out before the end
	Reschedule               // not yet due: ring again at Until
)

// String names the action for metrics.
func (a Action) String() string {
	switch a {
	case Expire:
		return "expire"
	case Unlock:
		return "unlock"
	case Reschedule:
		return "reschedule"
	case Drop:
		return "drop"
	default:
		return "unknown"
	}
}

// Decision is the answer and what it needs.
type Decision struct {
	Action Action
	Cause  Cause     // of Expire and Unlock
	Until  time.Time // of Reschedule
	Reason string    // of Drop: why
}

// Step is the transition that d makes of the row it was decided of; false if there is none.
func (d Decision) Step(row *Row) (Step, bool) {
	step := Step{From: row.Status, Cause: d.Cause, OrderID: row.OrderID, LockUntil: row.LockUntil, ExpiresAt: row.ExpiresAt}
	switch d.Action {
	case Expire:
		step.To = Expired
	case Unlock:
		step.To = Unused
	case Drop, Reschedule:
		return Step{}, false
	default:
		return Step{}, false
	}
	return step, true
}

// Reasons for a drop, used as metric labels.
const (
	DropAbsent  = "absent"  // no such coupon
	DropSettled = "settled" // used, expired or voided already
	DropStale   = "stale"   // scheduled for another instant; a newer trigger is out
	DropLocked  = "locked"  // a live lock shields the coupon; its unlock trigger is out
	DropPaused  = "paused"  // it would have expired, and an operator has paused that: the sweep finds the row when it goes on

	DropObserved = "observed" // another system owns it: the decision is noted, and moves nothing
)

// Decide is the whole table of design.md §1: what a trigger does to the row it meets at the instant now (of the
// database's clock). row is nil when there is none. It is total: every state and circumstance has an answer, and
// nothing but the row decides a transition; what the trigger carries decides only what becomes of one that is
// not yet due.
func Decide(row *Row, t Trigger, now time.Time) Decision {
	if row == nil {
		return Decision{Action: Drop, Reason: DropAbsent}
	}
	ended := !row.ExpiresAt.After(now)
	switch row.Status {
	case Unused:
		return decideUnused(row, t, ended)
	case Locked:
		return decideLocked(row, t, ended, now)
	case Used, Expired, Voided:
		return Decision{Action: Drop, Reason: DropSettled}
	default:
		return Decision{Action: Drop, Reason: DropSettled}
	}
}

func decideUnused(row *Row, t Trigger, ended bool) Decision {
	switch {
	case ended:
		return Decision{Action: Expire, Cause: t.Origin.Cause()}
	case t.Kind == KindExpire && t.At.Equal(row.ExpiresAt):
		return Decision{Action: Reschedule, Until: row.DueAt}
	default:
		return Decision{Action: Drop, Reason: DropStale}
	}
}

func decideLocked(row *Row, t Trigger, ended bool, now time.Time) Decision {
	live := row.LockUntil.After(now)
	switch {
	case !live && ended:
		return Decision{Action: Expire, Cause: CauseLock}
	case !live:
		return Decision{Action: Unlock, Cause: CauseLock}
	case t.Kind == KindUnlock && t.At.Equal(row.LockUntil):
		return Decision{Action: Reschedule, Until: row.LockUntil}
	case t.Kind == KindUnlock:
		return Decision{Action: Drop, Reason: DropStale}
	default:
		return Decision{Action: Drop, Reason: DropLocked}
	}
}

// Timed is a trigger on its way: what a delay mechanism must deliver at an instant.
type Timed struct {
	ID       string
	Body     []byte // the encoded trigger
	Kind     Kind
	Class    byte // 'x' or 'r', see Precision.Class
	CouponID uint64
	At       time.Time // when it must ring: due_at, or lock_until
	Trace    string
}

// Settlement is what became of one trigger of a batch.
type Settlement struct {
	Decision Decision
	Busy     bool      // somebody else holds the row now; ring again soon
	Class    byte      // of the row's precision, for rescheduling
	Ends     time.Time // the row's end
	DueAt    time.Time // of an Expire when it was owed (Row.Owed); of an Unlock the row's lock_until
	Terms    Terms     // of a transition
}

// Cursor is a keyset position in the order of (instant, id): the row after it comes next. The zero value is the
// beginning.
type Cursor struct {
	At time.Time
	ID uint64
}

// After reports whether c lies behind other.
func (c Cursor) After(other Cursor) bool {
	return c.At.After(other.At) || (c.At.Equal(other.At) && c.ID > other.ID)
}

// Swept is the result of one sweep batch.
type Swept struct {
	Now     time.Time // the database's clock of the decision
	Settled []Settlement
	Next    Cursor // where to go on
	More    bool   // the batch was full
}

// PlanPromote is the plan that brings triggers into the horizon; those of reminders are Offset.Plan.
const PlanPromote = "promote"

// PlanPlace is where a plan stands (design.md §5).
type PlanPlace struct {
	Now          time.Time     // the database's clock of the reading
	Horizon      time.Duration // how far ahead slices are walked; 0 = unlimited, of the promotion alone
	HorizonSince time.Time     // when it took this value
	Fresh        time.Duration // from now on: where the plan begins that has no frontier yet
	Frontier     time.Time     // end of the last walked slice; zero when there is none
	Start, End   time.Time     // the slice in hand; equal when there is none
	Cursor       Cursor        // the last row of it that was published
	Epoch        uint64        // of the claim
	Skipped      Skipped       // of the page before the cursor; kept by the move
}
