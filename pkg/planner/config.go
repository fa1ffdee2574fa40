package planner

import (
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Config tunes the planner. The horizon itself is the ladder's (ladder.horizon), since the levels follow from it.
type Config struct {
	Slice time.Duration `koanf:"slice"` // default 1m
	Guard time.Duration `koanf:"guard"` // how far beyond the horizon verbs publish by themselves; default 10m
	Page  int           `koanf:"page"`  // triggers or reminders published and confirmed at once; default 1000
	Poll  time.Duration `koanf:"poll"`  // between looks when nothing is due; default 5s
	Lease time.Duration `koanf:"lease"` // how long a dead pod keeps a plan; default 15s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{Slice: time.Minute, Guard: 10 * time.Minute, Page: 1000, Poll: 5 * time.Second, Lease: 15 * time.Second}
}

// Validate reports every fault, each beginning with the field's name. ValidateLimit adds what depends on the database.
func (c Config) Validate() error {
	var errs []error
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", field, low, high, v))
		}
	}
	span("slice", c.Slice, time.Second, time.Hour)
	if c.Slice%time.Second != 0 {
		errs = append(errs, fmt.Errorf("slice: must be whole seconds, got %s", c.Slice))
	}
	span("guard", c.Guard, time.Second, 24*time.Hour)
	span("poll", c.Poll, 10*time.Millisecond, time.Minute)
	span("lease", c.Lease, time.Second, time.Hour)
	if c.Page < 1 || c.Page > 10_000 {
		errs = append(errs, fmt.Errorf("page: must be between 1 and 10000, got %d", c.Page))
	}
	return errors.Join(errs...)
}

// ValidateLimit checks the guard against the longest transaction: a shorter one would let a coupon fall between a
// verb and the planner.
func (c Config) ValidateLimit(limit time.Duration) error {
	if least := 2*c.Slice + limit; c.Guard <= least {
		return fmt.Errorf("guard: must be above 2 × slice + database.tx_limit = %s, got %s", least, c.Guard)
	}
	return nil
}

// RemindConfig says when users are reminded of ends that come near: one list for the whole installation, from which
// templates may pick.
type RemindConfig struct {
	// Offsets are instants before a coupon's end: so long before it (-3d, -30m), or a time of day so many days before the
	// day of the end (-1d@10:00), at most 8. Default -3d, -1d, -30m; empty: nobody is reminded.
	Offsets []string `koanf:"offsets"`
	// Zone is the IANA name of the zone in which times of day are reckoned while reminders are planned; users whose zone is
	// known are told by theirs. Default UTC.
	Zone string `koanf:"zone"`
	// LeadDays is how long before its instant a reminder at an offset of a day and more is planned, so that what ends on one
	// day is told together and a notice can move to a permitted hour. Default 36h.
	LeadDays time.Duration `koanf:"lead_days"`
	// Lead is the same of offsets below a day. Default 12h.
	Lead time.Duration `koanf:"lead"`
}

// DefaultRemindConfig gives the documented defaults.
func DefaultRemindConfig() RemindConfig {
	return RemindConfig{Offsets: []string{"-3d", "-1d", "-30m"}, Zone: "UTC", LeadDays: 36 * time.Hour, Lead: 12 * time.Hour}
}

const (
	minLead = time.Second
	maxLead = 30 * 24 * time.Hour
)

// Validate reports every fault, each beginning with the field's name.
func (c RemindConfig) Validate() error {
	_, err := c.Reminders()
	return err
}

// Reminders is the configuration as the domain has it.
func (c RemindConfig) Reminders() (coupon.Reminders, error) {
	r := coupon.Reminders{Leads: make(map[string]time.Duration, len(c.Offsets))}
	var errs []error
	for i, text := range c.Offsets {
		o, err := coupon.ParseOffset(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("offsets[%d]: %w", i, err))
			continue
		}
		lead := c.Lead
		if o.IsDay() {
			lead = c.LeadDays
		}
		r.Offsets, r.Leads[o.Name] = append(r.Offsets, o), lead
	}
	if len(errs) == 0 {
		if _, err := coupon.ParseOffsets(c.Offsets); err != nil {
			errs = append(errs, fmt.Errorf("offsets: %w", err))
		}
	}
	zone, err := time.LoadLocation(c.Zone)
	if err != nil || c.Zone == "" || c.Zone == "Local" {
		errs = append(errs, fmt.Errorf("zone: must be a name of the tz database such as Asia/Shanghai, got %q", c.Zone))
	}
	r.Zone = zone
	for _, l := range []struct {
		field string
		v     time.Duration
	}{{"lead_days", c.LeadDays}, {"lead", c.Lead}} {
		if l.v < minLead || l.v > maxLead {
			errs = append(errs, fmt.Errorf("%s: must be between %s and %s, got %s", l.field, minLead, maxLead, l.v))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return coupon.Reminders{}, err
	}
	return r, nil
}
