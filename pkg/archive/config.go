package archive

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/quiet"
)

// MaxBatch is the most coupons of one transaction.
const MaxBatch = 900

// Config tunes the archive.
type Config struct {
	// Window is the quiet hours, "HH:MM-HH:MM ZONE", or always or never. Default 02:00-05:00 UTC.
	Window string `koanf:"window"`
	// After is how long a coupon must have been finished. Default 720h (30 days).
	After time.Duration `koanf:"after"`
	// NoticesAfter is for how long closed digests are kept, with what tells a repeated event from a new one: an event that
	// is published again later than this is told again. Default 2160h (90 days).
	NoticesAfter time.Duration `koanf:"notices_after"`
	// InboxAfter is for how long users find notices in their inbox, read or not. Default 4320h (180 days).
	InboxAfter time.Duration `koanf:"inbox_after"`
	// Batch is how many coupons one transaction moves at most; default 300. With max_rate it is a twentieth of a second's at most.
	Batch   int `koanf:"batch"`
	MaxRate int `koanf:"max_rate"` // coupons a second of this pod, 0: unbounded; default 1000
	// MaxOutbox is how many rows may wait for the broker while the archive works; above that it rests. Default 5000.
	MaxOutbox int           `koanf:"max_outbox"`
	Interval  time.Duration `koanf:"interval"` // how often it looks whether the hours are quiet, and gauges its lag; default 1m
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	const day = 24 * time.Hour
	return Config{
		Window: "02:00-05:00 UTC", After: 30 * day, NoticesAfter: 90 * day, InboxAfter: 180 * day,
		Batch: 300, MaxRate: 1000, MaxOutbox: 5000, Interval: time.Minute,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	const longest = 100 * 365 * 24 * time.Hour
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	number := func(field string, v, low, high int) {
		if v < low || v > high {
			bad("%s: must be between %d and %d, got %d", field, low, high, v)
		}
	}
	if _, err := quiet.Parse(c.Window); err != nil {
		bad("window: %w", err)
	}
	span("after", c.After, time.Hour, longest)
	span("notices_after", c.NoticesAfter, 24*time.Hour, longest)
	span("inbox_after", c.InboxAfter, 24*time.Hour, longest)
	number("batch", c.Batch, 1, MaxBatch)
	number("max_rate", c.MaxRate, 0, 1_000_000)
	number("max_outbox", c.MaxOutbox, 0, 1_000_000)
	span("interval", c.Interval, time.Second, time.Hour)
	return errors.Join(errs...)
}
