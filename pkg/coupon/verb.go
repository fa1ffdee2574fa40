package coupon

import (
	"time"
)

// Verb is what checkout or an operator asks of a coupon.
type Verb string

// The verbs. A grant is no verb of a coupon, and ends come by triggers: see Decide.
const (
	VerbLock    Verb = "lock"    // an order reserves it
	VerbRenew   Verb = "renew"   // the same order keeps it for longer
	VerbRedeem  Verb = "redeem"  // the order is paid
	VerbRelease Verb = "release" // the order gives it back
	VerbRefund  Verb = "refund"  // the paid order is refunded in full
	VerbExtend  Verb = "extend"  // an operator moves its end, either way
	VerbVoid    Verb = "void"    // an operator withdraws it

	VerbReinstate Verb = "reinstate" // an operator gives one that has ended back, with a later end
)

// Verbs lists them all.
func Verbs() []Verb {
	return []Verb{VerbLock, VerbRenew, VerbRedeem, VerbRelease, VerbRefund, VerbExtend, VerbVoid, VerbReinstate}
}

// OfOrder reports whether the verb is an order's, and keyed by it.
func (v Verb) OfOrder() bool { return v != VerbExtend && v != VerbVoid && v != VerbReinstate }

// LatePay says whether an order that holds a live lock may pay after the coupon's end (requirement R4).
type LatePay string

// The policies.
const (
	HonourLock LatePay = "honour_lock" // it was reserved in time, so it counts
	Strict     LatePay = "strict"      // from its end on it is expired
)

// Bounds of a lock (requirement R5).
const (
	DefaultLock       = 30 * time.Minute
	MaxLock           = 7 * 24 * time.Hour
	DefaultLateWindow = 30 * time.Minute
	MaxLateWindow     = 7 * 24 * time.Hour
	MaxOrderCoupons   = 10 // of one order, locked together
)

// The refusals of a verb. Each says what the state is now.
const (
	CodeNotFound      Code = "not_found"
	CodeLockedByOther Code = "locked_by_other_order"
	CodeLocked        Code = "locked"        // by a live lock that an operator did not ask to break
	CodeNotLocked     Code = "not_locked"    // the order holds no lock on it
	CodeExpired       Code = "expired"       // its end has passed
	CodeNotYetValid   Code = "not_yet_valid" // its validity has not begun
	CodeAlreadyUsed   Code = "already_used"  // by this order or another
	CodeNotUsed       Code = "not_used"      // the order has not redeemed it
	CodeUsedByOther   Code = "used_by_other_order"
	CodeVoided        Code = "voided"         // withdrawn
	CodeNotExpired    Code = "not_expired"    // it has not ended, so that there is nothing to give back
	CodeOrderClosed   Code = "order_closed"   // the order was closed before it asked for the lock
	CodeOrderRefunded Code = "order_refunded" // the order was refunded before it was said to be paid
	CodeObserved      Code = "observed"       // another system owns it still, and it is only observed here
)

// Ask is a verb with what it needs to be decided. The facts below the line come from the coupon's past, not from the
// asker.
type Ask struct {
	Verb      Verb
	OrderID   string
	LockFor   time.Duration // lock, renew: from now; rounded up to a whole second
	EndsAt    time.Time     // extend, reinstate: the new end, a whole second, or Never
	BreakLock bool          // void: also under a live lock
	Partial   bool          // refund: of a part of the order, which moves nothing
	Tombstone bool          // refund: the order is over, so a lock that it still holds is given up too

	Done     bool // this order has done this verb to this coupon before (history; see Ask.Remember)
	Over     bool // release, refund: the last lock of this order on it is over, and nothing came of it (likewise)
	Closed   bool // this order was closed: a tombstone is there
	Refunded bool // this order was refunded: a tombstone is there
	Doubt    bool // the database's clock is not believed, or expiry is paused: what comes back past its end stays unused until that is over
}

