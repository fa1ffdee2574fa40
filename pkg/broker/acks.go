package broker

// acks keeps which deliveries of a channel are settled, so that the broker is told in few frames. Each frame is an entry in
// a quorum queue's log, and one frame can settle every delivery up to a tag: a batch that is told of in one frame costs the
// broker a fraction of one that is told of tag by tag.
//
// Batches end out of order, and a delivery that is held stands in the way of those behind it. What cannot be told of in
// one frame yet waits for them a moment (ackDelay), and is then told of tag by tag (rest).
//
// It knows no channels, so that its rules can be read and tested alone. Tags count from 1 on a channel.
type acks struct {
	floor   uint64     // every delivery up to here has been settled, and told of
	above   []ackState // those from floor + 1 on, as far as any is settled
	waiting int        // of above: settled, and not told of
}

// ackState is how a delivery was settled; the zero value is one that is not.
type ackState struct {
	outcome string
	told    bool
}

// ackFrame is a basic.ack, with how many deliveries it settles by outcome, or a basic.nack that puts deliveries back.
type ackFrame struct {
	tag      uint64
	multiple bool
	back     bool
	outcomes map[string]int
}

// settle notes how deliveries were settled; told says that the broker knows.
func (a *acks) settle(outcome string, tags []uint64, told bool) {
	for _, tag := range tags {
		i := int(tag - a.floor - 1)
		for len(a.above) <= i {
			a.above = append(a.above, ackState{})
		}
		a.above[i] = ackState{outcome: outcome, told: told}
		if !told {
			a.waiting++
		}
	}
}

// front gives the frame for all that wait up to the first delivery that is not settled.
func (a *acks) front() (f ackFrame, ok bool) {
	n := 0
	for n < len(a.above) && a.above[n].outcome != "" {
		if s := a.above[n]; !s.told {
			if !ok {
				f.outcomes, ok = make(map[string]int, 1), true
			}
			f.tag = a.floor + uint64(n) + 1
			f.outcomes[s.outcome]++
			a.waiting--
		}
		n++
	}
	f.multiple = true
	a.floor += uint64(n)
	a.above = a.above[n:]
	return f, ok
}

// rest gives a frame for each delivery that still waits.
func (a *acks) rest() []ackFrame {
	var frames []ackFrame
	for i := range a.above {
		if s := &a.above[i]; s.outcome != "" && !s.told {
			s.told = true
			frames = append(frames, ackFrame{tag: a.floor + uint64(i) + 1, outcomes: map[string]int{s.outcome: 1}})
		}
	}
	a.waiting = 0
	return frames
}

// last gives the frames for when nothing will be settled any more: in the order of tags, each for a stretch of deliveries
// that share their fate. What stands between those that are settled goes back now, what stands behind them with the channel.
// Tag by tag would not do: a channel passes on 32 settlements at once to a quorum queue (rabbit_fifo_client), keeps the rest
// until the queue has answered, and forgets them when it is closed before.
func (a *acks) last() []ackFrame {
	var frames []ackFrame
	for i, s := range a.above {
		if s.told {
			continue
		}
		tag, back := a.floor+uint64(i)+1, s.outcome == ""
		if n := len(frames); n == 0 || frames[n-1].back != back {
			frames = append(frames, ackFrame{multiple: true, back: back, outcomes: map[string]int{}})
		}
		f := &frames[len(frames)-1]
		f.tag = tag
		if !back {
			f.outcomes[s.outcome]++
		}
	}
	if n := len(frames); n > 0 && frames[n-1].back {
		frames = frames[:n-1]
	}
	*a = acks{floor: a.floor}
	return frames
}
