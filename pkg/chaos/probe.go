package chaos

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/lifecycle"
)

const (
	probeEvery = 250 * time.Millisecond
	// lateBy is how much something may be behind and count as in time.
	lateBy = "2 SECOND"
	probe  = `SELECT (SELECT COUNT(*) FROM coupon WHERE status = 1 AND due_at < UTC_TIMESTAMP(3) - INTERVAL ` + lateBy + `)
		+ (SELECT COUNT(*) FROM coupon WHERE status = 2 AND lock_until < UTC_TIMESTAMP(3) - INTERVAL ` + lateBy + `)
		+ (SELECT COUNT(*) FROM outbox WHERE created_at < UTC_TIMESTAMP(3) - INTERVAL ` + lateBy + `)`
)

// sample says whether something was late at an instant.
type sample struct {
	at time.Time
	ok bool
}

// probes look whether the fleet keeps up: nothing overdue, nothing unsent for long.
type probes struct {
	mu      sync.Mutex
	samples []sample
}

func (p *probes) run(ctx context.Context, s *site) {
	for ctx.Err() == nil {
		ask, cancel := context.WithTimeout(ctx, askLimit)
		var late int
		err := s.db.QueryRowContext(ask, probe).Scan(&late)
		cancel()
		p.mu.Lock()
		p.samples = append(p.samples, sample{at: time.Now(), ok: err == nil && late == 0})
		p.mu.Unlock()
		_ = lifecycle.Sleep(ctx, probeEvery) // ctx tells
	}
}

// after is how long it took from an instant until nothing was late; ok is false if it never came to that.
func (p *probes) after(end time.Time) (took time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.samples {
		if s.ok && !s.at.Before(end) {
			return s.at.Sub(end), true
		}
	}
	return 0, false
}
