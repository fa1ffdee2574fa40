package pulse

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Store keeps the reports.
type Store interface {
	PutPulse(ctx context.Context, r Report) error
	DropPulse(ctx context.Context, pod string) error
}

const putWithin = 3 * time.Second

// Teller stores a process's report every five seconds, and takes it away when the process stops in order: a report that
// grows old is of one that was killed.
type Teller struct {
	recorder *Recorder
	store    Store
	head     Report
	log      *zap.Logger
}

// NewTeller makes it; head says who the process is.
func NewTeller(r *Recorder, store Store, head Report, log *zap.Logger) *Teller {
	return &Teller{recorder: r, store: store, head: head, log: log}
}

// Run tells until ctx ends.
func (t *Teller) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	failing := false
	for {
		err := t.put(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("this process cannot tell of itself; lapsectl status does not see it", zap.Error(err))
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), putWithin)
			defer cancel()
			if err := t.store.DropPulse(gone, t.head.Pod); err != nil {
				t.log.Debug("report not taken away", zap.Error(err))
			}
			return nil
		case <-tick.C:
		}
	}
}

func (t *Teller) put(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, putWithin)
	defer cancel()
	r := t.recorder.take()
	r.Pod, r.Role, r.Version, r.Started = t.head.Pod, t.head.Role, t.head.Version, t.head.Started
	return t.store.PutPulse(ctx, r)
}
