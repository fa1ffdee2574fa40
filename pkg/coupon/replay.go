package coupon

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// ReplayAsk says which events are told once more: those of the steps of coupons' lives within a time.
type ReplayAsk struct {
	From, To time.Time // of the step; To is exclusive
	Keys     []string  // routing keys, such as coupon.expired; empty: all
	Template uint64    // 0: of all templates
}

// Validate reports every fault, each beginning with the flag's name.
func (a ReplayAsk) Validate() error {
	if a.From.IsZero() || !a.From.Before(a.To) {
		return fmt.Errorf("from, to: the first must be before the second, got %s and %s", a.From.Format(time.RFC3339), a.To.Format(time.RFC3339))
	}
	return nil
}

// Wants reports whether events of the key are told.
func (a ReplayAsk) Wants(key string) bool { return len(a.Keys) == 0 || slices.Contains(a.Keys, key) }

// Hash tells two asks apart.
func (a ReplayAsk) Hash() [sha256.Size]byte {
	keys := slices.Sorted(slices.Values(a.Keys))
	return sha256.Sum256(fmt.Appendf(nil, "replay %d %d %q %d", a.From.UnixMilli(), a.To.UnixMilli(), keys, a.Template))
}

// ReplayPlace is where a walk over the history stands. The zero value is the beginning.
type ReplayPlace struct {
	Archive bool   `json:"archive"` // it is in the archive's, which comes second
	Coupon  uint64 `json:"coupon"`
	Version uint32 `json:"version"`
	Done    bool   `json:"done"`
	Seen    int64  `json:"seen"` // steps looked at
	Events  int64  `json:"events"`
}

// Replayed is an event as it was told before.
type Replayed struct {
	Key   string
	ID    string
	Trace string
	Body  []byte
}
