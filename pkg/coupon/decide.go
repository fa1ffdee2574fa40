package coupon

import "time"

// Ask is what the order asks of one coupon; the facts from the coupon's past are still to be filled in.
func (o *Order) Ask() Ask {
	return Ask{
		Verb: o.Verb, OrderID: o.OrderID, LockFor: o.LockFor, EndsAt: o.EndsAt, BreakLock: o.BreakLock, Partial: o.Partial, Tombstone: o.Tombstone,
	}
}

// NoCoupon is the answer about a coupon that there is not.
func NoCoupon(id uint64) Acted {
	return Acted{Coupon: Coupon{Row: Row{ID: id}}, Refused: CodeNotFound, Detail: "no such coupon"}
}

// Decide asks the table about every coupon of the order: cs[i], nil if there is none, by asks[i]. All or none: a refusal takes
// the steps of the others away, unless each coupon stands by itself. A coupon of another user than the order's is answered as
// if it did not exist. The answers still lack the coupons.
func (o *Order) Decide(cs []*Coupon, asks []Ask, now time.Time) ([]Verdict, []Acted) {
	verdicts, out := make([]Verdict, len(cs)), make([]Acted, len(cs))
	refused := false
	for i, c := range cs {
		if c == nil || (o.UserID != "" && c.UserID != o.UserID) {
			out[i] = NoCoupon(o.CouponIDs[i])
			refused = true
			continue
		}
		v := Apply(c.Row, asks[i], now)
		out[i].Repeated = v.Repeat
		if v.Refused != "" {
			out[i].Refused, out[i].Detail = v.Refused, v.Refused.Detail(c, o)
			refused = true
		}
		verdicts[i] = v
	}
	if refused && !o.Each {
		clear(verdicts)
	}
	return verdicts, out
}
