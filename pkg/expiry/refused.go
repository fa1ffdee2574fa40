package expiry

import "time"

const (
	refusedFor  = 10 * time.Minute // how long a row that could not be changed is gone past without another try
	refusedMost = 10_000           // rows that are remembered
)

// refused remembers rows that cannot be changed. They stand at the head of the index, so that every round meets them first, and
// to find each of them again by bisection takes two transactions for each.
type refused struct {
	until map[uint64]time.Time
}

func (r *refused) holds(id uint64, now time.Time) bool { return now.Before(r.until[id]) }

func (r *refused) add(id uint64, now time.Time) {
	if len(r.until) >= refusedMost {
		for id, until := range r.until {
			if !now.Before(until) {
				delete(r.until, id)
			}
		}
	}
	if r.until == nil {
		r.until = make(map[uint64]time.Time)
	}
	if len(r.until) < refusedMost {
		r.until[id] = now.Add(refusedFor)
	}
}
