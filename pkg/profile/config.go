package profile

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/secret"
)

// Config says how user events are taken and for how long what they tell is kept.
type Config struct {
	Batch       int           `koanf:"batch"`       // deliveries in one transaction, at most; default 200
	Linger      time.Duration `koanf:"linger"`      // how long the first delivery of a batch waits for others; default 20ms
	Prefetch    int           `koanf:"prefetch"`    // deliveries in memory; default 800
	Concurrency int           `koanf:"concurrency"` // batches side by side; default 1

	Retention time.Duration `koanf:"retention"` // a profile that nothing was heard of for so long is removed; 0: none is; default 9600h (400 days)
	Interval  time.Duration `koanf:"interval"`  // between two looks for what is too old or sealed with an old key; default 10m
	Page      int           `koanf:"page"`      // rows in one transaction of these; default 200

	Addresses secret.KeyringConfig `koanf:"addresses"` // the keys that addresses are sealed with; none: addresses are not kept
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Batch: 200, Linger: 20 * time.Millisecond, Prefetch: 800, Concurrency: 1,
		Retention: 400 * 24 * time.Hour, Interval: 10 * time.Minute, Page: 200,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Batch < 1 || c.Batch > 900 {
		bad("batch: must be between 1 and 900, got %d", c.Batch)
	}
	if c.Linger < 0 || c.Linger > 10*time.Second {
		bad("linger: must be between 0s and 10s, got %s", c.Linger)
	}
	if c.Prefetch < max(1, c.Batch) || c.Prefetch > 10_000 {
		bad("prefetch: must be between batch (%d) and 10000, got %d", c.Batch, c.Prefetch)
	}
	if c.Concurrency < 1 || c.Concurrency > 64 {
		bad("concurrency: must be between 1 and 64, got %d", c.Concurrency)
	}
	if c.Retention != 0 && (c.Retention < 24*time.Hour || c.Retention > 10*365*24*time.Hour) {
		bad("retention: must be 0s (for ever) or between 24h and 87600h, got %s", c.Retention)
	}
	if c.Interval < time.Second || c.Interval > 24*time.Hour {
		bad("interval: must be between 1s and 24h, got %s", c.Interval)
	}
	if c.Page < 1 || c.Page > 900 {
		bad("page: must be between 1 and 900, got %d", c.Page)
	}
	if err := c.Addresses.Validate(); err != nil {
		bad("addresses: %w", err)
	}
	return errors.Join(errs...)
}

// Consumer is the broker's part of it.
func (c Config) Consumer() broker.ConsumerConfig {
	return broker.ConsumerConfig{Prefetch: c.Prefetch, Batch: c.Batch, Linger: c.Linger, Concurrency: c.Concurrency}
}
