package expiry

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/quiet"
)

// Config tunes the core and its drivers.
type Config struct {
	Consumer   broker.ConsumerConfig `koanf:"consumer"`    // of each due queue; a batch is one transaction, at most 900
	MaxRate    int                   `koanf:"max_rate"`    // transitions a second of this pod, 0 = unbounded; default 0
	ClockAhead time.Duration         `koanf:"clock_ahead"` // how far the database's clock may jump ahead; default 2s
	DrainRate  int                   `koanf:"drain_rate"`  // coupons a second that one expirer drains, until it is measured; default 5000
	Sweep      SweepConfig           `koanf:"sweep"`
}

// SweepConfig tunes the sweep.
type SweepConfig struct {
	Grace time.Duration `koanf:"grace"` // how long the ladder is left alone with a due coupon; default 60s, 0 with mechanism sweep
	// OutageGrace takes Grace's place while the broker has been out of reach for as long: a ladder that cannot be heard
	// need not be waited for. Default 10s; never above grace.
	OutageGrace time.Duration `koanf:"outage_grace"`
	Interval    time.Duration `koanf:"interval"` // from the end of one round to the next; default 5s, 200ms with mechanism sweep
	Batch       int           `koanf:"batch"`    // rows of one transaction; default 500
	Budget      time.Duration `koanf:"budget"`   // the longest pass, over the due and over the locks; default 1m
	// QuietWindows are the hours in which it works as fast as it can, such as "02:00-05:00 Asia/Shanghai"; default always.
	QuietWindows []string `koanf:"quiet_windows"`
	// RateOutside is how many rows a second all expirers together settle outside of them at most, in four transactions at least and
	// in no more than a fifth of the time, as long as the broker can be heard; default 100.
	RateOutside int `koanf:"rate_outside"`
}

// Quiet reports whether now lies in one of the quiet windows; without any it always does. The configuration must have
// been validated.
func (c SweepConfig) Quiet(now time.Time) bool {
	if len(c.QuietWindows) == 0 {
		return true
	}
	for _, text := range c.QuietWindows {
		w, err := quiet.Parse(text)
		if err != nil {
			continue // refused before
		}
		if _, open := w.Open(now); open {
			return true
		}
	}
	return false
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Consumer:   broker.DefaultConsumerConfig(),
		ClockAhead: 2 * time.Second,
		DrainRate:  5000,
		Sweep: SweepConfig{
			Grace: time.Minute, OutageGrace: 10 * time.Second, Interval: 5 * time.Second, Batch: 500, Budget: time.Minute,
			QuietWindows: []string{quiet.Always}, RateOutside: 100,
		},
	}
}

// Alone is the sweep's setting when it is the only mechanism: no grace, short rounds, and no hours in which it is slower.
func (c SweepConfig) Alone() SweepConfig {
	c.Grace, c.OutageGrace, c.Interval = 0, 0, min(c.Interval, 200*time.Millisecond)
	c.QuietWindows = []string{quiet.Always}
	return c
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	number := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %d and %d, got %d", field, low, high, v))
		}
	}
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	if err := c.Consumer.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("consumer: %w", err))
	}
	if c.Consumer.Batch > 900 {
		errs = append(errs, fmt.Errorf("consumer.batch: must be at most 900, got %d", c.Consumer.Batch))
	}
	number("max_rate", c.MaxRate, 0, 1_000_000)
	number("drain_rate", c.DrainRate, 1, 1_000_000)
	span("clock_ahead", c.ClockAhead, 100*time.Millisecond, time.Minute)
	span("sweep.grace", c.Sweep.Grace, 0, time.Hour)
	span("sweep.outage_grace", c.Sweep.OutageGrace, 0, c.Sweep.Grace)
	span("sweep.interval", c.Sweep.Interval, 50*time.Millisecond, time.Hour)
	number("sweep.batch", c.Sweep.Batch, 1, 900)
	span("sweep.budget", c.Sweep.Budget, time.Second, time.Hour)
	for _, text := range c.Sweep.QuietWindows {
		if _, err := quiet.Parse(text); err != nil {
			errs = append(errs, fmt.Errorf("sweep.quiet_windows: %w", err))
		}
	}
	number("sweep.rate_outside", c.Sweep.RateOutside, 1, 1_000_000)
	return errors.Join(errs...)
}

// CatchAll is the consumer of the catch-all queue: slow, one small batch at a time.
func (c Config) CatchAll() broker.ConsumerConfig {
	cc := c.Consumer
	cc.Batch, cc.Prefetch, cc.Concurrency = min(cc.Batch, 50), 50, 1
	return cc
}
