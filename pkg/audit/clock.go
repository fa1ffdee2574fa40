package audit

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"
)

// clock knows the database's clock at any instant of this process's, within bounds.
type clock struct {
	mu      sync.Mutex
	samples [16]sample // the last ones, oldest overwritten
	n       int
}

// sample: the database's clock read dbTime (cut to the millisecond) at some instant between sent and got.
type sample struct {
	sent, got time.Time
	db        time.Time
}

const resolution = time.Millisecond // of UTC_TIMESTAMP(3)

func (c *clock) sample(ctx context.Context, db *sql.DB) error {
	s := sample{sent: time.Now()}
	if err := db.QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(3)").Scan(&s.db); err != nil {
		return fmt.Errorf("audit: reading the database's clock: %w", err)
	}
	s.got = time.Now()
	c.add(s)
	return nil
}

func (c *clock) add(s sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.samples[c.n%len(c.samples)] = s
	c.n++
}

// at gives the least and the greatest that the database's clock can have shown at the local instant: the narrowest
// bounds among the last samples, carried on by the monotonic clock. Both are zero before the first sample.
func (c *clock) at(local time.Time) (low, high time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range min(c.n, len(c.samples)) {
		s := c.samples[i]
		l, h := s.db.Add(local.Sub(s.got)), s.db.Add(local.Sub(s.sent)+resolution)
		if low.IsZero() || h.Sub(l) < high.Sub(low) {
			low, high = l, h
		}
	}
	return low, high
}
