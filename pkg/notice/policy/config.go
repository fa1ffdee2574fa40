package policy

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Config is whom to tell by which channel, and when not.
type Config struct {
	Zone  string `koanf:"zone"`  // of users whose zone is not known: an IANA name; default UTC
	Rules []Rule `koanf:"rules"` // the first that matches counts; what none matches goes to the inbox. Default: see DefaultConfig
	// Quiet are the hours in which a channel is silent, by the user's clock: HH:MM-HH:MM, or never. Of sms, push and email alone.
	// Default sms 21:00-08:00, push and email 22:00-08:00.
	Quiet    map[string]string `koanf:"quiet"`
	Margin   time.Duration     `koanf:"margin"`   // a reminder that quiet hours move earlier goes so long before they begin; default 15m
	Caps     map[string]Cap    `koanf:"caps"`     // by channel; default sms 1 a day and 3 a week, push 3 and 12, email 2 and 7
	Inactive time.Duration     `koanf:"inactive"` // who was not seen for so long gets no SMS; 0s: everybody does; default 30d
	Late     Late              `koanf:"late"`     // of reminders whose day's notice has gone out
	Stale    time.Duration     `koanf:"stale"`    // an end so long ago is not told of any more; default 24h
}

// Rule gives routes to what it matches. Fields that are left out match everything.
type Rule struct {
	Kinds    []string `koanf:"kinds"`     // expiring, expired
	Offsets  []string `koanf:"offsets"`   // of reminders, by their names, such as -1d
	MinValue int64    `koanf:"min_value"` // the notice's coupons of the currency are worth so much together, in minor units
	Currency string   `koanf:"currency"`
	// Templates are ids: a coupon of one of them, at least, is among the notice's. What else it tells of goes by the same rule, since
	// one notice tells of all coupons that end on a day.
	Templates []uint64 `koanf:"templates"`
	// Channels are the routes: each gets a notice. A route is one channel, or a chain such as sms>push>email: the first that is
	// permitted, and the next if it fails.
	Channels []string `koanf:"channels"`
}

// Cap bounds a channel's notices to one user; 0: no bound.
type Cap struct {
	Day  int `koanf:"day"`  // on one day of the user's
	Week int `koanf:"week"` // on seven of them, that day included
}

// Late is what becomes of a reminder that its day's notice has gone out without.
type Late struct {
	Send  bool          `koanf:"send"`  // default false: it is recorded as late, and not sent
	Least time.Duration `koanf:"least"` // … if the end is further off than this; default 2h
}

// DefaultConfig gives the documented defaults: three days before the end the inbox; a day before the inbox, and by worth SMS or
// push, else e-mail; below a day a pop-up; after the end the inbox and the log.
func DefaultConfig() Config {
	expiring := []string{string(coupon.NoticeExpiring)}
	return Config{
		Zone: "UTC",
		Rules: []Rule{
			{Kinds: expiring, Offsets: []string{"-3d"}, Channels: []string{"inbox"}},
			{Kinds: expiring, Offsets: []string{"-1d"}, MinValue: 5000, Currency: "CNY", Channels: []string{"inbox", "sms>push>email"}},
			{Kinds: expiring, Offsets: []string{"-1d"}, Channels: []string{"inbox", "push>email"}},
			{Kinds: expiring, Offsets: []string{"-30m"}, Channels: []string{"popup"}},
			{Kinds: []string{string(coupon.NoticeExpired)}, Channels: []string{"inbox", "log"}},
		},
		Quiet:  map[string]string{"sms": "21:00-08:00", "push": "22:00-08:00", "email": "22:00-08:00"},
		Margin: 15 * time.Minute,
		Caps:   map[string]Cap{"sms": {Day: 1, Week: 3}, "push": {Day: 3, Week: 12}, "email": {Day: 2, Week: 7}},
		Late:   Late{Least: 2 * time.Hour}, Inactive: 30 * wholeDay, Stale: wholeDay,
	}
}

const (
	maxRules     = 64
	maxTemplates = 1000 // of one rule
	chainMark    = ">"
	capMost      = 1000
	yearOfDays   = 366 * wholeDay
)

var currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)

