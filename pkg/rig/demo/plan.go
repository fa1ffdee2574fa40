package demo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
)

const (
	lead       = 5 * time.Second // from sending a grant to the earliest end in it
	leadMost   = 40 * time.Second
	leadKilled = 10 * time.Second // the same while the publisher may be down
	perSecond  = 800              // grants that any machine manages
	closing    = 5 * time.Second  // from the last end to the closing of the notices' windows
	quiet      = 2 * time.Second  // of the notices' windows
	maxItems   = 10_000           // of a window
	soonest    = 2 * time.Minute  // of the waiting coupons, after the windows closed
	latest     = 400 * 24 * time.Hour
)

// schedule is what is asked for: the ends are drawn chunk by chunk as the grants are sent, so that none lies before
// its grant however long granting takes. The last end is set beforehand, and moves only if granting turns out to take
// longer than that.
type schedule struct {
	cfg  Config
	last time.Time
	lead time.Duration
	draw *rand.Rand
	sent int
}

// newSchedule plans from now (of the database's clock) on.
func newSchedule(cfg Config, now time.Time) *schedule {
	s := &schedule{cfg: cfg, lead: min(lead, cfg.Over*3/5)}
	if cfg.Kill == Publisher {
		s.lead = min(leadKilled, cfg.Over*3/5)
	}
	if cfg.First > 0 {
		s.lead = cfg.First
	}
	s.draw = rand.New(rand.NewPCG(cfg.Seed, 12))
	granting := time.Duration(cfg.Coupons) * time.Second / perSecond
	s.last = now.Add(max(cfg.Over, granting+s.lead+minOver)).Truncate(time.Second)
	return s
}

// closes is when the notices' windows close: later if something is killed, so that what comes late joins them.
func (s *schedule) closes() time.Time {
	after := s.last.Add(closing + s.cfg.Closing)
	switch s.cfg.Kill {
	case "":
		return after
	case Broker:
		return after.Add(30 * time.Second)
	default:
		return after.Add(20 * time.Second)
	}
}

// first is the earliest end that a grant sent now may have; slowest is how long the slowest of the last answers took.
func (s *schedule) first(now time.Time, slowest time.Duration) time.Time {
	return now.Add(max(s.lead, min(3*slowest, leadMost)) + time.Second).Truncate(time.Second)
}

// move puts the last end off if grants sent now could not end before it, and says whether it has.
func (s *schedule) move(now time.Time, slowest time.Duration) bool {
	first := s.first(now, slowest)
	if s.sent >= s.cfg.Coupons || !s.last.Before(first) {
		return false
	}
	s.last = first.Add(s.cfg.Over).Truncate(time.Second)
	return true
}

// put takes in an end that was asked for beside the plan.
func (s *schedule) put(end time.Time) {
	if end.After(s.last) {
		s.last = end
	}
}

// next gives up to n asks, nothing after the last one.
func (s *schedule) next(now time.Time, slowest time.Duration, n int) []audit.Ask {
	var asks []audit.Ask
	first := s.first(now, slowest)
	if s.last.Before(first) {
		first = s.last // a moment ago there was time
	}
	for ; n > 0 && s.sent < s.cfg.Coupons; n-- {
		span := int64(s.last.Sub(first) / time.Second)
		i := s.sent
		asks = append(asks, audit.Ask{
			Key: fmt.Sprintf("demo-%07d", i+1), User: fmt.Sprintf("demo-user-%06d", i%s.cfg.Users+1),
			End: first.Add(time.Duration(s.draw.Int64N(span+1)) * time.Second),
		})
		s.sent++
	}
	for ; n > 0 && s.sent < s.cfg.Coupons+s.cfg.Waiting; n-- {
		asks = append(asks, s.waiting(s.sent-s.cfg.Coupons))
		s.sent++
	}
	return asks
}

// waiting spreads the coupons that outlive the run evenly over the orders of magnitude, so that every level of the
// ladder has some.
func (s *schedule) waiting(i int) audit.Ask {
	share := float64(i) / float64(max(1, s.cfg.Waiting-1))
	after := time.Duration(float64(soonest) * math.Pow(float64(latest)/float64(soonest), share))
	return audit.Ask{
		Key: fmt.Sprintf("demo-waiting-%05d", i+1), User: fmt.Sprintf("demo-waiting-%05d", i+1), Waiting: true,
		End: s.closes().Add(after).Truncate(time.Second),
	}
}
