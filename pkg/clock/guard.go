package clock

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrAhead: the database's clock is ahead of where monotonic time says it should be. Nothing may expire.
var ErrAhead = errors.New("database clock ahead")

// DefaultTolerance is how far ahead the database's clock may run.
const DefaultTolerance = 2 * time.Second

// youth is how long a process that took the first reading for right may still learn from the others that it was not: they
// look every second, and tell at once.
const youth = 5 * time.Second

// slew is how much of the time that passed the anchor may follow the database's clock by: crystals differ by far
// less, a step by far more.
const slew = 0.001

// Guard anchors the database's clock to this process's monotonic clock. The database alone decides what is due; the
// guard only notices that its clock has jumped ahead, which would take coupons away early. Safe for concurrent use.
type Guard struct {
	tolerance time.Duration
	now       func() time.Time

	mu       sync.Mutex
	anchor   time.Time // database's clock …
	at       time.Time // … at this reading of the monotonic clock; zero: not anchored yet
	set      time.Time // the database's clock when the anchor was last set from scratch
	young    time.Time // until then the anchor, a first reading, may turn out to be wrong
	jump     time.Duration
	tripped  bool
	held     bool // not anchored, and must not be: the fleet had stopped for the clock that this process came to
	accepted time.Time
	since    pair // while tripped: the first reading after the last step
}

// pair is one reading of both clocks.
type pair struct{ db, mono time.Time }

// NewGuard lets the database's clock run ahead by at most tolerance. now must carry a monotonic reading.
func NewGuard(tolerance time.Duration, now func() time.Time) *Guard {
	return &Guard{tolerance: tolerance, now: now}
}

// Begin is called before the database's clock is read; what it gives checks the reading. It answers ErrAhead from the
// moment that the clock jumps ahead until it agrees again or an operator accepts it; until the first prompt reading of a
// process all are believed. A clock that is behind is let pass: it makes late, not early.
//
// A reading is older than its check by up to the time since Begin. One that took long is no anchor: it may be so far
// behind that every prompt one after it would look like a jump.
func (g *Guard) Begin() func(db time.Time) error {
	began := g.now()
	return func(db time.Time) error { return g.check(began, db) }
}

// Allow checks a reading that was taken this moment.
func (g *Guard) Allow(db time.Time) error { return g.Begin()(db) }

func (g *Guard) check(began, db time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if g.held {
		g.follow(began, now, db)
		return fmt.Errorf("%w: the fleet had stopped for it when this process started", ErrAhead)
	}
	if g.at.IsZero() {
		if g.prompt(began, now) {
			g.set, g.anchor, g.at, g.young = db, db, now, now.Add(youth)
		}
		return nil
	}
	passed := now.Sub(g.at)
	expected := g.anchor.Add(passed)
	g.jump = db.Sub(expected)
	if g.jump > g.tolerance {
		g.follow(began, now, db)
		return fmt.Errorf("%w: by %s, at most %s is believed", ErrAhead, g.jump.Round(time.Millisecond), g.tolerance)
	}
	g.tripped = false
	most := time.Duration(float64(passed) * slew)
	g.anchor, g.at = expected.Add(min(max(g.jump, -most), most)), now
	return nil
}

// prompt tells a reading that may serve as an anchor.
func (g *Guard) prompt(began, now time.Time) bool { return now.Sub(began) <= g.tolerance/2 }

// follow watches a clock that is not believed: since when it has run steadily. An acceptance is of the clock that the
// operator saw; a further step after it is another clock.
func (g *Guard) follow(began, now, db time.Time) {
	reading := pair{db: db, mono: now}
	if !g.tripped {
		g.tripped, g.since = true, reading
		return
	}
	drift, most := g.drift(now, db)
	if drift > most || drift < -most-now.Sub(began) { // the reading may be as much older than now
		g.since = reading
	}
}

// drift is how far the database's clock has gone ahead since g.since, and how far a steady one may have: half of the tolerance either
// way, so that what is accepted and what runs then differ by the tolerance at most.
func (g *Guard) drift(now, db time.Time) (drift, most time.Duration) {
	passed := now.Sub(g.since.mono)
	return db.Sub(g.since.db) - passed, g.tolerance/2 + time.Duration(float64(passed)*slew)
}

// Accept hears that an operator took the database's clock to be right at the instant accepted, as it read then; db is
// the present reading, begun at began. A process that had stopped goes on from it, unless the clock has stepped since
// what was accepted, or before this process saw it: then another acceptance is needed. It reports whether it goes on.
func (g *Guard) Accept(began, db, accepted time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if !g.tripped || !accepted.After(g.accepted) || accepted.Before(g.since.db) || accepted.After(db) || !g.prompt(began, now) {
		return false
	}
	if drift, most := g.drift(now, db); drift > most || drift < -most {
		return false
	}
	g.accepted, g.tripped, g.held = accepted, false, false
	g.set, g.anchor, g.at, g.jump, g.young = db, db, now, 0, time.Time{}
	return true
}

// isYoung tells a process that may have taken a wrong clock for right: it has not seen a jump itself.
func (g *Guard) isYoung() bool { return !g.tripped && g.now().Before(g.young) }

// Hold stops a process that has not seen the database's clock yet, or for the first time just now: the others have stopped
// for it, and a fresh process would believe it. It reports whether it does.
func (g *Guard) Hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() || g.isYoung() {
		g.held, g.at, g.set = true, time.Time{}, time.Time{}
	}
	return g.held
}

// Free lets a held process go on: another one does.
func (g *Guard) Free() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held {
		g.held, g.tripped = false, false
	}
}

// Estimate is about where the database's clock is now, never much ahead of it; zero before the first reading. It decides
// nothing: it only tells what need not be asked yet.
func (g *Guard) Estimate() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() {
		return time.Time{}
	}
	return g.anchor.Add(g.now().Sub(g.at))
}

// State is what a guard knows.
type State struct {
	Jump     time.Duration // how far the database's clock was ahead of the anchor at the last reading
	Anchored time.Time     // the database's clock when the anchor was last set from scratch; zero: not yet
	Tripped  bool          // nothing may expire
	Held     bool          // tripped for what others saw
	Young    bool          // believes by an anchor so fresh that it may yet be held
	Since    time.Time     // of a tripped one: the database's clock at the first reading after its last step
	Accepted time.Time     // the acceptance that it last went by
}

// State gives the state.
func (g *Guard) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{Jump: g.jump, Anchored: g.set, Tripped: g.tripped || g.held, Held: g.held, Young: g.isYoung(), Accepted: g.accepted}
	if g.tripped {
		s.Since = g.since.db
	}
	return s
}
