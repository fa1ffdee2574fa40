package model

import (
	"slices"
	"time"
)

// asks are the verbs that can have asked for a step.
func asks(k kind) []Verb {
	switch k {
	case kind(Lock):
		return []Verb{Lock}
	case kind(Renew):
		return []Verb{Renew}
	case kind(Redeem):
		return []Verb{Redeem, Paid}
	case kind(Release), kindGone:
		return []Verb{Release, Closed, Failed, Refunded}
	case kind(Refund):
		return []Verb{Refund, Refunded}
	case kind(Extend):
		return []Verb{Extend}
	case kind(Void):
		return []Verb{Void}
	default:
		return nil
	}
}

// alone reports whether a step may have come by itself.
func alone(before at, k kind, s Step) bool {
	return k == kindGrant || k == kindExpire || k == kindUnlock || k == kindGone && !s.At.Before(before.lock)
}

// fits reports whether a call can be the cause of a step.
func (c Call) fits(k kind, s Step) bool {
	if !slices.Contains(asks(k), c.Verb) || s.At.Before(c.Sent.Add(-slack)) || !c.Got.IsZero() && c.Answer != Unknown && s.At.After(c.Got.Add(slack)) {
		return false
	}
	switch c.Verb {
	case Extend:
		return s.Expires.Equal(c.End)
	case Void:
		return true
	default:
		return c.Order == s.Order
	}
}

// explain finds for every step the call that asked for it. A call explains no more steps than it had attempts: the first ones
// in order, since calls of a coupon are made one after the other.
func (j *coupon) explain() {
	calls := j.p.Calls
	j.of = make([][]int, len(calls))
	for i, s := range j.row.Steps {
		k := j.replayed.kinds[i]
		used := false
		claimed := false
		for c := range calls {
			if !calls[c].fits(k, s) || calls[c].Answer == Refused && calls[c].Attempts <= 1 && !calls[c].Verb.told() {
				continue
			}
			used = true
			if len(j.of[c]) < max(1, calls[c].Attempts) {
				j.of[c] = append(j.of[c], i)
				claimed = true
				break
			}
		}
		switch {
		case claimed, alone(j.replayed.states[i], k, s):
		case used:
			j.add(Doubled, "version %d: %s of order %q is there more often than asked for", s.Version, k, s.Order)
		default:
			j.add(WrongState, "version %d: nobody asked for %s of order %q at %s", s.Version, k, s.Order, clock(s.At))
		}
	}
}

func (j *coupon) judgeCall(i int) {
	c := j.p.Calls[i]
	switch {
	case c.Verb.told():
		j.judgeTold(i)
	case c.Answer == Done && len(j.of[i]) == 0 && !j.happened(c):
		j.add(Lost, "%s of order %q was confirmed at %s, and is not in its history", c.Verb, c.Order, clock(c.Got))
	case c.Answer == Repeated && len(j.of[i]) == 0 && !j.happened(c):
		j.add(Lost, "%s of order %q was called a repeat at %s, and never was", c.Verb, c.Order, clock(c.Got))
	case c.Answer == Refused:
		j.judgeRefusal(c)
	}
}

// happened reports whether what a repeated call asks for had come about by its answer.
func (j *coupon) happened(c Call) bool {
	for i, s := range j.row.Steps {
		if s.At.After(c.Got.Add(slack)) {
			break
		}
		k := j.replayed.kinds[i]
		switch c.Verb {
		case Extend:
			if s.Expires.Equal(c.End) { // also if it was granted so
				return true
			}
		case Void:
			if k == kind(Void) {
				return true
			}
		case Release: // the lock is over, however
			if before := j.replayed.states[i]; before.state == Locked && before.order == c.Order && s.To != Locked {
				return true
			}
		case Renew: // the lock stands, perhaps longer than asked for
			if s.To == Locked && j.replayed.states[i+1].order == c.Order {
				return true
			}
		default:
			if slices.Contains(asks(k), c.Verb) && s.Order == c.Order {
				return true
			}
		}
	}
	return false
}

// judgeTold judges an event of an order that the broker took: it must have had its effect, or nothing to do.
func (j *coupon) judgeTold(i int) {
	c := j.p.Calls[i]
	if c.Answer != Done || len(j.of[i]) > 0 {
		return
	}
	end := j.replayed.states[len(j.replayed.states)-1]
	switch c.Verb {
	case Paid:
		if _, refused := j.f.RedeemRefused[keyOf(j.row.ID, c.Order)]; !refused && !j.ever(Used, c.Order) {
			j.add(Lost, "order %q was paid at %s: neither used nor refused", c.Order, clock(c.Sent))
		}
	case Closed, Failed:
		if end.state == Locked && end.order == c.Order {
			j.add(Lost, "order %q was %s at %s, and its lock stands", c.Order, c.Verb, clock(c.Sent))
		}
	case Refunded:
		if (end.state == Used || end.state == Locked) && end.order == c.Order {
			j.add(Lost, "order %q was refunded at %s, and it is %s", c.Order, clock(c.Sent), end.state)
		}
	default:
	}
}

// ever reports whether the coupon was in a state for an order.
func (j *coupon) ever(state State, order string) bool {
	return slices.ContainsFunc(j.replayed.states, func(a at) bool { return a.state == state && a.order == order })
}

// judgeRefusal looks for a state, between question and answer, in which the refusal is right.
func (j *coupon) judgeRefusal(c Call) {
	if c.Code == CodeOrderClosed || c.Code == CodeOrderRefunded {
		if !slices.ContainsFunc(j.p.Calls, func(o Call) bool {
			return o.Order == c.Order && (o.Verb == Closed || o.Verb == Refunded) && o.Sent.Before(c.Got)
		}) {
			j.add(WrongState, "%s of order %q was refused (%s), and nobody closed the order", c.Verb, c.Order, c.Code)
		}
		return
	}
	for i, a := range j.replayed.states {
		if i == 0 {
			continue
		}
		var until time.Time
		if i < len(j.replayed.states)-1 {
			until = j.replayed.states[i+1].from
		}
		low, high, ok := overlap(a.from, until, c.Sent, c.Got)
		if ok && refusable(a, c, low, high) {
			return
		}
	}
	class := WrongState
	if c.Code == CodeExpired {
		class = Early
	}
	j.add(class, "%s of order %q was refused between %s and %s (%s), in a state in which it is not", c.Verb, c.Order, clock(c.Sent), clock(c.Got), c.Code)
}

// refusable reports whether the refusal is right at some instant between low and high, all of them in this state.
func refusable(a at, c Call, low, high time.Time) bool {
	ended := !high.Before(a.expires)
	runOut := a.state == Locked && !high.Before(a.lock)
	other := a.order != c.Order
	switch c.Code {
	case CodeExpired:
		return a.state == Expired || ended && (a.state == Unused || a.state == Locked)
	case CodeLockedByOther:
		return a.state == Locked && other && low.Before(a.lock)
	case CodeLocked:
		return a.state == Locked && low.Before(a.lock)
	case CodeNotLocked:
		return a.state == Unused || runOut
	case CodeAlreadyUsed:
		return a.state == Used
	case CodeNotUsed:
		return a.state != Used
	case CodeUsedByOther:
		return a.state == Used && other
	case CodeVoided:
		return a.state == Voided
	case CodeInvalid:
		return c.Verb == Extend && !high.Before(c.End)
	default:
		return false
	}
}
