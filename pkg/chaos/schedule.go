package chaos

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Strike is one fault at its time.
type Strike struct {
	At, For time.Duration // from the start of the load
	Fault   string
	Target  string
	Draw    uint64 // what the fault draws from, if it draws
}

// String is a line of the printed schedule.
func (k Strike) String() string {
	return fmt.Sprintf("%6.1f s  %4.1f s  %s %s", k.At.Seconds(), k.For.Seconds(), k.Fault, k.Target)
}

const (
	firstStrike = 3 * time.Second // the load has begun
	leastGap    = time.Second     // between two faults of one lane
	mostGap     = 3 * time.Second
)

// Schedule draws when which fault strikes whom: in each lane one after the other, the faults in a shuffled order until all of the
// time is used, and the targets of each in a shuffled order of their own. Lanes run side by side.
func Schedule(seed uint64, over time.Duration, names []string) []Strike {
	lanes := make(map[lane][]Fault)
	for _, f := range choose(names) {
		lanes[f.lane] = append(lanes[f.lane], f)
	}
	var all []Strike
	for l, faults := range lanes {
		all = append(all, fill(rand.New(rand.NewPCG(seed, hashed(string(l)))), over, faults)...)
	}
	slices.SortFunc(all, func(a, b Strike) int {
		return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(a.Fault, b.Fault))
	})
	return all
}

func hashed(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum64()
}

// fill fills one lane.
func fill(rng *rand.Rand, over time.Duration, faults []Fault) []Strike {
	targets := make(map[string][]string)
	next := func(f Fault) string {
		if len(f.targets) == 0 {
			return ""
		}
		if len(targets[f.Name]) == 0 {
			targets[f.Name] = slices.Clone(f.targets)
			rng.Shuffle(len(f.targets), func(i, j int) {
				t := targets[f.Name]
				t[i], t[j] = t[j], t[i]
			})
		}
		t := targets[f.Name][0]
		targets[f.Name] = targets[f.Name][1:]
		return t
	}
	var out []Strike
	at := firstStrike + drawn(rng, 0, mostGap)
	for fitted := true; fitted; {
		fitted = false
		order := slices.Clone(faults)
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, f := range order {
			long := drawn(rng, f.least, f.most)
			s := Strike{At: at, For: long, Fault: f.Name, Target: next(f), Draw: rng.Uint64()}
			gap := drawn(rng, leastGap, mostGap)
			if at+long > over {
				continue
			}
			out = append(out, s)
			at += long + gap + f.takes
			fitted = true
		}
	}
	return out
}

// drawn is a time between two, in steps of 100 ms.
func drawn(rng *rand.Rand, least, most time.Duration) time.Duration {
	const step = 100 * time.Millisecond
	return (least + time.Duration(rng.Int64N(int64(most-least)+1))).Round(step)
}