// AsksPast reports whether history must be asked what this order has done to the coupon before: a repeat answers as the
// first did, and a late repeat of a redeem must not burn a coupon that was refunded meanwhile. What the row says of the
// order now goes before its past: an order that locked the coupon again may redeem it again. Version 3 is the first at
// which a lock or a redemption can be over.
func (a Ask) AsksPast(row *Row) bool {
	own := row.OrderID == a.OrderID
	switch a.Verb {
	case VerbRedeem:
		return row.Version >= 3 && (!own || row.Status != Used && row.Status != Locked)
	case VerbRelease:
		return row.Version >= 3 && (!own || row.Status != Locked)
	case VerbRefund:
		return row.Version >= 3 && (!own || row.Status != Used) && !a.Partial
	case VerbLock, VerbRenew, VerbExtend, VerbVoid, VerbReinstate:
		return false
	default:
		return false
	}
}

// Remember takes in the steps of the coupon's history that belong to the order, in their order. A coupon is redeemed or
// refunded by an order once and for all, but released only if the order did not lock it again.
func (a *Ask) Remember(from, to Status, cause Cause) {
	switch a.Verb {
	case VerbRedeem:
		a.Done = a.Done || to == Used
	case VerbRefund:
		a.Done = a.Done || from == Used
		a.Over = from == Locked && (to == Unused || to == Expired)
	case VerbRelease:
		a.Over = from == Locked && (to == Unused || to == Expired)
		a.Done = a.Over && cause == CauseOrder
	case VerbLock, VerbRenew, VerbExtend, VerbVoid, VerbReinstate:
	default:
	}
}

// Step is one transition that a verb takes. From equals To when a lock is renewed or an end moved.
type Step struct {
	From, To  Status
	Cause     Cause
	OrderID   string    // that the step belongs to: of the lock that it takes, keeps or ends, of the redemption
	LockUntil time.Time // after the step if To is Locked, else of the lock that it ends; zero if there is none
	ExpiresAt time.Time // after the step
}

// Verdict is the answer to an Ask: steps to take, in order; or nothing to do because it is done already; or a refusal. A
// partial refund gets none of the three.
type Verdict struct {
	Steps   []Step
	Repeat  bool
	Refused Code
}

func refuse(code Code) Verdict { return Verdict{Refused: code} }

// Apply is the whole table of the verbs: what each does to the row it meets at the instant now, of the database's
// clock. It is pure and total. A lock that has run out is no lock: whoever comes next meets the coupon as its
// settlement leaves it, and settles it in passing (the first of two steps). Only the order that held it may still redeem
// before the coupon's end, and give it back.
func Apply(row Row, a Ask, now time.Time) Verdict {
	held := row.Status == Locked && row.OrderID == a.OrderID // also if it has run out
	gives := a.Verb == VerbRelease || a.Verb == VerbRefund && a.Tombstone
	switch {
	case row.Observed:
		return refuse(CodeObserved)
	case a.Verb == VerbRefund && a.Partial:
		return Verdict{}
	case a.Done && a.keeps() && (!held || !gives):
		return Verdict{Repeat: true}
	}
	var settled []Step
	ended := !row.ExpiresAt.After(now)
	runOut := row.Status == Locked && !row.LockUntil.After(now)
	switch {
	case (row.Status == Unused || runOut) && ended && a.Verb == VerbReinstate:
		settled = []Step{row.expire()}
		row.Status, row.OrderID, row.LockUntil = Expired, "", time.Time{}
	case row.Status == Unused && ended:
		row.Status = Expired
	case runOut && held && (gives || a.Verb == VerbRedeem && !ended):
		// One step, straight from the lock (requirement R5).
	case runOut && ended:
		row.Status = Expired // as any reader sees it; the trigger that is out settles it
	case runOut:
		settled = []Step{{
			From: Locked, To: Unused, Cause: CauseLock, OrderID: row.OrderID, LockUntil: row.LockUntil, ExpiresAt: row.ExpiresAt,
		}}
		row.Status, row.OrderID, row.LockUntil = Unused, "", time.Time{}
	}
	v := a.apply(row, ended, now)
	if len(v.Steps) > 0 {
		v.Steps = append(settled, v.Steps...)
	}
	return v
}

