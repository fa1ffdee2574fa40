package outbox_test

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// stalling is a relay's whole world with a brake: publishing waits for the gate, and while stalled nothing else of the
// relay gets through either, as if the process were not scheduled.
type stalling struct {
	*fakeStore
	mq      *fakeBroker
	gate    chan struct{}
	stalled atomic.Bool
}

var errStalled = errors.New("stalled")

func (s *stalling) stall(on bool) { s.stalled.Store(on) }

func (s *stalling) ClaimParts(ctx context.Context, owner string, lease time.Duration) (coupon.OutboxClaim, error) {
	if s.stalled.Load() {
		return coupon.OutboxClaim{}, errStalled
	}
	return s.fakeStore.ClaimParts(ctx, owner, lease)
}

func (s *stalling) Publish(ctx context.Context, ms []broker.Message) []error {
	<-s.gate
	return s.mq.Publish(ctx, ms)
}

func (s *stalling) Deliver(ctx context.Context, now time.Time, ts []coupon.Timed) []error {
	<-s.gate
	return s.mq.Deliver(ctx, now, ts)
}
