package coupon

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Ahead names what a sandbox brings forward.
type Ahead string

// What can be brought forward.
const (
	AheadEnd      Ahead = "end"      // the coupon's end
	AheadLock     Ahead = "lock"     // the end of the lock that an order holds
	AheadReminder Ahead = "reminder" // a reminder before the end, and the end with it
)

// Aheads lists them all.
func Aheads() []Ahead { return []Ahead{AheadEnd, AheadLock, AheadReminder} }

// Sandbox is the actor of what a sandbox did.
const Sandbox = "sandbox"

// MaxForward is the furthest from now that something is brought to.
const MaxForward = 366 * 24 * time.Hour

// Forward brings what a coupon waits for to the instant In from now. It is an operator's step like an extension: it counts a
// version, stands in the history, and what was scheduled before does nothing. For sandboxes alone: no real coupon's end is
// brought forward without a reason of the shop's.
type Forward struct {
	CouponID uint64
	What     Ahead
	In       time.Duration // whole seconds
	Offset   string        // reminder: its offset, as the installation has it; empty: the next one
	Actor    string        // who asks; the history says sandbox, and this in the reason
	Trace    string
}

// Forwarded is what became of it.
type Forwarded struct {
	Acted
	Now time.Time // the database's clock, which decided
	At  time.Time // when what was brought forward comes; zero if refused
}

// Validate reports every fault, each beginning with the field's name.
func (f Forward) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if f.CouponID == 0 {
		bad("coupon_id: must be above 0, got 0")
	}
	if f.What != AheadEnd && f.What != AheadLock && f.What != AheadReminder {
		bad("what: must be one of %v, got %q", Aheads(), f.What)
	}
	if f.In < time.Second || f.In > MaxForward || f.In%time.Second != 0 {
		bad("in_seconds: must be whole seconds between 1 and %d, got %s", int(MaxForward/time.Second), f.In)
	}
	if f.Offset != "" && f.What != AheadReminder {
		bad("offset: goes with a reminder only, got %q", f.Offset)
	} else if _, err := ParseOffset(f.Offset); f.Offset != "" && err != nil {
		bad("offset: %w", err)
	}
	if len(f.Actor) > MaxText || !utf8.ValidString(f.Actor) {
		bad("actor: must have at most %d bytes of UTF-8, got %d", MaxText, len(f.Actor))
	}
	return errors.Join(errs...)
}

// Order is the operator's act that it is recorded as.
func (f Forward) Order() Order {
	reason := "forward " + string(f.What)
	if f.Actor != "" {
		reason += ", asked by " + f.Actor
	}
	return Order{Verb: VerbExtend, CouponIDs: []uint64{f.CouponID}, Actor: Sandbox, Reason: reason, Trace: f.Trace}
}

// Apply decides, at the instant now, what it does to the coupon: Apply's table of an extension, and for a lock its end moved to
// where a lock may reach. at is when what was brought forward comes; detail tells people why it was refused. r is when the
// installation reminds.
func (f Forward) Apply(c *Coupon, r Reminders, now time.Time) (v Verdict, at time.Time, detail string) {
	at = CeilSecond(now.Add(f.In))
	switch f.What {
	case AheadEnd:
		v, detail = f.extend(c, at, now)
	case AheadLock:
		v, at, detail = f.lock(c, at, now)
	case AheadReminder:
		v, detail = f.reminder(c, r, at, now)
	default:
		v, detail = refuse(CodeInvalid), fmt.Sprintf("what: must be one of %v, got %q", Aheads(), f.What)
	}
	if v.Refused != "" {
		at = time.Time{}
	}
	return v, at, detail
}

// extend moves the end.
func (f Forward) extend(c *Coupon, end, now time.Time) (Verdict, string) {
	if IsNever(end) {
		return refuse(CodeInvalid), "the end would come after the year 9999"
	}
	o := f.Order()
	o.EndsAt = end
	v := Apply(c.Row, Ask{Verb: VerbExtend, EndsAt: end}, now)
	if v.Refused == "" {
		return v, ""
	}
	return v, v.Refused.Detail(c, &o)
}

// lock moves the end of a live lock, no further than a lock may reach.
func (f Forward) lock(c *Coupon, until, now time.Time) (Verdict, time.Time, string) {
	switch seen := c.Seen(now); {
	case seen == Unused:
		return refuse(CodeNotLocked), until, "no order holds it"
	case seen != Locked:
		row := c.Row
		row.Status = seen
		v := Ask{}.gone(row)
		o := f.Order()
		return v, until, v.Refused.Detail(c, &o)
	}
	until = c.lockEnd(until)
	switch {
	case until.Equal(c.LockUntil):
		return Verdict{Repeat: true}, until, ""
	case !until.After(now):
		return refuse(CodeInvalid), until, "a lock may not reach beyond the late-pay window after the end"
	}
	return Verdict{Steps: []Step{{
		From: Locked, To: Locked, Cause: CauseAdmin, OrderID: c.OrderID, LockUntil: until, ExpiresAt: c.ExpiresAt,
	}}}, until, ""
}

// reminder moves the end to where the reminder's instant is at. Who holds a lock is not reminded, so that the coupon must be
// unused.
func (f Forward) reminder(c *Coupon, r Reminders, at, now time.Time) (Verdict, string) {
	if c.Seen(now) == Locked {
		return refuse(CodeLocked), "an order holds it: nobody is reminded of it"
	}
	o, detail := f.offset(c, r, now)
	if detail != "" {
		return refuse(CodeInvalid), detail
	}
	return f.extend(c, at.Add(o.Before), now)
}

// offset chooses among the reminders of the coupon: that which was asked for, else the one that comes next, else the one that
// is nearest to the end. One with a time of day cannot be had at any other time.
func (f Forward) offset(c *Coupon, r Reminders, now time.Time) (chosen Offset, detail string) {
	var next, nearest *Offset
	for i := range r.Offsets {
		o := &r.Offsets[i]
		if !c.Terms.Reminders.Has(o.Name) || o.Local {
			continue
		}
		if o.Name == f.Offset {
			return *o, ""
		}
		if nearest == nil || o.Before < nearest.Before {
			nearest = o
		}
		if c.ExpiresAt.Add(-o.Before).After(now) && (next == nil || o.Before > next.Before) {
			next = o
		}
	}
	switch {
	case f.Offset != "":
		return Offset{}, fmt.Sprintf("offset: %q is none of the installation's that the template picks and that has no time of day", f.Offset)
	case next != nil:
		return *next, ""
	case nearest != nil:
		return *nearest, ""
	default:
		return Offset{}, "what: the installation and the template remind of nothing, or only at a time of day"
	}
}