// expire is the step of a row that has ended, and that nobody has moved yet, before an operator gives it back.
func (r Row) expire() Step {
	step := Step{From: r.Status, To: Expired, Cause: CauseAdmin, OrderID: r.OrderID, LockUntil: r.LockUntil, ExpiresAt: r.ExpiresAt}
	if r.Status == Locked {
		step.Cause = CauseLock
	}
	return step
}

// keeps reports whether the verb is done once by an order and then stays done.
func (a Ask) keeps() bool {
	return a.Verb == VerbRedeem || a.Verb == VerbRelease || a.Verb == VerbRefund
}

// apply meets a row whose run-out lock and passed end have been accounted for.
func (a Ask) apply(row Row, ended bool, now time.Time) Verdict {
	switch a.Verb {
	case VerbLock:
		return a.lock(row, now)
	case VerbRenew:
		return a.renew(row, now)
	case VerbRedeem:
		return a.redeem(row, ended, now)
	case VerbRelease:
		return a.release(row, ended && !a.Doubt)
	case VerbRefund:
		return a.refund(row, ended && !a.Doubt)
	case VerbExtend:
		return a.extend(row, now)
	case VerbVoid:
		return a.void(row)
	case VerbReinstate:
		return a.reinstate(row, now)
	default:
		return refuse(CodeInvalid)
	}
}

// gone is the refusal of a coupon that is in none of the two states in which it can still be used.
func (a Ask) gone(row Row) Verdict {
	switch row.Status {
	case Used:
		return refuse(CodeAlreadyUsed)
	case Expired:
		return refuse(CodeExpired)
	case Voided:
		return refuse(CodeVoided)
	case Unused, Locked:
		return refuse(CodeInvalid)
	default:
		return refuse(CodeInvalid)
	}
}

func (a Ask) lock(row Row, now time.Time) Verdict {
	switch {
	case row.Status == Locked && row.OrderID == a.OrderID:
		return Verdict{Repeat: true}
	case row.Status == Locked:
		return refuse(CodeLockedByOther)
	case row.Status != Unused:
		return a.gone(row)
	case a.Closed:
		return refuse(CodeOrderClosed)
	case a.Refunded:
		return refuse(CodeOrderRefunded)
	case row.ValidFrom.After(now):
		return refuse(CodeNotYetValid)
	}
	return Verdict{Steps: []Step{{
		From: Unused, To: Locked, Cause: CauseOrder, OrderID: a.OrderID, LockUntil: row.lockEnd(now.Add(a.LockFor)), ExpiresAt: row.ExpiresAt,
	}}}
}

func (a Ask) renew(row Row, now time.Time) Verdict {
	switch {
	case row.Status == Unused:
		return refuse(CodeNotLocked)
	case row.Status != Locked:
		return a.gone(row)
	case row.OrderID != a.OrderID:
		return refuse(CodeLockedByOther)
	}
	until := row.lockEnd(now.Add(a.LockFor))
	if !until.After(row.LockUntil) { // a renewal never takes time away
		return Verdict{Repeat: true}
	}
	return Verdict{Steps: []Step{{
		From: Locked, To: Locked, Cause: CauseOrder, OrderID: a.OrderID, LockUntil: until, ExpiresAt: row.ExpiresAt,
	}}}
}

// lockEnd rounds a lock's end up to a second; it reaches at most the late-pay window past the coupon's end.
func (r Row) lockEnd(until time.Time) time.Time {
	until = CeilSecond(until)
	if last := r.ExpiresAt.Add(r.LateWindow); !IsNever(r.ExpiresAt) && until.After(last) {
		return last
	}
	return until
}

