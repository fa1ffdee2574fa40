package notice

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/telemetry"
)

// health says once that a channel's provider fails, and once that it works again: when it has not failed for a while.
type health struct {
	said *telemetry.Repeats
	now  func() time.Time

	mu     sync.Mutex
	failed time.Time // last
	streak int       // of sends that worked since then
}

const (
	wellAfter  = time.Minute
	wellStreak = 20
)

func (h *health) note(works bool, results []Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	if !works {
		h.failed, h.streak = now, 0
		h.said.Failed("notices: the channel fails", errors.New(reasonOf(results)))
		return
	}
	h.streak++
	if !h.failed.IsZero() && (h.streak >= wellStreak || now.Sub(h.failed) >= wellAfter) {
		h.failed = time.Time{}
		h.said.Recovered("notices: the channel works again")
	}
}

// reasonOf is the first reason given.
func reasonOf(results []Result) string {
	if i := slices.IndexFunc(results, func(r Result) bool { return r.Reason != "" }); i >= 0 {
		return results[i].Reason
	}
	return "no reason given"
}
