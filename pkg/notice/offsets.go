package notice

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// RemindStore knows at which offsets the installation reminds.
type RemindStore interface {
	Reminders(ctx context.Context) (coupon.Reminders, error)
}

const offsetsInterval = 10 * time.Minute

// Offsets says when settings name reminders that there are none of: they are another process's setting, and what is told of a
// reminder that never comes is told to nobody.
type Offsets struct {
	store RemindStore
	named map[string][]string
	log   *zap.Logger
	said  string
}

// NewOffsets watches the offsets that are named by settings. An empty name is none.
func NewOffsets(store RemindStore, named map[string][]string, log *zap.Logger) *Offsets {
	return &Offsets{store: store, named: named, log: log}
}

// Run looks now and then until ctx ends.
func (o *Offsets) Run(ctx context.Context) error {
	tell := telemetry.NewRepeats(o.log, time.Hour, time.Now).Tell("it is not known which reminders there are", "it is known again which reminders there are")
	return lifecycle.Every(ctx, offsetsInterval, o.Look, tell) //nolint:wrapcheck // nil
}

// Look compares once, and says what differs if that is not what it said last. Where nobody is reminded nothing is wrong.
func (o *Offsets) Look(ctx context.Context) error {
	r, err := o.store.Reminders(ctx)
	if err != nil {
		return fmt.Errorf("read when to remind: %w", err)
	}
	names := make([]string, len(r.Offsets))
	for i := range r.Offsets {
		names[i] = r.Offsets[i].Name
	}
	var odd []string
	for _, setting := range slices.Sorted(maps.Keys(o.named)) {
		for _, name := range o.named[setting] {
			if name != "" && len(names) > 0 && !slices.Contains(names, name) {
				odd = append(odd, setting+": "+name)
			}
		}
	}
	if said := strings.Join(odd, ", "); said != o.said {
		if o.said = said; said != "" {
			o.log.Warn("settings name reminders that this installation does not have (reminders.offsets of its publisher)",
				zap.Strings("settings", odd), zap.Strings("reminders", names))
		}
	}
	return nil
}
