package expiry

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrClock: the database's clock is ahead of where monotonic time says it should be. Nothing may expire.
var ErrClock = errors.New("database clock ahead")

// slew is how much of the time that passed the anchor may follow the database's clock by: crystals differ by far
// less, a step by far more.
const slew = 0.001

// Guard anchors the database's clock to this process's monotonic clock. The database alone decides what is due; the
// guard only notices that its clock has jumped ahead, which would take coupons away early. Safe for concurrent use.
type Guard struct {
	tolerance time.Duration
	now       func() time.Time

	mu      sync.Mutex
	anchor  time.Time // database's clock …
	at      time.Time // … at this reading of the monotonic clock
	offset  time.Duration
	tripped bool
}

// NewGuard lets the database's clock run ahead by at most tolerance. now must carry a monotonic reading.
func NewGuard(tolerance time.Duration, now func() time.Time) *Guard {
	return &Guard{tolerance: tolerance, now: now}
}

// Begin is called before the database's clock is read; what it gives checks the reading. It answers ErrClock from the
// moment that the clock jumps ahead until it agrees again; until the first prompt reading of a process all are
// believed. A clock that is behind is let pass: it makes late, not early.
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
	if g.at.IsZero() {
		if now.Sub(began) <= g.tolerance/2 {
			g.anchor, g.at = db, now
		}
		return nil
	}
	passed := now.Sub(g.at)
	expected := g.anchor.Add(passed)
	g.offset = db.Sub(expected)
	if g.offset > g.tolerance {
		g.tripped = true
		return fmt.Errorf("%w: by %s, at most %s is believed", ErrClock, g.offset.Round(time.Millisecond), g.tolerance)
	}
	g.tripped = false
	most := time.Duration(float64(passed) * slew)
	g.anchor, g.at = expected.Add(min(max(g.offset, -most), most)), now
	return nil
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

// Offset is how far the database's clock was ahead of the anchor at the last reading, and whether that stops expiring.
func (g *Guard) Offset() (ahead time.Duration, tripped bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.offset, g.tripped
}
