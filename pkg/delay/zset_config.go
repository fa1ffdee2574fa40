package delay

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lapsehq/lapse/pkg/secret"
)

// ZSetConfig is the Redis server of the mechanism zset, and how it is used.
type ZSetConfig struct {
	// URL is redis://[user]:password@host:port/db, or rediss:// for TLS. Required with the mechanism zset, and then the same
	// in every process that relays.
	URL     secret.String `koanf:"url"`
	Movers  int           `koanf:"movers"`  // loops of a process that bring triggers to the broker; default 2
	Batch   int           `koanf:"batch"`   // triggers claimed and published at once; default 500
	Poll    time.Duration `koanf:"poll"`    // between looks while nothing is due here; default 200ms
	Lease   time.Duration `koanf:"lease"`   // how long a dead mover keeps what it claimed; default 15s
	Timeout time.Duration `koanf:"timeout"` // of one answer of the server; default 2s
}

// DefaultZSetConfig gives the documented defaults.
func DefaultZSetConfig() ZSetConfig {
	return ZSetConfig{Movers: 2, Batch: 500, Poll: 200 * time.Millisecond, Lease: 15 * time.Second, Timeout: 2 * time.Second}
}

// Validate reports every fault, each beginning with the field's name. That there is a URL is for ValidateURL.
func (c ZSetConfig) Validate() error {
	var errs []error
	between := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	if !c.URL.Empty() {
		if err := c.ValidateURL(); err != nil {
			errs = append(errs, err)
		}
	}
	if c.Movers < 1 || c.Movers > Shards {
		errs = append(errs, fmt.Errorf("movers: must be between 1 and %d, got %d", Shards, c.Movers))
	}
	if c.Batch < 1 || c.Batch > maxClaim {
		errs = append(errs, fmt.Errorf("batch: must be between 1 and %d, got %d", maxClaim, c.Batch))
	}
	between("poll", c.Poll, 10*time.Millisecond, 5*time.Second)
	between("lease", c.Lease, time.Second, 10*time.Minute)
	between("timeout", c.Timeout, 50*time.Millisecond, time.Minute)
	if c.Lease < 2*c.Timeout {
		errs = append(errs, fmt.Errorf("lease: must be at least twice timeout (%s), got %s", c.Timeout, c.Lease))
	}
	return errors.Join(errs...)
}

// ValidateURL says whether there is a URL, and one of a Redis server. Its error does not show it.
func (c ZSetConfig) ValidateURL() error {
	if c.URL.Empty() {
		return errors.New("url: must be set for the mechanism zset, to redis:// or rediss:// with user, password, host, port and database")
	}
	if _, err := redis.ParseURL(c.URL.Reveal()); err != nil {
		return errors.New("url: must be redis:// or rediss:// with user, password, host, port and database") // the parser's error would show it
	}
	return nil
}

// options of a connection: every answer has a deadline, and nothing is tried again below those who know what is at stake.
func (c ZSetConfig) options() (*redis.Options, error) {
	if err := c.ValidateURL(); err != nil {
		return nil, err
	}
	o, err := redis.ParseURL(c.URL.Reveal())
	if err != nil {
		return nil, errors.New("url: is malformed")
	}
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = c.Timeout, c.Timeout, c.Timeout, c.Timeout
	o.ContextTimeoutEnabled = true
	o.MaxRetries, o.DialerRetries = -1, 1
	o.PoolSize = c.Movers + 4 // beside the movers: relay and planner
	o.MinIdleConns, o.MaxIdleConns = 0, o.PoolSize
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}
