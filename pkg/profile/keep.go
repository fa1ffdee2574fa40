package profile

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// between two transactions of a look: whoever handles events is to find the rows free.
const pause = 50 * time.Millisecond

func breathe(ctx context.Context) error { return lifecycle.Sleep(ctx, pause) } //nolint:wrapcheck // ended by ctx

// Run removes what is too old and seals again what an old key sealed, until ctx ends. Any number of pods may.
func (k *Keeper) Run(ctx context.Context) error {
	tell := telemetry.NewRepeats(k.log, time.Hour, time.Now).Tell("profiles are not looked after", "profiles are looked after again")
	return lifecycle.Every(ctx, k.config.Interval, k.Look, tell) //nolint:wrapcheck // nil
}

// Look goes once over everything that is too old or sealed with an old key.
func (k *Keeper) Look(ctx context.Context) error {
	if err := k.prune(ctx); err != nil {
		return err
	}
	return k.rotate(ctx)
}

func (k *Keeper) prune(ctx context.Context) error {
	if k.config.Retention == 0 {
		return nil
	}
	now, err := k.store.Now(ctx)
	if err != nil {
		return fmt.Errorf("prune profiles: %w", err)
	}
	total := 0
	for more := true; more; {
		var n int
		n, more, err = k.store.PruneProfiles(ctx, now.Add(-k.config.Retention), k.config.Page)
		if err != nil {
			return fmt.Errorf("prune profiles: %w", err)
		}
		total += n
		k.metrics.pruned.Add(float64(n))
		if more {
			if err := k.wait(ctx); err != nil {
				return err
			}
		}
	}
	if total > 0 {
		k.log.Info("profiles pruned", zap.Int("profiles", total))
	}
	return nil
}

// rotate seals again what other keys than the active one sealed.
func (k *Keeper) rotate(ctx context.Context) error {
	keys, err := k.store.AddressKeys(ctx)
	if err != nil {
		return fmt.Errorf("rotate keys: %w", err)
	}
	locked := 0
	for _, key := range keys {
		if key == k.keys.Active() {
			continue
		}
		resealed, shut, err := k.resealAll(ctx, key)
		if err != nil {
			return err
		}
		locked += shut
		if resealed > 0 {
			k.log.Info("addresses sealed again", zap.String("key", key), zap.Int("sealed", resealed), zap.Int("cannot_be_opened", shut))
		}
	}
	k.metrics.locked.Set(float64(locked))
	return nil
}

// resealAll goes over what the key sealed, in pages. shut counts what cannot be opened: without a key of that id, everything.
func (k *Keeper) resealAll(ctx context.Context, key string) (resealed, shut int, err error) {
	for after := ""; ; {
		page, err := k.store.SealedWith(ctx, key, after, k.config.Page)
		if err != nil {
			return resealed, shut, fmt.Errorf("rotate keys: %w", err)
		}
		var from, to []coupon.Sealed
		for _, old := range page {
			if sealed, err := k.reseal(old); err == nil {
				from, to = append(from, old), append(to, sealed)
			} else {
				shut++
			}
			after = old.UserID
		}
		if len(from) > 0 {
			n, err := k.store.Reseal(ctx, from, to)
			if err != nil {
				return resealed, shut, fmt.Errorf("rotate keys: %w", err)
			}
			resealed += n
			k.metrics.resealed.Add(float64(n))
		}
		if len(page) < k.config.Page {
			return resealed, shut, nil
		}
		if err := k.wait(ctx); err != nil {
			return resealed, shut, err
		}
	}
}
