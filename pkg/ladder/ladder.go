package ladder

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

const (
	// Partitions is the number of values of a routing key's last word; a
	// coupon's partition is its id mod Partitions.
	Partitions = 16
	// MaxTTL is the longest x-message-ttl that RabbitMQ accepts (ten years).
	MaxTTL = 315_360_000_000 * time.Millisecond
	// Margin is added to the delay until an instant (RouteAt does it), so
	// that a trigger reaches its consumer after the instant on the database's
	// clock although that clock was read a moment ago.
	Margin = 10 * time.Millisecond

	digitWords = 5 // digits of a routing key, whatever is declared
	// horizonMargin, in base units, is what a finite horizon's levels hold on
	// top of it: the planner's guard (10 min) and the longest retry (10 min)
	// must fit in without being cut.
	horizonMargin = 900
	maxGroupSize  = 99
)

// Level is one step of the ladder: Digits queues with TTLs of 1 × Unit to
// Digits × Unit.
type Level struct {
	Name   string        `koanf:"name"`
	Unit   time.Duration `koanf:"unit"`
	Digits int           `koanf:"digits"`
}

// Span is the longest stay at the level.
func (l Level) Span() time.Duration { return time.Duration(l.Digits) * l.Unit }

// Config says what ladder to build. All workers of an installation must use
// the same one: queue arguments cannot be changed once declared.
type Config struct {
	// Prefix starts every name, so that installations can share a broker.
	// Must match [a-z][a-z0-9-]{0,30}. Default "lapse".
	Prefix string `koanf:"prefix"`
	// Levels from the longest unit to the base unit. Each unit but the
	// topmost's follows from the level below: (digits + 1) × its unit. Default: mo, d, h, m, s.
	// Tests shrink the base unit (see Scaled). At most five.
	Levels []Level `koanf:"levels"`
	// Shards splits each wait queue in so many, by partition mod Shards.
	// Between 1 and 16. Default 1. Queues are named with a suffix .s<k> only
	// if it is above 1.
	Shards int `koanf:"shards"`
	// Horizon is the longest delay that is published at once; only the levels
	// that hold it, and 900 base units more, are declared. 0 = unlimited (the
	// default): all levels. Longer delays are cut to the longest declared one
	// and must be rescheduled when they arrive.
	Horizon time.Duration `koanf:"horizon"`
	// GroupSize is x-quorum-initial-group-size of every queue. Default 3
	// (a smaller cluster takes as many members as it has nodes).
	GroupSize int `koanf:"group_size"`
	// Orders declares the intake of order events (exchange and queue), and
	// their way back to it when they were set aside for a while. Default on;
	// off, order events are refused by the broker.
	Orders bool `koanf:"orders"`
	// Users declares the intake of user events, which the notifier reads.
	// Default on; off, user events are refused by the broker, which is better
	// than a queue that nobody consumes or an exchange that swallows them.
	Users bool `koanf:"users"`
	// Ledger declares the queue that statistics are kept from; it listens to
	// the event exchange. Default on; off, statistics stand still.
	Ledger bool `koanf:"ledger"`
}

// DefaultConfig is the full ladder of 183 queues, seconds to 30-day months.
func DefaultConfig() Config {
	const day = 24 * time.Hour
	return Config{
		Prefix: "lapse",
		Levels: []Level{
			{Name: "mo", Unit: 30 * day, Digits: 12},
			{Name: "d", Unit: day, Digits: 29},
			{Name: "h", Unit: time.Hour, Digits: 23},
			{Name: "m", Unit: time.Minute, Digits: 59},
			{Name: "s", Unit: time.Second, Digits: 59},
		},
		Shards:    1,
		GroupSize: 3,
		Orders:    true,
		Users:     true,
		Ledger:    true,
	}
}

// Scaled returns the config with the base unit replaced and every unit above
// it following, so that a test walks the same ladder in a fraction of the
// time. The horizon is left as it is.
func (c Config) Scaled(base time.Duration) Config {
	c.Levels = slices.Clone(c.Levels)
	unit := base
	for i := len(c.Levels) - 1; i >= 0; i-- {
		c.Levels[i].Unit = unit
		unit *= time.Duration(c.Levels[i].Digits + 1)
	}
	return c
}

var (
	prefixPattern = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)
	levelPattern  = regexp.MustCompile(`^[a-z][a-z0-9]{0,7}$`)
)

// Validate reports everything that is wrong, each error starting with the
// field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !prefixPattern.MatchString(c.Prefix) {
		bad("prefix: must match [a-z][a-z0-9-]{0,30}, got %q", c.Prefix)
	}
	if c.Shards < 1 || c.Shards > Partitions {
		bad("shards: must be between 1 and %d, got %d", Partitions, c.Shards)
	}
	if c.Horizon < 0 {
		bad("horizon: must be 0 (unlimited) or more, got %s", c.Horizon)
	}
	if c.GroupSize < 1 || c.GroupSize > maxGroupSize {
		bad("group_size: must be between 1 and %d, got %d", maxGroupSize, c.GroupSize)
	}
	if len(c.Levels) < 1 || len(c.Levels) > digitWords {
		bad("levels: must be between 1 and %d, got %d", digitWords, len(c.Levels))
	}
	seen := map[string]bool{}
	for i, level := range c.Levels {
		if err := level.validate(); err != nil {
			bad("levels[%d].%w", i, err)
		}
		if seen[level.Name] {
			bad("levels[%d].name: %q is used twice", i, level.Name)
		}
		seen[level.Name] = true
		if i+1 < len(c.Levels) {
			lower := c.Levels[i+1]
			if want := lower.Unit * time.Duration(lower.Digits+1); level.Unit != want {
				bad("levels[%d].unit: must be %s, (digits + 1) × unit of level %q below, got %s", i, want, lower.Name, level.Unit)
			}
		}
	}
	return errors.Join(errs...)
}

