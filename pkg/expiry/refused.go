package expiry

import (
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	refusedFor  = 10 * time.Minute // how long a row that could not be changed is gone past without another try
	refusedMost = 10_000           // rows that are remembered
)

// owed is a place in what the sweep goes over. A coupon whose end or lock moves has another.
type owed struct {
	locks bool
	at    coupon.Cursor
}

// refused remembers rows that cannot be changed. They stand at the head of the index, so that every round meets them first, and
// to find each of them again by bisection takes two transactions for each.
type refused struct {
	until map[owed]time.Time
}

func (r *refused) holds(o owed, now time.Time) bool { return now.Before(r.until[o]) }

// head counts the rows at the beginning that it holds.
func (r *refused) head(locks bool, keys []coupon.Cursor, now time.Time) (n int) {
	for n < len(keys) && r.holds(owed{locks, keys[n]}, now) {
		n++
	}
	return n
}

// add remembers the row, unless there are too many.
func (r *refused) add(o owed, now time.Time) {
	if r.until == nil {
		r.until = make(map[owed]time.Time)
	}
	if len(r.until) < refusedMost {
		r.until[o] = now.Add(refusedFor)
	}
}

// clear forgets what is to be tried again. Once in a round.
func (r *refused) clear(now time.Time) {
	for o, until := range r.until {
		if !now.Before(until) {
			delete(r.until, o)
		}
	}
}
