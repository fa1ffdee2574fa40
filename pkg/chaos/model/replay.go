package model

import (
	"fmt"
	"time"
)

// slack is what instants that were rounded to the millisecond may differ by.
const slack = 2 * time.Millisecond

// The causes of steps, as history has them.
const (
	causeGrant  = "grant"
	causeOrder  = "order"
	causeAdmin  = "admin"
	causeLock   = "lock"
	causeRefund = "refund"
)

func byTime(cause string) bool { return cause == "ladder" || cause == "sweep" || cause == "lazy" }

// kind is what a step is: the verb that asks for it, or by itself.
type kind string

const (
	kindGrant  kind = "grant"
	kindExpire kind = "expire" // by itself: its end has passed
	kindUnlock kind = "unlock" // by itself: its lock has run out
	kindGone   kind = "gone"   // a lock that ended past the coupon's end: by itself, or by whoever gave it back
	kindBad    kind = "bad"
)

// at is the coupon between two steps.
type at struct {
	state   State
	order   string
	lock    time.Time
	expires time.Time
	from    time.Time
}

// kindOf classifies a step by the table of what is allowed, whatever its time; kindBad if nothing is.
func kindOf(before at, s Step) kind {
	switch {
	case s.From == None && s.To == Unused && s.Cause == causeGrant:
		return kindGrant
	case s.From == Unused && s.To == Locked && s.Cause == causeOrder:
		return kind(Lock)
	case s.From == Locked && s.To == Locked && s.Cause == causeOrder && s.Order == before.order:
		return kind(Renew)
	case s.From == Unused && s.To == Used && s.Cause == causeOrder:
		return kind(Redeem)
	case s.From == Locked && s.To == Used && s.Cause == causeOrder && s.Order == before.order:
		return kind(Redeem)
	case s.From == Locked && s.To == Unused && s.Cause == causeOrder && s.Order == before.order:
		return kind(Release)
	case s.From == Locked && s.To == Unused && s.Cause == causeLock:
		return kindUnlock
	case s.From == Locked && s.To == Expired && s.Cause == causeLock:
		return kindGone
	case s.From == Unused && s.To == Expired && byTime(s.Cause):
		return kindExpire
	case s.From == Used && (s.To == Unused || s.To == Expired) && s.Cause == causeRefund && s.Order == before.order:
		return kind(Refund)
	case s.From == s.To && (s.From == Unused || s.From == Locked) && s.Cause == causeAdmin:
		return kind(Extend)
	case (s.From == Unused || s.From == Locked) && s.To == Voided && s.Cause == causeAdmin:
		return kind(Void)
	default:
		return kindBad
	}
}

// early says what a step took away before its time; empty: nothing.
func early(before at, k kind, s Step) string {
	ended := !s.At.Before(before.expires)
	switch k {
	case kindExpire:
		if !ended {
			return fmt.Sprintf("expired at %s, before its end %s", clock(s.At), clock(before.expires))
		}
	case kindGone, kind(Refund):
		if s.To == Expired && !ended {
			return fmt.Sprintf("expired at %s by cause %s, before its end %s", clock(s.At), s.Cause, clock(before.expires))
		}
	case kindUnlock:
		if s.At.Before(before.lock) {
			return fmt.Sprintf("its lock was taken at %s, before its end %s", clock(s.At), clock(before.lock))
		}
	default:
	}
	return ""
}

// late says which step came though the coupon's time was over.
func late(before at, k kind, s Step) string {
	ended := !s.At.Before(before.expires)
	switch {
	case !ended:
		return ""
	case k == kind(Lock), k == kind(Extend) && before.state == Unused, k == kind(Redeem) && before.state == Unused,
		k == kind(Void) && before.state == Unused, k == kind(Redeem) && !s.At.Before(before.lock):
		return fmt.Sprintf("%s at %s, though it had ended at %s", k, clock(s.At), clock(before.expires))
	case (k == kind(Release) || k == kind(Refund) || k == kindUnlock) && s.To == Unused:
		return fmt.Sprintf("%s at %s left it unused, though it had ended at %s", k, clock(s.At), clock(before.expires))
	default:
		return ""
	}
}

// after is the coupon behind a step.
func after(before at, s Step) at {
	next := at{state: s.To, expires: s.Expires, from: s.At}
	if s.To == Locked || s.To == Used {
		next.order = s.Order
	}
	if s.To == Locked {
		next.lock = s.Lock
	}
	if s.From == s.To && s.From == Locked { // an operator's step names nobody
		next.order = before.order
		if next.lock.IsZero() {
			next.lock = before.lock
		}
	}
	return next
}

// replayed is history, step by step.
type replayed struct {
	kinds  []kind
	states []at // states[i] is before step i; the last one is behind all of them
	broken string
	early  []string
	wrong  []string
}

// replay goes through history. It stops where that is broken.
func replay(steps []Step) replayed {
	r := replayed{states: []at{{}}}
	for i, s := range steps {
		before := r.states[i]
		k := kindOf(before, s)
		switch {
		case s.Version != uint32(i+1):
			r.broken = fmt.Sprintf("history has version %d where %d is due", s.Version, i+1)
		case s.From != before.state:
			r.broken = fmt.Sprintf("version %d begins at %s, but the one before left it %s", s.Version, s.From, before.state)
		case k == kindBad:
			r.broken = fmt.Sprintf("version %d, %s to %s by cause %s of order %q: nothing does that", s.Version, s.From, s.To, s.Cause, s.Order)
		case i > 0 && s.At.Before(before.from.Add(-slack)):
			r.broken = fmt.Sprintf("version %d is of an instant before the one before it", s.Version)
		case k != kindGrant && k != kind(Extend) && !s.Expires.Equal(before.expires):
			r.broken = fmt.Sprintf("version %d (%s) moves the end", s.Version, k)
		}
		if r.broken != "" {
			return r
		}
		if k != kindGrant {
			if text := early(before, k, s); text != "" {
				r.early = append(r.early, text)
			}
			if text := late(before, k, s); text != "" {
				r.wrong = append(r.wrong, text)
			}
		}
		r.kinds = append(r.kinds, k)
		r.states = append(r.states, after(before, s))
	}
	return r
}

// leads says what of the row is not as its history leaves it.
func (r replayed) leads(row Row) string {
	end := r.states[len(r.states)-1]
	switch {
	case len(row.Steps) == 0:
		return "it has no history"
	case end.state != row.State:
		return fmt.Sprintf("history leads to %s, the row is %s", end.state, row.State)
	case uint32(len(row.Steps)) != row.Version:
		return fmt.Sprintf("history has %d steps, the row is of version %d", len(row.Steps), row.Version)
	case !end.expires.Equal(row.Expires):
		return fmt.Sprintf("by its history it ends at %s, by its row at %s", clock(end.expires), clock(row.Expires))
	case end.state == Locked && !end.lock.Equal(row.Lock):
		return fmt.Sprintf("by its history its lock ends at %s, by its row at %s", clock(end.lock), clock(row.Lock))
	case (end.state == Locked || end.state == Used) && end.order != row.Order:
		return fmt.Sprintf("by its history it is order %q's, by its row %q's", end.order, row.Order)
	case row.Used != (end.state == Used):
		return fmt.Sprintf("it is %s, but its instant of use says otherwise", end.state)
	case row.Ended != (end.state == Expired):
		return fmt.Sprintf("it is %s, but its instant of expiry says otherwise", end.state)
	default:
		return ""
	}
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
