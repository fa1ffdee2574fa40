package delay

import (
	"errors"
	"fmt"
	"time"
)

// WheelConfig bounds the memory of the mechanism wheel.
type WheelConfig struct {
	Window time.Duration `koanf:"window"` // how far ahead rows are held in memory; default 5m
	Max    int           `koanf:"max"`    // triggers of a process at most, some 500 bytes each; default 100000
	Batch  int           `koanf:"batch"`  // rows read, and due triggers published, at once; default 1000
}

// DefaultWheelConfig gives the documented defaults.
func DefaultWheelConfig() WheelConfig {
	return WheelConfig{Window: 5 * time.Minute, Max: 100_000, Batch: 1000}
}

// Validate reports every fault, each beginning with the field's name.
func (c WheelConfig) Validate() error {
	var errs []error
	if c.Window < time.Second || c.Window > 24*time.Hour {
		errs = append(errs, fmt.Errorf("window: must be between 1s and 24h, got %s", c.Window))
	}
	if c.Max < 100 || c.Max > 10_000_000 {
		errs = append(errs, fmt.Errorf("max: must be between 100 and 10000000, got %d", c.Max))
	}
	if c.Batch < 1 || c.Batch > 5000 {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and 5000, got %d", c.Batch))
	}
	return errors.Join(errs...)
}
