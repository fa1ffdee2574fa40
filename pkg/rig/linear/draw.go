package linear

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Plan is what several clients are to do with a pair: at each moment, after the one before is over, each makes one call.
type Plan []Moment

// Moment is one call of each client.
type Moment struct {
	At    time.Time // not before; zero: at once
	Calls []Call
	// CutOff has for each call after how long the client hangs up; 0: it waits for the answer.
	CutOff []time.Duration
}

// NewPlan draws moments from begin until a second and a half past the pair's ends, most of them around whole seconds, which is when ends pass
// and locks run out. A call with a key is now and then made again, and a lock renewed that may have come about, by whichever client.
func NewPlan(r *rand.Rand, p *Pair, begin time.Time, clients, moments int) Plan {
	end := begin
	for i := range p.Coupons {
		if at := p.Coupons[i].ExpiresAt; at.After(end) && !coupon.IsNever(at) {
			end = at
		}
	}
	end = end.Add(1500 * time.Millisecond)
	plan := make(Plan, moments)
	keyed := []Call{}
	for m := range plan {
		at := begin.Add(time.Duration(r.Int64N(int64(end.Sub(begin)))))
		if r.IntN(3) > 0 {
			at = at.Round(time.Second).Add(time.Duration(r.IntN(16)-8) * time.Millisecond)
		}
		plan[m].At = at
	}
	slices.SortFunc(plan, func(a, b Moment) int { return a.At.Compare(b.At) })
	cuts := 0
	var lock, last Call // of the moments before
	for m := range plan {
		lock = last
		for range clients {
			c := drawCall(r, p)
			switch {
			case lock.Verb == coupon.VerbLock && r.IntN(8) == 0:
				c = lock
				c.Verb, c.Key = coupon.VerbRenew, NoKey
			case len(keyed) > 0 && r.IntN(5) == 0:
				c = keyed[r.IntN(len(keyed))]
			case c.Verb != Show && len(keyed) < MaxKeys && r.IntN(4) == 0:
				c.Key = len(keyed)
				keyed = append(keyed, c)
			}
			if c.Verb == coupon.VerbLock {
				last = c
			}
			cut := time.Duration(0)
			if cuts < mostCut && r.IntN(10) == 0 { // every one doubles what is possible
				cut = time.Duration(1+r.IntN(8000)) * time.Microsecond
				cuts++
			}
			plan[m].Calls, plan[m].CutOff = append(plan[m].Calls, c), append(plan[m].CutOff, cut)
		}
	}
	return plan
}

const mostCut = 3

func drawCall(r *rand.Rand, p *Pair) Call {
	verbs := []coupon.Verb{
		coupon.VerbLock, coupon.VerbLock, coupon.VerbLock, coupon.VerbLock, coupon.VerbRedeem, coupon.VerbRedeem, coupon.VerbRedeem,
		coupon.VerbRelease, coupon.VerbRelease, coupon.VerbRefund, coupon.VerbRefund, coupon.VerbRenew, coupon.VerbExtend, coupon.VerbVoid,
		Show, Show, Show,
	}
	c := Call{Verb: verbs[r.IntN(len(verbs))], Of: r.Perm(2), Order: r.IntN(MaxOrders - 1), Key: NoKey}
	if c.Verb == Show || !c.Verb.OfOrder() || r.IntN(2) == 0 {
		c.Of = c.Of[:1]
	}
	switch c.Verb {
	case coupon.VerbLock, coupon.VerbRenew:
		c.LockFor = time.Duration(1+r.IntN(3)) * time.Second
	case coupon.VerbExtend:
		c.EndsAt = p.Coupons[c.Of[0]].ExpiresAt
		if coupon.IsNever(c.EndsAt) {
			c.EndsAt = coupon.CeilSecond(p.Coupons[c.Of[0]].GrantedAt)
		}
		c.EndsAt = c.EndsAt.Add(time.Duration(r.IntN(4)-1) * time.Second)
	case coupon.VerbVoid:
		c.BreakLock = r.IntN(2) == 0
	case coupon.VerbRefund:
		c.Partial = r.IntN(5) == 0
	case coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbReinstate, Show:
	default:
	}
	c.Stranger = c.Verb != Show && c.Verb.OfOrder() && r.IntN(20) == 0
	return c
}
