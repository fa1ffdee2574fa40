package expiry

import (
	"maps"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	// pausedFor is how long a stretch of the index in which there was nothing but what is paused is gone past in one step. What
	// comes into it meanwhile is not seen by the sweep, so it is not for ever; a brake that changes ends it.
	pausedFor  = 5 * time.Minute
	pausedMost = 1000 // stretches that are remembered
	// resumedRest is how long the sweep leaves what is due to the ladder once all of expiry goes on: until the ladder has told
	// where it is.
	resumedRest = 2 * markSeconds * time.Second
)

// braked is what the sweep knows of the brakes: where there is nothing to do for them, and what is owed since one was let go.
type braked struct {
	on      map[coupon.Pause]time.Time
	known   bool // on has been read
	spans   [2][]span
	owed    time.Time // until then at least the sweep is as fast as it can be, at any hour; zero: nothing is owed
	resting time.Time // until then what is due is left to the ladder
}

// span is a stretch of the index behind from, up to to.
type span struct {
	from, to coupon.Cursor
	until    time.Time
}

// heed takes the brakes that are on now. grace is how long a due coupon is left to the ladder.
func (b *braked) heed(ps *coupon.Pauses, grace time.Duration, now time.Time) {
	on := ps.Since(coupon.BrakeExpiry)
	if b.known && maps.Equal(on, b.on) {
		return
	}
	for p, since := range b.on {
		if at, still := on[p]; still && at.Equal(since) {
			continue
		}
		b.owed = now.Add(grace + time.Minute)
		if p.Scope == coupon.PauseAll && grace > 0 {
			b.resting = now.Add(min(resumedRest, grace))
		}
	}
	b.on, b.known, b.spans = on, true, [2][]span{}
}

// owing reports whether there is something to catch up with.
func (b *braked) owing() bool { return !b.owed.IsZero() }

// ended hears whether a round came to its end.
func (b *braked) ended(more bool, now time.Time) {
	if !more && !now.Before(b.owed) {
		b.owed = time.Time{}
	}
}

func which(locks bool) int {
	if locks {
		return 1
	}
	return 0
}

// past gives where to go on: behind what is known to be paused.
func (b *braked) past(locks bool, at coupon.Cursor, now time.Time) coupon.Cursor {
	for _, s := range b.spans[which(locks)] {
		if !s.from.After(at) && s.to.After(at) && now.Before(s.until) {
			at = s.to
		}
	}
	return at
}

// add remembers a stretch of which nothing is left but what is paused. Stretches come in order within a round.
func (b *braked) add(locks bool, from, to coupon.Cursor, now time.Time) {
	list := &b.spans[which(locks)]
	kept := (*list)[:0]
	for _, s := range *list {
		if now.Before(s.until) {
			kept = append(kept, s)
		}
	}
	*list = kept
	for i := range kept {
		if kept[i].to == from { // not later than the older part
			kept[i].to = to
			return
		}
	}
	if len(kept) < pausedMost {
		*list = append(kept, span{from, to, now.Add(pausedFor)})
	}
}
