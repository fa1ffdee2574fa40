package coupon

import "time"

// ForecastQuery asks what comes due when (requirement R19).
type ForecastQuery struct {
	From, To time.Time     // [From, To), by the due instant; From zero: the database's now
	Bucket   time.Duration // whole seconds; buckets begin at its multiples since 1970 UTC
	Template uint64        // 0: all; peaks are the fleet's in any case
	Cap      int           // rows counted in one bucket and state at most
	Budget   int           // rows counted in all at most; buckets beyond are not counted
}

// Forecast is the answer, by the rows of one reading each: a forecast, no snapshot.
type Forecast struct {
	Now     time.Time
	Drain   DrainRate
	Buckets []ForecastBucket // all of the range, in order, empty ones too
}

// ForecastBucket is what comes due within [Start, End).
type ForecastBucket struct {
	Start, End time.Time
	Unused     int64
	Locked     int64            // they come when their lock ends, if at all
	Value      map[string]int64 // of unused and locked, minor units by currency
	Capped     bool             // there are more: the numbers are what was counted
	Skipped    bool             // not counted at all: the budget was used up
	Peak       Peak             // the fullest second
	Drain      time.Duration    // how long the fleet needs for the unused ones
	Backlog    int64            // unused ones that are not done at End, those carried over from before included
}

// Peak is a second in which coupons come due.
type Peak struct {
	At      time.Time
	Coupons int64
}

// DrainRate is how fast the fleet expires coupons, once there is a backlog.
type DrainRate struct {
	PerPod   float64 // coupons a second of one expirer
	Pods     int     // expirers that were heard of lately; at least 1
	Measured bool    // else as configured
	At       time.Time
}

// PerSecond is the fleet's rate.
func (r DrainRate) PerSecond() float64 { return r.PerPod * float64(max(1, r.Pods)) }

// Lateness is how long after its second the last of n coupons is done.
func (r DrainRate) Lateness(n int64) time.Duration {
	rate := r.PerSecond()
	if n <= 0 || rate <= 0 {
		return 0
	}
	return time.Duration(float64(n) / rate * float64(time.Second))
}

// Over tells whether a second with n coupons is a peak: more than the fleet drains in a second.
func (r DrainRate) Over(n int64) bool { return r.PerSecond() > 0 && float64(n) > r.PerSecond() }

// Spread fills in what follows from counts and rate: how long each bucket takes and what is carried over.
func (f *Forecast) Spread() {
	carried := 0.0
	for i := range f.Buckets {
		b := &f.Buckets[i]
		b.Drain = f.Drain.Lateness(b.Unused)
		carried = max(0, carried+float64(b.Unused)-f.Drain.PerSecond()*b.End.Sub(b.Start).Seconds())
		b.Backlog = int64(carried)
	}
}
