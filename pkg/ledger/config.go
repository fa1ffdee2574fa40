package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
)

// MaxBatch is the most events, returns or steps of history of one transaction.
const MaxBatch = 1000

// Config tunes statistics, quota return, and what is cleared away.
type Config struct {
	Batch       int           `koanf:"batch"`       // events of one transaction at most; default 500
	Linger      time.Duration `koanf:"linger"`      // how long the first event of a batch waits for others; default 250ms
	Prefetch    int           `koanf:"prefetch"`    // single events in memory; of bundles a twentieth; default 2000
	Concurrency int           `koanf:"concurrency"` // transactions side by side; default 2
	// QuotaInterval is how often returned quota is looked for. Default 1s.
	QuotaInterval time.Duration `koanf:"quota_interval"`
	// QuotaBatch is how many returns are folded in one transaction at most. Default 500.
	QuotaBatch int `koanf:"quota_batch"`
	// SeedBatch is how many steps of history are counted in one transaction at most, once, after an upgrade. Default 1000.
	SeedBatch int `koanf:"seed_batch"`
	// SeedPause is between two of those. Default 50ms.
	SeedPause time.Duration `koanf:"seed_pause"`
	// KeepTombstones is how long a closed or refunded order is remembered against what comes late for it. Default 720h.
	KeepTombstones time.Duration `koanf:"keep_tombstones"`
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Batch: 500, Linger: 250 * time.Millisecond, Prefetch: 2000, Concurrency: 2,
		QuotaInterval: time.Second, QuotaBatch: 500, SeedBatch: 1000, SeedPause: 50 * time.Millisecond,
		KeepTombstones: 30 * 24 * time.Hour,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	batch := func(field string, n int) {
		if n < 1 || n > MaxBatch {
			bad("%s: must be between 1 and %d, got %d", field, MaxBatch, n)
		}
	}
	between := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	batch("batch", c.Batch)
	between("linger", c.Linger, 0, 10*time.Second)
	if c.Prefetch < max(1, c.Batch) || c.Prefetch > 10_000 {
		bad("prefetch: must be between batch (%d) and 10000, got %d", c.Batch, c.Prefetch)
	}
	if c.Concurrency < 1 || c.Concurrency > 64 {
		bad("concurrency: must be between 1 and 64, got %d", c.Concurrency)
	}
	between("quota_interval", c.QuotaInterval, 10*time.Millisecond, time.Hour)
	batch("quota_batch", c.QuotaBatch)
	batch("seed_batch", c.SeedBatch)
	between("seed_pause", c.SeedPause, 0, time.Minute)
	between("keep_tombstones", c.KeepTombstones, time.Hour, 10*365*24*time.Hour)
	return errors.Join(errs...)
}

// Consumer is the broker's part of it.
func (c Config) Consumer() broker.ConsumerConfig {
	return broker.ConsumerConfig{Prefetch: c.Prefetch, Batch: c.Batch, Linger: c.Linger, Concurrency: c.Concurrency}
}
