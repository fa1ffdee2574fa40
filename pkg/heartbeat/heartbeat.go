package heartbeat

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// Config says whether there are heartbeats, for the whole installation: the publisher that starts last decides.
type Config struct {
	// Enabled: grant them. Default true.
	Enabled bool `koanf:"enabled"`
	// Interval is between two. The shipped alert rules go by the default, 30s.
	Interval time.Duration `koanf:"interval"`
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config { return Config{Enabled: true, Interval: 30 * time.Second} }

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	if c.Interval < time.Second || c.Interval > time.Hour {
		return fmt.Errorf("interval: must be between 1s and 1h, got %s", c.Interval)
	}
	return nil
}

// Granter is the store's part.
type Granter interface {
	PrepareBeats(ctx context.Context) error
	NoBeats(ctx context.Context) error
	Beat(ctx context.Context, every time.Duration) (granted bool, err error)
}

// Heart grants heartbeats.
type Heart struct {
	config Config
	store  Granter
	log    *zap.Logger
}

// New makes it.
func New(c Config, store Granter, log *zap.Logger) (*Heart, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Heart{c, store, log}, nil
}

// Run grants heartbeats until ctx ends. Where there are to be none, it sees once to it that none are missed.
func (h *Heart) Run(ctx context.Context) error {
	prepared := false
	beat := func(ctx context.Context) error {
		if !prepared {
			prepare := h.store.PrepareBeats
			if !h.config.Enabled {
				prepare = h.store.NoBeats
			}
			if err := prepare(ctx); err != nil {
				return fmt.Errorf("preparing heartbeats: %w", err)
			}
			prepared = true
		}
		if !h.config.Enabled {
			return nil
		}
		// A moment less than the interval: this pod's own last one must not be too young by some milliseconds.
		if _, err := h.store.Beat(ctx, h.config.Interval-h.config.Interval/slack); err != nil {
			return err //nolint:wrapcheck // the store's, named
		}
		return nil
	}
	tell := telemetry.NewRepeats(h.log, time.Minute, time.Now).Tell("no heartbeat", "heartbeats go on")
	return lifecycle.Every(ctx, h.config.Interval, beat, tell) //nolint:wrapcheck // nil
}

const slack = 20
