package demo

import "time"

const (
	fewest = 400         // grants sent and not answered: at least,
	most   = 4000        // at most,
	ahead  = time.Second // and else as many as are answered in so long, so that none waits past its end
	recent = 3 * time.Second
)

// pace says how many grants may be on their way, from how fast the last ones were answered.
type pace struct {
	chunks  []passed // sent and not answered, in order
	seen    []passed // answers of the last while
	slowest time.Duration
}

// passed: so many grants in all, by then.
type passed struct {
	grants int
	at     time.Time
}

func (p *pace) sent(grants int, now time.Time) { p.chunks = append(p.chunks, passed{grants, now}) }

func (p *pace) answered(grants int, now time.Time) {
	p.seen = append(p.seen, passed{grants, now})
	for len(p.seen) > 2 && now.Sub(p.seen[0].at) > recent {
		p.seen = p.seen[1:]
	}
	var took time.Duration
	for len(p.chunks) > 0 && p.chunks[0].grants <= grants {
		took = max(took, now.Sub(p.chunks[0].at))
		p.chunks = p.chunks[1:]
	}
	if len(p.chunks) > 0 { // still on its way, and slower than any if it lasts
		took = max(took, now.Sub(p.chunks[0].at))
	}
	p.slowest = max(took, p.slowest*9/10)
}

func (p *pace) outstanding() int {
	if len(p.seen) < 2 {
		return fewest
	}
	first, last := p.seen[0], p.seen[len(p.seen)-1]
	span := last.at.Sub(first.at)
	if span <= 0 {
		return fewest
	}
	rate := float64(last.grants-first.grants) / span.Seconds()
	return min(most, max(fewest, int(rate*ahead.Seconds())))
}
