package issuance

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
)

// MaxBatch is the most grants of one transaction.
const MaxBatch = 1000

// Config tunes how grants are taken from the broker.
type Config struct {
	Batch       int           `koanf:"batch"`       // grants of one transaction, and deliveries handled at once, at most; default 500
	Linger      time.Duration `koanf:"linger"`      // how long the first delivery of a batch waits for others; default 10ms
	Prefetch    int           `koanf:"prefetch"`    // deliveries in memory, each up to 1 MiB; default 1000
	Concurrency int           `koanf:"concurrency"` // transactions side by side; default 2
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Batch: 500, Linger: 10 * time.Millisecond, Prefetch: 1000, Concurrency: 2}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Batch < 1 || c.Batch > MaxBatch {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and %d, got %d", MaxBatch, c.Batch))
	}
	if c.Linger < 0 || c.Linger > 10*time.Second {
		errs = append(errs, fmt.Errorf("linger: must be between 0s and 10s, got %s", c.Linger))
	}
	if c.Prefetch < max(1, c.Batch) || c.Prefetch > 10_000 {
		errs = append(errs, fmt.Errorf("prefetch: must be between batch (%d) and 10000, got %d", c.Batch, c.Prefetch))
	}
	if c.Concurrency < 1 || c.Concurrency > 64 {
		errs = append(errs, fmt.Errorf("concurrency: must be between 1 and 64, got %d", c.Concurrency))
	}
	return errors.Join(errs...)
}

// Consumer is the broker's part of it.
func (c Config) Consumer() broker.ConsumerConfig {
	return broker.ConsumerConfig{Prefetch: c.Prefetch, Batch: c.Batch, Linger: c.Linger, Concurrency: c.Concurrency}
}
