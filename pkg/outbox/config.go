package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
)

// Config of a relay.
type Config struct {
	Batch       int           `koanf:"batch"`        // rows read and published at once; default 1000
	Poll        time.Duration `koanf:"poll"`         // how often to look while other processes write rows for our partitions; default 100ms
	IdlePoll    time.Duration `koanf:"idle_poll"`    // how often to look otherwise; default 500ms
	Lease       time.Duration `koanf:"lease"`        // how long a dead relay keeps its partitions; default 5s
	StopTimeout time.Duration `koanf:"stop_timeout"` // how long the batch in hand may take when the relay stops; default 5s
	Bundle      int           `koanf:"bundle"`       // events in a message to queues of our own; 1 while processes run that know no bundles; default 100
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Batch: 1000, Poll: 100 * time.Millisecond, IdlePoll: 500 * time.Millisecond,
		Lease: 5 * time.Second, StopTimeout: 5 * time.Second, Bundle: broker.BundleEvents,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	if c.Batch < 1 || c.Batch > 5000 {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and 5000, got %d", c.Batch))
	}
	if c.Bundle < 1 || c.Bundle > 1000 {
		errs = append(errs, fmt.Errorf("bundle: must be between 1 and 1000, got %d", c.Bundle))
	}
	between := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	between("poll", c.Poll, time.Millisecond, 10*time.Second)
	between("idle_poll", c.IdlePoll, time.Millisecond, time.Minute)
	between("lease", c.Lease, 300*time.Millisecond, 5*time.Minute)
	between("stop_timeout", c.StopTimeout, 10*time.Millisecond, time.Minute)
	if c.IdlePoll < c.Poll {
		errs = append(errs, fmt.Errorf("idle_poll: must be at least poll (%s), got %s", c.Poll, c.IdlePoll))
	}
	return errors.Join(errs...)
}
