package reconcile

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/quiet"
)

// Config tunes reconciliation.
type Config struct {
	// Window is the quiet hours in which one of the expirers reconciles, once, "HH:MM-HH:MM ZONE", or always (once a day) or
	// never. Default 03:00-05:00 UTC.
	Window string `koanf:"window"`
	// Settled is how long ago a coupon must have been granted for those with a lower id to be committed. Default 1m.
	Settled time.Duration `koanf:"settled"`
	// Overdue is how long a coupon may be due, or its lock run out, unsettled. Default 10m.
	Overdue time.Duration `koanf:"overdue"`
	// Waiting is how long a row may wait in the outbox, or returned quota to be folded. Default 10m.
	Waiting time.Duration `koanf:"waiting"`
	// Untold is how long a notice whose time has come may wait for somebody to take it up: longer than a channel's rate keeps those of a
	// busy day waiting. Default 2h.
	Untold time.Duration `koanf:"untold"`
	// Uncounted is how long a step may be missing in the statistics. Default 1h.
	Uncounted time.Duration `koanf:"uncounted"`
	// Orders is how long what an order did may take to arrive: younger lines of an export are left out. Default 5m.
	Orders time.Duration `koanf:"orders"`

	Range    int           `koanf:"range"`    // coupons of one statement; default 50000
	Workers  int           `koanf:"workers"`  // statements side by side; default 2
	Pause    time.Duration `koanf:"pause"`    // after each range, in quiet hours; default 100ms
	Show     int           `koanf:"show"`     // findings of a kind that are shown; the others are counted; default 100
	Interval time.Duration `koanf:"interval"` // how often it looks whether the hours are quiet; default 1m
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Window: "03:00-05:00 UTC", Settled: time.Minute, Overdue: 10 * time.Minute, Waiting: 10 * time.Minute, Untold: 2 * time.Hour,
		Uncounted: time.Hour,
		Orders:    5 * time.Minute, Range: 50_000, Workers: 2, Pause: 100 * time.Millisecond, Show: 100, Interval: time.Minute,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	number := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %d and %d, got %d", field, low, high, v))
		}
	}
	const day = 24 * time.Hour
	if _, err := quiet.Parse(c.Window); err != nil {
		errs = append(errs, fmt.Errorf("window: %w", err))
	}
	span("settled", c.Settled, 0, day)
	span("overdue", c.Overdue, 0, day)
	span("waiting", c.Waiting, 0, day)
	span("untold", c.Untold, 0, 7*day)
	span("uncounted", c.Uncounted, 0, 7*day)
	span("orders", c.Orders, 0, 7*day)
	number("range", c.Range, 1, 1_000_000)
	number("workers", c.Workers, 1, 16)
	span("pause", c.Pause, 0, time.Minute)
	number("show", c.Show, 1, 10_000)
	span("interval", c.Interval, time.Second, time.Hour)
	return errors.Join(errs...)
}
