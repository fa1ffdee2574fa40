package coupon

import (
	"fmt"
	"strconv"
	"time"
)

// Detail tells a person what the coupon's state has against the verb that it refused.
func (code Code) Detail(c *Coupon, o *Order) string {
	at := func(what string, t time.Time) string { return what + " " + t.UTC().Format(time.RFC3339) }
	switch code {
	case CodeLockedByOther, CodeLocked:
		return at("locked until", c.LockUntil)
	case CodeNotYetValid:
		return at("valid from", c.ValidFrom)
	case CodeExpired:
		return at("ended at", c.ExpiresAt)
	case CodeAlreadyUsed, CodeUsedByOther:
		return at("used at", c.UsedAt)
	case CodeNotLocked:
		return "the order holds no lock on it"
	case CodeNotUsed:
		return "the order has not redeemed it"
	case CodeVoided:
		return "withdrawn"
	case CodeOrderClosed:
		return "the order was closed before"
	case CodeOrderRefunded:
		return "the order was refunded before"
	case CodeObserved:
		return "another system owns it; it is observed here"
	case CodeNotExpired:
		return at("ends at", c.ExpiresAt)
	case CodeInvalid:
		if o.Verb == VerbReinstate {
			return at("expires_at: must be after now and after the end that it had,", c.ExpiresAt) + ", got " + o.EndsAt.UTC().Format(time.RFC3339)
		}
		return fmt.Sprintf("expires_at: must be after now and after %s, got %s",
			c.ValidFrom.UTC().Format(time.RFC3339), o.EndsAt.UTC().Format(time.RFC3339))
	default:
		return string(code)
	}
}

// Take takes steps that were decided about the coupon (Verdict.Steps) on the one in hand, at the instant now, and describes
// them; o says who acts, and why.
func (c *Coupon) Take(steps []Step, o *Order, now time.Time) []Transition {
	ts := make([]Transition, 0, len(steps))
	for _, step := range steps {
		c.Version++
		t := Transition{
			CouponID: c.ID, Version: c.Version, From: step.From, To: step.To, Cause: step.Cause, UserID: c.UserID, BatchID: c.BatchID,
			Terms: c.Terms, ValidFrom: c.ValidFrom, At: now, OrderID: step.OrderID, LockUntil: step.LockUntil,
			Actor: o.Actor, Reason: o.Reason, Trace: o.Trace,
		}
		if step.From == Locked && step.To == Unused && step.Cause == CauseLock {
			t.Actor, t.Reason = "lapse", "" // settled in passing: nobody's act
		}
		if !step.ExpiresAt.Equal(c.ExpiresAt) {
			t.Previous = c.ExpiresAt
			c.moveEnd(step.ExpiresAt)
		}
		t.ExpiresAt, t.DueAt = c.ExpiresAt, c.DueAt
		switch step.From {
		case Locked:
			t.Since = c.LockedAt
		case Used:
			t.Since = c.UsedAt
		case Unused, Expired, Voided:
		default:
		}
		c.enter(step, now)
		ts = append(ts, t)
	}
	return ts
}

// moveEnd moves the end, and the due instant with it: the offset of a coupon stays. One that had no end has none yet.
func (c *Coupon) moveEnd(end time.Time) {
	switch {
	case IsNever(end):
		c.DueAt = end
	case IsNever(c.ExpiresAt):
		c.DueAt = DueAt(end, c.Terms.Precision, strconv.FormatUint(c.ID, 10))
	default:
		c.DueAt = end.Add(c.DueAt.Sub(c.ExpiresAt))
	}
	c.ExpiresAt = end
}

// enter sets what the state after a step says of a coupon, and nothing of the one before stays.
func (c *Coupon) enter(step Step, now time.Time) {
	c.Status = step.To
	if step.To == Locked {
		c.OrderID, c.LockUntil = step.OrderID, step.LockUntil
		if step.From != Locked {
			c.LockedAt = now
		}
		return
	}
	c.OrderID, c.LockUntil, c.LockedAt = "", time.Time{}, time.Time{}
	c.LatePay, c.LateWindow = c.Terms.LatePay, c.Terms.LateWindow
	c.UsedAt = time.Time{}
	if step.From == Expired {
		c.ExpiredAt, c.Cause = time.Time{}, ""
	}
	switch step.To {
	case Used:
		c.OrderID, c.UsedAt = step.OrderID, now
	case Expired:
		c.ExpiredAt, c.Cause = now, step.Cause
	case Unused, Locked, Voided:
	default:
	}
}
