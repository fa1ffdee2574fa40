package pulse

import "time"

// Stage is a step whose time is measured.
type Stage string

// The stages.
const (
	Publish   Stage = "publish"   // a batch given to the broker, until its last confirm
	Lock      Stage = "lock"      // a statement that locks rows, waiting for them included
	Statement Stage = "statement" // any other SQL statement
	Commit    Stage = "commit"    // the commit of a transaction
	Send      Stage = "send"      // a batch of notices given to a channel, less the time that the database took of it
	DueWait   Stage = "due_wait"  // from a coupon's due instant until the ladder's trigger has it locked: a sum of others
)

// Party is whose time a stage is.
type Party string

// The parties.
const (
	Broker   Party = "broker"
	Database Party = "database"
	Provider Party = "provider"
	Nobody   Party = "" // the stage contains others'
)

// Slow is how many times its calm time a stage may take before its party is called the bottleneck.
const Slow = 3

// calmSpan is how far above its floor a calm time may be learned.
const calmSpan = 4

type about struct {
	stage Stage
	party Party
	floor time.Duration
}

// stages in the order of the walk.
var stages = []about{ //nolint:gochecknoglobals // a constant list
	{Publish, Broker, 50 * time.Millisecond},
	{DueWait, Nobody, 250 * time.Millisecond},
	{Lock, Database, 20 * time.Millisecond},
	{Statement, Database, 10 * time.Millisecond},
	{Commit, Database, 20 * time.Millisecond},
	{Send, Provider, 250 * time.Millisecond},
}

// Stages lists them in the order of the walk.
func Stages() []Stage {
	out := make([]Stage, len(stages))
	for i, s := range stages {
		out[i] = s.stage
	}
	return out
}

// Party tells whose time it is.
func (s Stage) Party() Party { return s.about().party }

// Floor is what its calm time is at least.
func (s Stage) Floor() time.Duration { return s.about().floor }

func (s Stage) about() about {
	for _, a := range stages {
		if a.stage == s {
			return a
		}
	}
	return about{stage: s, floor: time.Second}
}

// calm bounds a learned mean; zero: nothing was learned.
func (s Stage) calm(learned time.Duration) time.Duration {
	floor := s.Floor()
	return min(max(learned, floor), calmSpan*floor)
}

// Timing is how one stage went.
type Timing struct {
	Count  int64
	Failed int64 // of Count
	Mean   time.Duration
	Max    time.Duration
	Calm   time.Duration
}

// add puts two processes' timings together, each weighing as much as it did.
func (t Timing) add(o Timing) Timing {
	n := t.Count + o.Count
	if n == 0 {
		return Timing{Calm: max(t.Calm, o.Calm)}
	}
	weigh := func(a, b time.Duration) time.Duration {
		return time.Duration((float64(a)*float64(t.Count) + float64(b)*float64(o.Count)) / float64(n))
	}
	return Timing{Count: n, Failed: t.Failed + o.Failed, Mean: weigh(t.Mean, o.Mean), Max: max(t.Max, o.Max), Calm: weigh(t.Calm, o.Calm)}
}

// failing is the slowness of a stage that fails more often than not.
const failing = 1000

// Slowness is how many times its calm time it took; 0 when nothing was done.
func (t Timing) Slowness() float64 {
	switch {
	case t.Count == 0 || t.Calm == 0:
		return 0
	case 2*t.Failed > t.Count:
		return failing
	default:
		return float64(t.Mean) / float64(t.Calm)
	}
}

// Verdict names the bottleneck.
type Verdict struct {
	Party    Party // Nobody: none
	Stage    Stage // the one that says so
	Slowness float64
}

// Judge finds the stage that is slowest compared with its calm time. None is a bottleneck below Slow.
func Judge(all map[Stage]Timing) Verdict {
	v := Verdict{}
	for _, a := range stages {
		if s := all[a.stage].Slowness(); a.party != Nobody && s >= Slow && s > v.Slowness {
			v = Verdict{a.party, a.stage, s}
		}
	}
	return v
}
