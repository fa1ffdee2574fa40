package broker

import (
	"slices"
	"time"
)

// item is a delivery that is not settled yet.
type item struct {
	d   Delivery
	tag uint64
	// forward is set when the handler has decided and only publishing failed.
	forward []Message
	outcome string // for the counter
	tries   int    // of publishing forward
}

type heldItem struct {
	item
	until time.Time
}

// assembler puts items together to batches. It knows no channels, so that its
// rules can be read and tested alone. How much it holds is bounded by the
// prefetch.
type assembler struct {
	size  int
	open  []item   // the batch that is filling
	ready [][]item // batches to be handled, in order
	held  []heldItem
}

// add takes a fresh delivery; it says whether it started a batch.
func (a *assembler) add(it item) bool {
	if it.d.DeliveryCount >= aloneFrom {
		a.ready = append(a.ready, []item{it})
		return false
	}
	a.open = append(a.open, it)
	if len(a.open) >= a.size {
		a.shut()
		return false
	}
	return len(a.open) == 1
}

// shut makes the open batch ready as it is.
func (a *assembler) shut() {
	if len(a.open) > 0 {
		a.ready = append(a.ready, a.open)
		a.open = nil
	}
}

func (a *assembler) pop() { a.ready = a.ready[1:] }

func (a *assembler) hold(items []heldItem) { a.held = append(a.held, items...) }

// wake makes ready whatever is held until now or earlier, and says when to
// look again (zero = nothing is held).
func (a *assembler) wake(now time.Time) (again time.Time) {
	var fresh, forwards []item
	a.held = slices.DeleteFunc(a.held, func(h heldItem) bool {
		if h.until.After(now) {
			if again.IsZero() || h.until.Before(again) {
				again = h.until
			}
			return false
		}
		switch {
		case h.forward != nil:
			forwards = append(forwards, h.item)
		case h.d.DeliveryCount >= aloneFrom:
			a.ready = append(a.ready, []item{h.item})
		default:
			fresh = append(fresh, h.item)
		}
		return true
	})
	for _, list := range [][]item{fresh, forwards} {
		for batch := range slices.Chunk(list, a.size) {
			a.ready = append(a.ready, batch)
		}
	}
	return again
}