func (a Ask) redeem(row Row, ended bool, now time.Time) Verdict {
	switch {
	case row.Status == Used && row.OrderID == a.OrderID:
		return Verdict{Repeat: true}
	case row.Status != Unused && row.Status != Locked:
		return a.gone(row)
	case a.Refunded:
		return refuse(CodeOrderRefunded)
	case row.Status == Locked && row.OrderID != a.OrderID:
		return refuse(CodeLockedByOther)
	case row.Status == Locked && ended && row.LatePay == Strict:
		return refuse(CodeExpired)
	case row.Status == Unused && row.ValidFrom.After(now):
		return refuse(CodeNotYetValid)
	}
	return Verdict{Steps: []Step{{
		From: row.Status, To: Used, Cause: CauseOrder, OrderID: a.OrderID, LockUntil: row.LockUntil, ExpiresAt: row.ExpiresAt,
	}}}
}

func (a Ask) release(row Row, ended bool) Verdict {
	switch {
	case row.Status == Locked && row.OrderID == a.OrderID:
		return giveBack(row, ended)
	case row.Status == Locked:
		return refuse(CodeLockedByOther)
	case a.Over:
		return Verdict{Repeat: true} // what it asks for has come about by itself
	case row.Status == Unused:
		return refuse(CodeNotLocked)
	default:
		return a.gone(row)
	}
}

// giveBack ends the lock that the order holds. Past the coupon's end that expires it.
func giveBack(row Row, ended bool) Verdict {
	step := Step{From: Locked, To: Unused, Cause: CauseOrder, OrderID: row.OrderID, LockUntil: row.LockUntil, ExpiresAt: row.ExpiresAt}
	if ended {
		step.To, step.Cause = Expired, CauseLock
	}
	return Verdict{Steps: []Step{step}}
}

func (a Ask) refund(row Row, ended bool) Verdict {
	switch {
	case row.Status == Used && row.OrderID != a.OrderID:
		return refuse(CodeUsedByOther)
	case row.Status == Locked && row.OrderID == a.OrderID && a.Tombstone:
		return giveBack(row, ended) // refunded before it was said to be paid
	case row.Status != Used && a.Tombstone && a.Over:
		return Verdict{Repeat: true} // likewise, once more
	case row.Status != Used:
		return refuse(CodeNotUsed)
	}
	step := Step{From: Used, To: Unused, Cause: CauseRefund, OrderID: a.OrderID, ExpiresAt: row.ExpiresAt}
	if ended {
		step.To = Expired
	}
	return Verdict{Steps: []Step{step}}
}

func (a Ask) extend(row Row, now time.Time) Verdict {
	switch {
	case row.Status != Unused && row.Status != Locked:
		return a.gone(row)
	case a.EndsAt.Equal(row.ExpiresAt):
		return Verdict{Repeat: true}
	case !a.EndsAt.After(now) || !a.EndsAt.After(row.ValidFrom):
		return refuse(CodeInvalid)
	}
	return Verdict{Steps: []Step{{
		From: row.Status, To: row.Status, Cause: CauseAdmin, OrderID: row.OrderID, LockUntil: row.LockUntil, ExpiresAt: a.EndsAt,
	}}}
}

func (a Ask) reinstate(row Row, now time.Time) Verdict {
	switch {
	case row.Status == Unused && a.EndsAt.Equal(row.ExpiresAt):
		return Verdict{Repeat: true}
	case row.Status == Unused:
		return refuse(CodeNotExpired)
	case row.Status == Locked:
		return refuse(CodeLocked)
	case row.Status != Expired:
		return a.gone(row)
	case !a.EndsAt.After(now) || !a.EndsAt.After(row.ExpiresAt):
		return refuse(CodeInvalid)
	}
	return Verdict{Steps: []Step{{From: Expired, To: Unused, Cause: CauseAdmin, ExpiresAt: a.EndsAt}}}
}

func (a Ask) void(row Row) Verdict {
	switch {
	case row.Status == Voided:
		return Verdict{Repeat: true}
	case row.Status != Unused && row.Status != Locked:
		return a.gone(row)
	case row.Status == Locked && !a.BreakLock:
		return refuse(CodeLocked)
	}
	return Verdict{Steps: []Step{{
		From: row.Status, To: Voided, Cause: CauseAdmin, OrderID: row.OrderID, LockUntil: row.LockUntil, ExpiresAt: row.ExpiresAt,
	}}}
}