func (l Level) validate() error {
	switch {
	case !levelPattern.MatchString(l.Name):
		return fmt.Errorf("name: must match [a-z][a-z0-9]{0,7}, got %q", l.Name)
	case l.Digits < 1 || l.Digits > 99:
		return fmt.Errorf("digits: must be between 1 and 99, got %d", l.Digits)
	case l.Unit < time.Millisecond || l.Unit%time.Millisecond != 0:
		return fmt.Errorf("unit: must be whole milliseconds, at least one, got %s", l.Unit)
	case l.Unit > MaxTTL/time.Duration(l.Digits):
		return fmt.Errorf("unit: %d × %s is above the longest TTL of %s", l.Digits, l.Unit, MaxTTL)
	}
	return nil
}

// Ladder routes delays and names what it consists of. It is immutable and
// safe for concurrent use.
type Ladder struct {
	prefix    string
	levels    []Level // declared ones, longest unit first
	skip      int     // key digits above the declared levels, always 00
	base      time.Duration
	max       time.Duration
	shards    int
	groupSize int
	orders    bool
	users     bool
	ledger    bool
}

// New builds the ladder that the config describes.
func New(c Config) (*Ladder, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("ladder config: %w", err)
	}
	levels := slices.Clone(c.Levels)
	base := levels[len(levels)-1].Unit
	if c.Horizon > 0 {
		levels = holding(levels, c.Horizon, horizonMargin*min(base, MaxTTL/horizonMargin))
	}
	l := &Ladder{
		prefix: c.Prefix, levels: levels, skip: digitWords - len(levels), base: base,
		shards: c.Shards, groupSize: c.GroupSize, orders: c.Orders, users: c.Users, ledger: c.Ledger,
	}
	for _, level := range levels {
		l.max += level.Span()
	}
	return l, nil
}

// holding returns the fewest lowest levels whose sum holds horizon + margin,
// all of them if none do. It compares without adding, which could overflow.
func holding(levels []Level, horizon, margin time.Duration) []Level {
	var sum time.Duration
	for i := len(levels) - 1; i > 0; i-- {
		sum += levels[i].Span()
		if sum-margin >= horizon {
			return levels[i:]
		}
	}
	return levels
}

// Base is the shortest unit: delays are rounded up to it, and the rounding is
// taken off the first hop.
func (l *Ladder) Base() time.Duration { return l.base }

// Max is the longest delay that the declared levels hold.
func (l *Ladder) Max() time.Duration { return l.max }

// Levels are the declared levels, the longest unit first.
func (l *Ladder) Levels() []Level { return slices.Clone(l.levels) }

// Prefix starts every name.
func (l *Ladder) Prefix() string { return l.prefix }

// Enter is the exchange that triggers are published to. It has no alternate
// exchange, so that mandatory publishing proves the first hop.
func (l *Ladder) Enter() string { return l.prefix + ".enter" }

// LevelExchange is the exchange that leads into a level from the one above.
func (l *Ladder) LevelExchange(level string) string { return l.prefix + ".level." + level }

// Due is the exchange below the lowest level.
func (l *Ladder) Due() string { return l.prefix + ".due" }

// DueExact is the work queue of expire triggers of class exact.
func (l *Ladder) DueExact() string { return l.prefix + ".due.expire.exact" }

// DueRelaxed is the work queue of expire triggers of the other classes.
func (l *Ladder) DueRelaxed() string { return l.prefix + ".due.expire.relaxed" }

// DueUnlock is the work queue of unlock triggers.
func (l *Ladder) DueUnlock() string { return l.prefix + ".due.unlock" }

// DueQueues are the three queues of due triggers.
func (l *Ladder) DueQueues() []string {
	return []string{l.DueExact(), l.DueRelaxed(), l.DueUnlock()}
}

// ParkExchange is the fanout exchange for what a person must look at; it feeds
// Parked.
func (l *Ladder) ParkExchange() string { return l.prefix + ".park" }

// Replay is the exchange through which events that were parked go back to one
// queue, by its name.
func (l *Ladder) Replay() string { return l.prefix + ".replay" }

// Parked is the queue of what was set aside.
func (l *Ladder) Parked() string { return l.prefix + ".parked" }

// Unroutable names both the fanout exchange that catches what no binding of
// the ladder takes, and its queue.
func (l *Ladder) Unroutable() string { return l.prefix + ".unroutable" }

// Events is the topic exchange of outgoing events.
func (l *Ladder) Events() string { return l.prefix + ".events" }

// Bundles is the direct exchange of bundles of events, which feed Ledger and Notice; BundleKey says which.
func (l *Ladder) Bundles() string { return l.prefix + ".bundles" }

// Issuance names both the topic exchange for grants and its queue.
func (l *Ladder) Issuance() string { return l.prefix + ".issuance" }

// Orders names both the topic exchange for order events and its queue,
// declared if Config.Orders is set.
func (l *Ladder) Orders() string { return l.prefix + ".orders" }

// Users names both the topic exchange for user events and its queue, declared
// if Config.Users is set.
func (l *Ladder) Users() string { return l.prefix + ".users" }

// Ledger is the queue of events that statistics are kept from, declared if
// Config.Ledger is set.
func (l *Ladder) Ledger() string { return l.prefix + ".ledger" }

// Notice is the notifier's queue of expired events.
func (l *Ladder) Notice() string { return l.prefix + ".notice" }