// Validate reports every fault, each beginning with the path of its field.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	if _, err := loadZone(c.Zone); err != nil {
		bad("zone: must be a name of the IANA database, such as Asia/Shanghai, got %q", c.Zone)
	}
	if len(c.Rules) > maxRules {
		bad("rules: must be at most %d, got %d", maxRules, len(c.Rules))
	}
	for i := range c.Rules {
		errs = append(errs, c.Rules[i].faults(fmt.Sprintf("rules[%d]", i))...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Quiet)) {
		if !slices.Contains(disturbing(), coupon.Channel(name)) {
			bad("quiet.%s: must be of %v; the others disturb nobody", name, disturbing())
		}
		if _, err := ParseHours(c.Quiet[name]); err != nil {
			bad("quiet.%s: %w", name, err)
		}
	}
	span("margin", c.Margin, time.Minute, 6*time.Hour)
	for _, name := range slices.Sorted(maps.Keys(c.Caps)) {
		if !slices.Contains(coupon.Channels(), coupon.Channel(name)) {
			bad("caps.%s: must be of %v", name, coupon.Channels())
		}
		if v := c.Caps[name].Day; v < 0 || v > capMost {
			bad("caps.%s.day: must be between 0 and %d, got %d", name, capMost, v)
		}
		if v := c.Caps[name].Week; v < 0 || v > capMost {
			bad("caps.%s.week: must be between 0 and %d, got %d", name, capMost, v)
		}
	}
	if c.Inactive != 0 {
		span("inactive", c.Inactive, time.Hour, 3*yearOfDays)
	}
	span("late.least", c.Late.Least, 0, 7*wholeDay)
	span("stale", c.Stale, time.Minute, 7*wholeDay)
	return errors.Join(errs...)
}

// Offsets are the reminders that rules name, each once.
func (c Config) Offsets() []string {
	var names []string
	for i := range c.Rules {
		names = append(names, c.Rules[i].Offsets...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// disturbing are the channels that reach a user wherever he is, and so have quiet hours.
func disturbing() []coupon.Channel {
	return []coupon.Channel{coupon.ChannelSMS, coupon.ChannelPush, coupon.ChannelEmail}
}

func (r Rule) faults(path string) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(path+format, args...)) }
	kinds := []string{string(coupon.NoticeExpiring), string(coupon.NoticeExpired)}
	for i, kind := range r.Kinds {
		if !slices.Contains(kinds, kind) {
			bad(".kinds[%d]: must be of %v, got %q", i, kinds, kind)
		}
	}
	for i, name := range r.Offsets {
		if _, err := coupon.ParseOffset(name); err != nil {
			bad(".offsets[%d]: %w", i, err)
		}
	}
	reminders := len(r.Kinds) > 0 && !slices.Contains(r.Kinds, string(coupon.NoticeExpired))
	if len(r.Offsets) > 0 && !reminders {
		bad(".offsets: goes with kinds [expiring] alone, got kinds %v", r.Kinds)
	}
	switch {
	case r.MinValue < 0:
		bad(".min_value: must be at least 0, got %d", r.MinValue)
	case r.MinValue > 0 && !currencyPattern.MatchString(r.Currency):
		bad(".currency: must be three capital letters where min_value is given, got %q", r.Currency)
	case r.MinValue == 0 && r.Currency != "":
		bad(".currency: goes with min_value, got %q", r.Currency)
	}
	if len(r.Templates) > maxTemplates {
		bad(".templates: must be at most %d, got %d", maxTemplates, len(r.Templates))
	}
	if slices.Contains(r.Templates, 0) {
		bad(".templates[%d]: must be a template's id, got 0", slices.Index(r.Templates, 0))
	}
	if len(r.Channels) == 0 {
		bad(".channels: must name one at least, got none")
	}
	var seen []coupon.Channel
	for i, route := range r.Channels {
		for _, ch := range chain(route) {
			switch {
			case !slices.Contains(coupon.Channels(), ch):
				bad(".channels[%d]: must be of %v, or a chain of them with %s, got %q", i, coupon.Channels(), chainMark, route)
			case slices.Contains(seen, ch):
				bad(".channels[%d]: a rule names a channel once, got %q again", i, ch)
			case ch == coupon.ChannelPopup && !reminders:
				bad(".channels[%d]: popup goes with kinds [expiring] alone, got kinds %v", i, r.Kinds)
			}
			seen = append(seen, ch)
		}
	}
	return errs
}

func chain(route string) []coupon.Channel {
	parts := strings.Split(route, chainMark)
	out := make([]coupon.Channel, len(parts))
	for i, part := range parts {
		out[i] = coupon.Channel(strings.TrimSpace(part))
	}
	return out
}

// loadZone takes names of the database alone: not the host's own zone, and no empty name.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, errors.New("no zone")
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("load zone: %w", err)
	}
	return zone, nil
}
