package notice

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/policy"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

// Config tunes collecting, closing and sending. Quiet, MaxAge, MaxItems and NotBefore are of what is told after the end; the
// windows of reminders close at their hour.
type Config struct {
	Consumer broker.ConsumerConfig `koanf:"consumer"`  // of the notice queue; a batch is one transaction, at most 900
	Quiet    time.Duration         `koanf:"quiet"`     // a window closes so long after its last item; default 30s
	MaxAge   time.Duration         `koanf:"max_age"`   // … or after its first; default 5m
	MaxItems int                   `koanf:"max_items"` // … or at once with so many, and the next item opens another; default 500
	// NotBefore, an RFC 3339 instant, holds back windows that would close before it by quiet or age, so that an end
	// known in advance, such as a midnight, is told once. Default empty: none.
	NotBefore string        `koanf:"not_before"`
	Channels  []string      `koanf:"channels"`     // those that there are here: of inbox, popup, email, sms, push, log; default inbox, popup, log
	Locale    string        `koanf:"locale"`       // of users whose locale is not known or not there; default en
	Policy    policy.Config `koanf:"policy"`       // whom to tell by which channel, and when not
	Limits    Limits        `koanf:"limits"`       // by channel
	Batch     int           `koanf:"batch"`        // windows closed, and notices claimed, at a time; default 500
	Lease     time.Duration `koanf:"lease"`        // how long the pod that claimed a notice alone may send it; default 30s
	PollMin   time.Duration `koanf:"poll_min"`     // the shortest wait between looks for due windows; default 200ms
	PollMax   time.Duration `koanf:"poll_max"`     // the longest, for windows and notices; default 1s
	Drain     time.Duration `koanf:"drain_within"` // how long work begun may go on at the stop; default 5s
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	consumer := broker.DefaultConsumerConfig()
	consumer.Linger = 250 * time.Millisecond // nobody waits for a window to the second, and fuller batches cost the database less
	return Config{
		Consumer: consumer,
		Quiet:    30 * time.Second, MaxAge: 5 * time.Minute, MaxItems: 500,
		Channels: []string{string(coupon.ChannelInbox), string(coupon.ChannelPopup), string(coupon.ChannelLog)},
		Locale:   "en", Policy: policy.DefaultConfig(), Limits: DefaultLimits(),
		Batch: 500, Lease: 30 * time.Second, PollMin: 200 * time.Millisecond, PollMax: time.Second, Drain: 5 * time.Second,
	}
}

// StopWithin is how long the loops may take to stop: the drain, and recording what it left.
func (c Config) StopWithin() time.Duration { return c.Drain + 2*settleWithin }

// Has reports whether the channel is there.
func (c Config) Has(ch coupon.Channel) bool { return slices.Contains(c.Channels, string(ch)) }

// Names gives the channels that are there.
func (c Config) Names() []coupon.Channel {
	names := make([]coupon.Channel, len(c.Channels))
	for i, name := range c.Channels {
		names[i] = coupon.Channel(name)
	}
	return names
}

// sendWithin is the part of a lease that a send may take; the rest is for the database before and after it.
func sendWithin(lease time.Duration) time.Duration { return lease - lease/4 }

// Validate reports every fault, each beginning with the path of its field.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	number := func(field string, v, low, high int) {
		if v < low || v > high {
			bad("%s: must be between %d and %d, got %d", field, low, high, v)
		}
	}
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	errs = append(errs, under("consumer", c.Consumer.Validate())...)
	if c.Consumer.Batch > 900 {
		bad("consumer.batch: must be at most 900, got %d", c.Consumer.Batch)
	}
	span("quiet", c.Quiet, 100*time.Millisecond, time.Hour)
	span("max_age", c.MaxAge, 100*time.Millisecond, 48*time.Hour)
	if c.MaxAge < c.Quiet {
		bad("max_age: must be at least quiet (%s), got %s", c.Quiet, c.MaxAge)
	}
	number("max_items", c.MaxItems, 1, 10_000)
	if _, err := c.notBefore(); err != nil {
		bad("not_before: must be an RFC 3339 instant such as 2026-11-01T00:00:00+08:00, got %q", c.NotBefore)
	}
	for i, name := range c.Channels {
		if !slices.Contains(coupon.Channels(), coupon.Channel(name)) {
			bad("channels: must be of %v, got %q", coupon.Channels(), name)
		}
		if slices.Contains(c.Channels[:i], name) {
			bad("channels: must name each once, got %q again", name)
		}
	}
	if len(c.Channels) == 0 {
		bad("channels: must name one at least, got none")
	}
	if locales := text.Locales(); !slices.Contains(locales, c.Locale) {
		bad("locale: must be of %v, got %q", locales, c.Locale)
	}
	errs = append(errs, under("policy", c.Policy.Validate())...)
	errs = append(errs, under("limits", c.Limits.Validate())...)
	number("batch", c.Batch, 1, 900)
	span("lease", c.Lease, time.Second, 10*time.Minute)
	for _, ch := range coupon.Channels() {
		if l := c.Limits.Of(ch); c.Has(ch) && l.Deadline > sendWithin(c.Lease) {
			bad("limits.%s.deadline: must be at most three quarters of lease (%s), got %s", ch, sendWithin(c.Lease), l.Deadline)
		}
	}
	span("poll_min", c.PollMin, 10*time.Millisecond, 10*time.Second)
	if c.PollMax < c.PollMin || c.PollMax > time.Minute {
		bad("poll_max: must be between poll_min (%s) and 1m0s, got %s", c.PollMin, c.PollMax)
	}
	span("drain_within", c.Drain, 0, time.Minute)
	return errors.Join(errs...)
}

func (c Config) notBefore() (time.Time, error) {
	if c.NotBefore == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, c.NotBefore)
	if err != nil {
		return time.Time{}, fmt.Errorf("parse instant: %w", err)
	}
	return t.UTC(), nil
}

// Rules are the windows' rules of a valid Config.
func (c Config) Rules() coupon.WindowRules {
	t, err := c.notBefore()
	if err != nil {
		t = time.Time{} // Validate has refused it
	}
	return coupon.WindowRules{Quiet: c.Quiet, MaxAge: c.MaxAge, MaxItems: c.MaxItems, NotBefore: t}
}
