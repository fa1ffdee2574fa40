package pulse

import (
	"math/bits"
	"time"
)

// Lateness counts how late coupons were, in buckets of which each reaches twice as far as the one before: up to 8 ms,
// 16 ms, and so on to 262 s; the last holds what is later.
type Lateness [lateBuckets]int64

const (
	lateBuckets = 17
	lateFirst   = 8 // milliseconds
)

func lateBucket(d time.Duration) int {
	ms := uint64(max(0, d+time.Millisecond-1) / time.Millisecond)
	if ms <= lateFirst {
		return 0
	}
	return min(bits.Len64((ms-1)/lateFirst), lateBuckets-1)
}

// Add puts another's counts to these.
func (l *Lateness) Add(o Lateness) {
	for i := range l {
		l[i] += o[i]
	}
}

// Count is how many there were.
func (l *Lateness) Count() (n int64) {
	for _, c := range l {
		n += c
	}
	return n
}

// AtMost is a bound that the share (0–1) of them keeps: the end of a bucket; 0 when there were none.
func (l *Lateness) AtMost(share float64) time.Duration {
	total := l.Count()
	if total == 0 {
		return 0
	}
	left := share * float64(total)
	for i, c := range l {
		if left -= float64(c); left <= 0 {
			return (lateFirst << i) * time.Millisecond
		}
	}
	return (lateFirst << (lateBuckets - 1)) * time.Millisecond
}
