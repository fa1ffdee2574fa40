package console

import (
	"errors"
	"fmt"
	"time"
)

// Config of the console. Who may use it follows from api.tokens.
type Config struct {
	// Enabled serves the page on the publisher's admin port, below /console/. Default true.
	Enabled bool `koanf:"enabled"`
	// Every is how often the state of the installation is read at most, for all who look together. Default 5s.
	Every time.Duration `koanf:"every"`
	// Timeout bounds each look-up, and each reading but a forecast. Default 10s.
	Timeout time.Duration `koanf:"timeout"`
	// Rows is how many rows one forecast may count. Default 3000000.
	Rows int `koanf:"rows"`
	// PerSecond is how often each token may ask; Burst how often at once. Default 20 and 60.
	PerSecond float64 `koanf:"per_second"`
	Burst     int     `koanf:"burst"`
	// Zone is the IANA name of the zone in which the page tells times, and whose midnight it counts. Default "": that of the browser.
	Zone string `koanf:"zone"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{Enabled: true, Every: 5 * time.Second, Timeout: 10 * time.Second, Rows: 3_000_000, PerSecond: 20, Burst: 60}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	if !c.Enabled {
		return nil
	}
	var errs []error
	if c.Every < time.Second || c.Every > time.Minute {
		errs = append(errs, fmt.Errorf("every: must be between 1s and 1m, got %s", c.Every))
	}
	if c.Timeout < time.Second || c.Timeout > 30*time.Second { // the admin port has forty seconds for an answer
		errs = append(errs, fmt.Errorf("timeout: must be between 1s and 30s, got %s", c.Timeout))
	}
	if c.Rows < 1000 || c.Rows > 50_000_000 {
		errs = append(errs, fmt.Errorf("rows: must be between 1000 and 50000000, got %d", c.Rows))
	}
	if !(c.PerSecond >= 1 && c.PerSecond <= 1000) {
		errs = append(errs, fmt.Errorf("per_second: must be between 1 and 1000, got %v", c.PerSecond))
	}
	if c.Burst < 10 || c.Burst > 10_000 { // the page asks for several things when it opens
		errs = append(errs, fmt.Errorf("burst: must be between 10 and 10000, got %d", c.Burst))
	}
	if _, err := time.LoadLocation(c.Zone); err != nil || c.Zone == "Local" { // a browser knows no Local
		errs = append(errs, fmt.Errorf("zone: must be empty or a name of the tz database such as Asia/Shanghai, got %q", c.Zone))
	}
	return errors.Join(errs...)
}
