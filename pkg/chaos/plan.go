package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/pkg/chaos/model"
)

// planned is a coupon of the load, before the load begins. All times are from its start.
type planned struct {
	key, user string
	grant     time.Duration
	end       time.Duration // a whole second
	by        by
	acts      []act
}

// by is how a coupon is asked for.
type by int

const (
	byHTTP by = iota
	byEvent
)

// act is one thing that is done to a coupon, so long after what was done before.
type act struct {
	verb  model.Verb
	order int           // which of the coupon's orders
	wait  time.Duration // after the grant, or the act before
	atEnd bool          // wait is from the coupon's end on, be it negative
	lock  time.Duration // lock, renew
	move  time.Duration // extend: from the end asked for
	twice bool          // an event that is sent again
}

const (
	grantedPart = 0.6 // of the time of the load: afterwards nothing is granted
	soonest     = 12  // seconds from a grant to its end
	cliffPart   = 0.8 // where one coupon in five ends, in one second
	perGrant    = 40  // coupons of one call or event
	usersOf10   = 3
)

// plan draws the load.
func plan(seed uint64, coupons int, over time.Duration) []planned {
	rng := rand.New(rand.NewPCG(seed, hashed("load")))
	users := max(1, coupons*usersOf10/10)
	last := int(over/time.Second) + 5
	cliff := int(float64(over/time.Second) * cliffPart)
	out := make([]planned, coupons)
	var grant time.Duration
	var way by
	for i := range out {
		if i%perGrant == 0 {
			grant = time.Duration(float64(over) * grantedPart * float64(i) / float64(coupons))
			way = by(rng.IntN(2))
		}
		first := int(grant/time.Second) + soonest
		p := planned{key: fmt.Sprintf("chaos-%d-%06d", seed, i), user: fmt.Sprintf("user-%06d", rng.IntN(users)), grant: grant, by: way}
		end := first + rng.IntN(max(1, last-first))
		switch draw := rng.IntN(100); {
		case draw < 20 && cliff > first:
			end = cliff
		case draw < 23:
			end = 3600 + rng.IntN(400*24*3600) // it outlives the run
		}
		p.end = time.Duration(end) * time.Second
		p.acts = life(rng, min(p.end, over)-grant)
		out[i] = p
	}
	return out
}

// life draws what becomes of a coupon within the time that it has.
func life(rng *rand.Rand, has time.Duration) []act {
	const s = time.Second
	soon := func() time.Duration { return drawn(rng, 300*time.Millisecond, 4*s) }
	some := drawn(rng, s, max(2*s, has*7/10)) // from the grant to the first act
	long := drawn(rng, 20*s, 60*s)
	one := func(v model.Verb, wait time.Duration) act { return act{verb: v, wait: wait, lock: long} }
	switch draw := rng.IntN(100); {
	case draw < 38:
		return nil
	case draw < 44: // the lock runs out
		return []act{{verb: model.Lock, wait: some, lock: drawn(rng, 2*s, 8*s)}}
	case draw < 52:
		return []act{one(model.Lock, some), one(model.Redeem, soon())}
	case draw < 56:
		return []act{one(model.Redeem, some)}
	case draw < 60: // against its end
		return []act{{verb: model.Redeem, wait: drawn(rng, -s, s), atEnd: true}}
	case draw < 63:
		return []act{{verb: model.Lock, wait: drawn(rng, -s, s/2), atEnd: true, lock: 4 * s}, one(model.Release, soon())}
	case draw < 68:
		return []act{one(model.Lock, some), one(model.Release, soon())}
	case draw < 70: // a lock that lives past the end
		return []act{{verb: model.Lock, wait: -3 * s, atEnd: true, lock: 8 * s}, {verb: model.Redeem, wait: s, atEnd: true}}
	case draw < 75:
		return []act{one(model.Lock, some), one(model.Redeem, soon()), one(model.Refund, soon())}
	case draw < 78:
		return []act{{verb: model.Lock, wait: some, lock: 5 * s}, {verb: model.Renew, wait: soon(), lock: 15 * s}, one(model.Redeem, soon())}
	case draw < 82:
		return []act{{verb: model.Extend, wait: some, move: drawn(rng, 2*s, 15*s).Round(s)}}
	case draw < 84:
		return []act{{verb: model.Extend, wait: s, move: -drawn(rng, 2*s, 4*s).Round(s)}}
	case draw < 86:
		return []act{one(model.Void, some)}
	case draw < 87:
		return []act{one(model.Lock, some), one(model.Void, soon())}
	case draw < 90: // another order asks in between, and gets it afterwards
		return []act{
			one(model.Lock, some),
			{verb: model.Lock, order: 1, wait: soon(), lock: long},
			one(model.Release, soon()),
			{verb: model.Lock, order: 1, wait: soon(), lock: long},
			{verb: model.Redeem, order: 1, wait: soon()},
		}
	case draw < 92:
		return []act{{verb: model.Paid, wait: some, twice: rng.IntN(2) == 0}}
	case draw < 94:
		return []act{one(model.Lock, some), {verb: model.Paid, wait: soon(), twice: true}}
	case draw < 96:
		return []act{one(model.Lock, some), {verb: model.Closed, wait: soon(), twice: rng.IntN(2) == 0}, one(model.Lock, soon())}
	case draw < 98:
		return []act{one(model.Lock, some), {verb: model.Failed, wait: soon()}}
	default:
		return []act{one(model.Lock, some), one(model.Redeem, soon()), {verb: model.Refunded, wait: soon(), twice: true}}
	}
}
