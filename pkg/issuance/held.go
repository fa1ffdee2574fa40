package issuance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// HeldStore keeps the grants that came while their issuance was paused.
type HeldStore interface {
	// IssueHeld grants those after the id from that are paused no more, of at most limit rows; next is where to go on, also
	// when one of them cannot be stored (coupon.ErrIntegrity).
	IssueHeld(ctx context.Context, from uint64, limit int) (next uint64, answers []coupon.Granted, more bool, err error)
	BrakesSeen() *coupon.Pauses
}

const (
	heldLook  = time.Second      // how often the brakes are looked at; no statement
	heldEvery = 30 * time.Second // how often the rows are, though no brake has changed
	heldLimit = 30 * time.Second // of one pass
)

// Held grants what was kept when its pause is over. One loop; any number of pods run one.
type Held struct {
	store HeldStore
	batch int
	count func([]coupon.Granted)
	log   *zap.Logger
	last  map[coupon.Pause]time.Time
	next  time.Time
}

// NewHeld makes the loop. What it grants is counted with what h does.
func (h *Handler) NewHeld(store HeldStore) *Held {
	return &Held{store: store, batch: h.batch, count: h.metrics.count, log: h.log}
}

// Run grants until ctx ends.
func (k *Held) Run(ctx context.Context) error {
	tell := telemetry.NewRepeats(k.log, 0, time.Now).Tell("grants that were held cannot be granted, trying again", "grants that were held are granted again")
	return lifecycle.Every(ctx, heldLook, k.look, tell) //nolint:wrapcheck // nil
}

// look makes a pass when a brake has changed, or the time has come.
func (k *Held) look(ctx context.Context) error {
	now, on := time.Now(), k.store.BrakesSeen().Since(coupon.BrakeIssuance)
	if now.Before(k.next) && maps.Equal(on, k.last) {
		return nil
	}
	if err := k.pass(ctx); err != nil {
		return err
	}
	k.last, k.next = on, now.Add(heldEvery)
	return nil
}

func (k *Held) pass(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, heldLimit)
	defer cancel()
	from, limit := uint64(0), k.batch
	for {
		next, answers, more, err := k.store.IssueHeld(ctx, from, limit)
		switch {
		case errors.Is(err, coupon.ErrIntegrity) && limit > 1:
			limit = max(1, limit/2)
			continue
		case errors.Is(err, coupon.ErrIntegrity):
			k.log.Warn("a grant that was held cannot be stored; it stays where it is", zap.Uint64("row", next), zap.Error(err))
			more = true
		case err != nil:
			return fmt.Errorf("grant what was held: %w", err)
		}
		k.count(answers)
		if !more || next == from {
			return nil
		}
		from, limit = next, k.batch
	}
}
