package delay

import "math/bits"

// A wheel is hierarchical: level 0 has a slot for each of the next ticks, each level above it a slot for as many ticks as the
// whole level below spans. An entry lies in the lowest level that reaches it and moves down as its time comes near, at most once a
// level.
const (
	slotBits = 6
	slots    = 1 << slotBits
	levels   = (64 + slotBits - 1) / slotBits // every tick has its place: nothing is beyond the top
)

// wheel holds entries until their tick. It knows ticks only, no clock, and is not safe for concurrent use.
type wheel[T any] struct {
	now  uint64 // all entries of this tick and those before have been given
	held int
	slot [levels][slots][]ticking[T]
	full [levels]uint64 // bit i: slot i is not empty
}

type ticking[T any] struct {
	at uint64
	v  T
}

// newWheel makes one at a tick.
func newWheel[T any](now uint64) *wheel[T] { return &wheel[T]{now: now} }

// add puts an entry in, to be given by the advance that reaches its tick; one of a tick that has passed is given by the next.
func (w *wheel[T]) add(at uint64, v T) {
	w.held++
	w.put(ticking[T]{max(at, w.now+1), v})
}

func (w *wheel[T]) put(e ticking[T]) {
	// An entry that differs from now in the highest place only at level l lies in level l: all below turns over before it.
	l := 0
	if differ := e.at ^ w.now; differ > 0 {
		l = (bits.Len64(differ) - 1) / slotBits
	}
	i := e.at >> (slotBits * l) % slots
	w.slot[l][i] = append(w.slot[l][i], e)
	w.full[l] |= 1 << i
}

// advance moves on to a tick and calls give for each entry of it and before, in no order.
func (w *wheel[T]) advance(to uint64, give func(at uint64, v T)) {
	for w.now < to {
		next, ok := w.next()
		if !ok || next > to {
			w.now = to // nothing on the way: what lies in upper levels is still ahead
			return
		}
		w.now = next
		for l := levels - 1; l >= 0; l-- {
			if l > 0 && next%(1<<(slotBits*l)) != 0 {
				continue // this level does not turn now
			}
			w.turn(l, give)
		}
	}
}

// turn empties the current slot of a level: entries of now are given, others move down.
func (w *wheel[T]) turn(l int, give func(at uint64, v T)) {
	i := w.now >> (slotBits * l) % slots
	if w.full[l]&(1<<i) == 0 {
		return
	}
	entries := w.slot[l][i]
	w.slot[l][i] = nil
	w.full[l] &^= 1 << i
	for _, e := range entries {
		if e.at <= w.now {
			w.held--
			give(e.at, e.v)
		} else {
			w.put(e)
		}
	}
}

// next is the next tick at which a slot that is not empty turns: nothing is to be done before it. Not ok: the wheel is empty.
func (w *wheel[T]) next() (tick uint64, ok bool) {
	for l := range levels {
		if w.full[l] == 0 {
			continue
		}
		here := w.now >> (slotBits * l)
		// The slots ahead, nearest first: those behind here in the ring come after those before it.
		ahead := bits.RotateLeft64(w.full[l], -int((here+1)%slots))
		at := (here + 1 + uint64(bits.TrailingZeros64(ahead))) << (slotBits * l)
		if !ok || at < tick {
			tick, ok = at, true
		}
	}
	return tick, ok
}
