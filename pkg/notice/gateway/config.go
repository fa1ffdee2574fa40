package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/certs"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/secret"
)

// keyLeast is how many bytes a key must have.
const keyLeast = 16

// Config says where the gateway of a channel is and how it is spoken to.
type Config struct {
	URL   string        `koanf:"url"`    // where notices are posted; https, or http on loopback
	Plain bool          `koanf:"plain"`  // http to other hosts, too: in a network that is trusted. Default false
	KeyID string        `koanf:"key_id"` // names the key to the gateway
	Key   secret.String `koanf:"key"`    // of the signatures; 16 bytes at least
	Token secret.String `koanf:"token"`  // sent as Authorization: Bearer; default empty: no such header

	// Whom to trust (ca_file, server_name) and as whom to come (cert_file, key_file); default the system's authorities, and as
	// nobody.
	certs.Config `koanf:",squash"`

	Sign      string     `koanf:"sign"`      // the sender's registered name that providers put before an SMS; default empty
	Templates []Template `koanf:"templates"` // the provider's codes; the first that fits holds

	RetryAfterMax time.Duration `koanf:"retry_after_max"` // the longest that a gateway can ask to be left alone; default 15m
	Connections   int           `koanf:"connections"`     // kept open between requests (push; an SMS has one of its own); default 8
	Idle          time.Duration `koanf:"idle"`            // how long they are; default 30s
}

// Template maps notices to a provider's template code. Empty fields fit everything.
type Template struct {
	Kind   string `koanf:"kind"`   // expiring or expired
	Offset string `koanf:"offset"` // of reminders, such as -1d
	Locale string `koanf:"locale"` // zh-CN, or zh for all of that language
	Key    string `koanf:"key"`    // the provider's code
	Sign   string `koanf:"sign"`   // in place of the gateway's
}

// DefaultConfig gives the documented defaults. URL, KeyID and Key have none.
func DefaultConfig() Config {
	return Config{RetryAfterMax: 15 * time.Minute, Connections: 8, Idle: 30 * time.Second}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	span := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	if err := c.url(); err != nil {
		bad("url: %w", err)
	}
	if c.KeyID == "" || !token(c.KeyID) {
		bad("key_id: must be letters, digits, '-', '_' or '.', at most 64, got %q", c.KeyID)
	}
	if n := len(c.Key.Reveal()); n < keyLeast {
		bad("key: must have %d bytes at least, has %d", keyLeast, n)
	}
	if strings.ContainsFunc(c.Token.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }) {
		bad("token: must be printable ASCII without spaces")
	}
	for i, t := range c.Templates {
		if t.Key == "" {
			bad("templates[%d].key: must be set", i)
		}
		if t.Kind != "" && t.Kind != string(coupon.NoticeExpiring) && t.Kind != string(coupon.NoticeExpired) {
			bad("templates[%d].kind: must be %s, %s or empty, got %q", i, coupon.NoticeExpiring, coupon.NoticeExpired, t.Kind)
		}
	}
	errs = append(errs, c.Config.Validate())
	span("retry_after_max", c.RetryAfterMax, time.Second, 24*time.Hour)
	span("idle", c.Idle, time.Second, time.Hour)
	if c.Connections < 1 || c.Connections > 1000 {
		bad("connections: must be between 1 and 1000, got %d", c.Connections)
	}
	return errors.Join(errs...)
}

// url says what is wrong with URL, without showing it: it may hold what is secret.
func (c Config) url() error {
	u, err := url.Parse(c.URL)
	switch {
	case c.URL == "":
		return errors.New("must be set")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must be an absolute URL of https or http")
	case u.User != nil:
		return errors.New("must carry no user and password: there is token")
	case u.Scheme == "http" && !c.Plain && !loopback(u.Hostname()):
		return fmt.Errorf("must be of https, got http to %s: addresses would travel in the clear (plain: true allows it)", u.Hostname())
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func token(s string) bool {
	return len(s) <= 64 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

// template finds the provider's code for a notice.
func (c Config) template(kind coupon.NoticeKind, offset, locale string) (key, sign string) {
	for _, t := range c.Templates {
		if (t.Kind == "" || t.Kind == string(kind)) && (t.Offset == "" || t.Offset == offset) && speaks(t.Locale, locale) {
			if t.Sign != "" {
				return t.Key, t.Sign
			}
			return t.Key, c.Sign
		}
	}
	return "", c.Sign
}

// speaks reports whether a template's locale serves a notice's.
func speaks(have, want string) bool {
	if have == "" || strings.EqualFold(have, want) {
		return true
	}
	language, _, regional := strings.Cut(want, "-")
	return regional && strings.EqualFold(have, language)
}
