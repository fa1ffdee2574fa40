package expiry

import (
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Swept is what a round of the sweep did.
type Swept struct {
	Expired  int
	Unlocked int
	Failed   int // rows that cannot be changed; it went past them
	Paused   int // rows of which an operator has paused the expiry; once looked at it goes past them for a while
	More     bool
	Cutoff   time.Time // what was due before it was looked at

	rows int // looked at
}

// Settled is how many coupons changed.
func (s Swept) Settled() int { return s.Expired + s.Unlocked }

func (s *Swept) add(o Swept) {
	s.Expired, s.Unlocked, s.Failed, s.More = s.Expired+o.Expired, s.Unlocked+o.Unlocked, s.Failed+o.Failed, s.More || o.More
	s.Paused += o.Paused
}

func (s *Swept) count(r coupon.Settlement) {
	switch {
	case r.Busy:
	case r.Decision.Action == coupon.Expire:
		s.Expired++
	case r.Decision.Action == coupon.Unlock:
		s.Unlocked++
	case r.Decision.Reason == coupon.DropPaused:
		s.Paused++
	}
}
