package order

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
)

// Config tunes how order events are taken from the broker.
type Config struct {
	Batch       int           `koanf:"batch"`       // deliveries handled at once, at most; default 64
	Linger      time.Duration `koanf:"linger"`      // how long the first delivery of a batch waits for others; default 5ms
	Prefetch    int           `koanf:"prefetch"`    // deliveries in memory, each up to 1 MiB; default 512
	Concurrency int           `koanf:"concurrency"` // batches side by side; above 1 what comes in order may be done out of it; default 1
	Parallel    int           `koanf:"parallel"`    // orders of one batch side by side, each a transaction; default 4
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Batch: 64, Linger: 5 * time.Millisecond, Prefetch: 512, Concurrency: 1, Parallel: 4}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Batch < 1 || c.Batch > 1000 {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and 1000, got %d", c.Batch))
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
	if c.Parallel < 1 || c.Parallel > 64 {
		errs = append(errs, fmt.Errorf("parallel: must be between 1 and 64, got %d", c.Parallel))
	}
	return errors.Join(errs...)
}

// Consumer is the broker's part of it.
func (c Config) Consumer() broker.ConsumerConfig {
	return broker.ConsumerConfig{Prefetch: c.Prefetch, Batch: c.Batch, Linger: c.Linger, Concurrency: c.Concurrency}
}
