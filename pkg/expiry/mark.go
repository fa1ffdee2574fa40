package expiry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	markSeconds = 5 // how far back a settlement still tells where the ladder is
	markEvery   = time.Second
	markWithin  = 3 * time.Second
)

// Marker stores a ladder mark.
type Marker interface {
	PutMark(ctx context.Context, queue, pod string, mark time.Time) error
}

// Marks knows how far the ladder has come on one due queue: the smallest due instant that a first-attempt trigger of
// the ladder, a rebuilt one included, settled in the last five seconds. The sweep stays behind it. Safe for concurrent use.
type Marks struct {
	queue, pod string
	store      Marker
	now        func() time.Time
	log        *zap.Logger

	mu    sync.Mutex
	least [markSeconds]struct {
		second int64
		due    time.Time
	}
}

// NewMarks makes the marks of a queue and pod.
func NewMarks(queue, pod string, store Marker, now func() time.Time, log *zap.Logger) *Marks {
	return &Marks{queue: queue, pod: pod, store: store, now: now, log: log}
}

func (m *Marks) settled(ts []coupon.Trigger, rs []Result) {
	var least time.Time
	for i, r := range rs {
		if r.Err != nil || r.Busy || ts[i].Attempt > 0 || ts[i].Origin.Cause() != coupon.CauseLadder {
			continue
		}
		if a := r.Decision.Action; a != coupon.Expire && a != coupon.Unlock {
			continue
		}
		if least.IsZero() || r.DueAt.Before(least) {
			least = r.DueAt
		}
	}
	if least.IsZero() {
		return
	}
	second := m.now().Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	slot := &m.least[second%markSeconds]
	if slot.second != second || least.Before(slot.due) {
		slot.second, slot.due = second, least
	}
}

// current gives the mark, zero when nothing was settled lately.
func (m *Marks) current() time.Time {
	second := m.now().Unix()
	m.mu.Lock()
	defer m.mu.Unlock()
	var least time.Time
	for _, slot := range m.least {
		if second-slot.second < markSeconds && (least.IsZero() || slot.due.Before(least)) {
			least = slot.due
		}
	}
	return least
}

// Run stores the mark every second while there is one.
func (m *Marks) Run(ctx context.Context) error {
	tick := time.NewTicker(markEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		mark := m.current()
		if mark.IsZero() {
			continue
		}
		err := m.put(ctx, mark)
		if err != nil && !failing && !errors.Is(err, context.Canceled) {
			m.log.Warn("ladder mark not stored; the sweep may compete with the ladder", zap.Error(err))
		}
		failing = err != nil
	}
}

func (m *Marks) put(ctx context.Context, mark time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, markWithin)
	defer cancel()
	return m.store.PutMark(ctx, m.queue, m.pod, mark)
}
