package compare

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/event"
)

// ear notes when an independent consumer first heard of each coupon that it has expired.
type ear struct {
	mu       sync.Mutex
	now      func() time.Time // the database's clock
	hearings []*hearing
}

// hearing is of the coupons that end from one instant to another. What is not constant is guarded by ear.mu.
type hearing struct {
	ear      *ear
	from, to time.Time
	want     int
	half     chan struct{} // closed when half of them were heard of

	seen map[string]struct{}
	late []time.Duration
	last time.Time // when the last was heard of, by the database's clock
}

func newEar() *ear { return &ear{} }

// follow says what to ask for the database's clock. Nothing is heard before.
func (e *ear) follow(now func() time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = now
}

// expect so many coupons that end from one instant to another, none of which another hearing is of.
func (e *ear) expect(from, to time.Time, want int) *hearing {
	h := &hearing{ear: e, from: from, to: to, want: want, half: make(chan struct{}), seen: make(map[string]struct{}, want)}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hearings = append(e.hearings, h)
	return h
}

func (e *ear) hear(ev audit.Event) {
	if ev.Type != event.TypeExpired {
		return
	}
	var d struct {
		CouponID  string    `json:"coupon_id"`
		ExpiresAt time.Time `json:"expires_at"`
	}
	if err := json.Unmarshal(ev.Data, &d); err != nil {
		return // the audit notes it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.now == nil {
		return
	}
	at := e.now()
	for _, h := range e.hearings {
		if d.ExpiresAt.Before(h.from) || d.ExpiresAt.After(h.to) {
			continue
		}
		h.note(d.CouponID, at, at.Sub(d.ExpiresAt))
		return
	}
}

func (h *hearing) note(id string, at time.Time, late time.Duration) {
	if _, again := h.seen[id]; again {
		return
	}
	h.seen[id] = struct{}{}
	h.late, h.last = append(h.late, late), at
	if len(h.late) == (h.want+1)/2 {
		close(h.half)
	}
}

// heard is how many coupons were heard of, and when the last one.
func (h *hearing) heard() (n int, last time.Time) {
	h.ear.mu.Lock()
	defer h.ear.mu.Unlock()
	return len(h.late), h.last
}

// lateness of what was heard, in the order of hearing.
func (h *hearing) lateness() []time.Duration {
	h.ear.mu.Lock()
	defer h.ear.mu.Unlock()
	return append([]time.Duration(nil), h.late...)
}
