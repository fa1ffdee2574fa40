package email

import (
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/url"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/certs"
	"github.com/lapsehq/lapse/pkg/secret"
)

// The values of Config.TLS.
const (
	TLSStart    = "starttls" // STARTTLS, and nothing without it
	TLSImplicit = "implicit" // from the first byte
	TLSNone     = "none"     // of loopback alone
)

// Config says by which server mail goes out and what it says of its sender.
type Config struct {
	Host string `koanf:"host"`
	Port int    `koanf:"port"` // default 0: 587 with starttls, 465 implicit, 25 with none
	TLS  string `koanf:"tls"`  // starttls (default), implicit, or none, which only loopback may have
	// Whom to trust (ca_file, server_name) and as whom to come (cert_file, key_file); default the system's authorities, and as
	// nobody.
	certs.Config `koanf:",squash"`

	Username string        `koanf:"username"` // default empty: no login
	Password secret.String `koanf:"password"` // given as a file, it is read again for each login

	From       string `koanf:"from"`        // as Shop <coupons@shop.example>
	ReplyTo    string `koanf:"reply_to"`    // default empty
	ReturnPath string `koanf:"return_path"` // where bounces go; default the address of from
	Domain     string `koanf:"domain"`      // of Message-IDs and HELO, the installation's own; default that of from

	// Unsubscribe is an https: or mailto: address for List-Unsubscribe; {notice_id}, {user_id} and {sign} in it are filled in.
	// Default empty: no such header.
	Unsubscribe    string        `koanf:"unsubscribe"`
	UnsubscribeKey secret.String `koanf:"unsubscribe_key"` // of {sign}: see docs/channels.md

	Connections   int           `koanf:"connections"`     // at the same time; default 4
	Idle          time.Duration `koanf:"idle"`            // how long one waits for its next letter; default 20s
	PerConnection int           `koanf:"per_connection"`  // letters, then another is opened; default 100
	RetryAfterMax time.Duration `koanf:"retry_after_max"` // the longest that a server can ask to be left alone; default 15m
}

// DefaultConfig gives the documented defaults. Host and From have none.
func DefaultConfig() Config {
	return Config{
		TLS: TLSStart, Connections: 4, Idle: 20 * time.Second, PerConnection: 100,
		RetryAfterMax: 15 * time.Minute,
	}
}

// Validate reports every fault, each beginning with the field's name.
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
	if c.Host == "" || strings.ContainsFunc(c.Host, odd) {
		bad("host: must be a name or an address, got %q", c.Host)
	}
	number("port", c.Port, 0, 65535)
	switch c.TLS {
	case TLSStart, TLSImplicit:
	case TLSNone:
		if !loopback(c.Host) {
			bad("tls: must be %s or %s unless host is of loopback, got %q with host %q", TLSStart, TLSImplicit, c.TLS, c.Host)
		}
	default:
		bad("tls: must be %s, %s or %s, got %q", TLSStart, TLSImplicit, TLSNone, c.TLS)
	}
	errs = append(errs, c.Config.Validate())
	if c.Password.Empty() != (c.Username == "") {
		bad("username: must be set exactly if password is, got %q", c.Username)
	}
	c.sender(bad)
	if c.Unsubscribe != "" {
		u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(c.Unsubscribe))
		if err != nil || u.Scheme != "mailto" && (u.Scheme != "https" || u.Host == "") || strings.ContainsFunc(c.Unsubscribe, odd) {
			bad("unsubscribe: must be an https: or mailto: address, got %q", c.Unsubscribe)
		}
		if signed := strings.Contains(c.Unsubscribe, "{sign}"); signed != (len(c.UnsubscribeKey.Reveal()) >= 16) {
			bad("unsubscribe_key: must be set exactly if unsubscribe has {sign}, with 16 bytes at least, has %d", len(c.UnsubscribeKey.Reveal()))
		}
	}
	number("connections", c.Connections, 1, 1000)
	span("idle", c.Idle, 100*time.Millisecond, 10*time.Minute)
	number("per_connection", c.PerConnection, 1, 1_000_000)
	span("retry_after_max", c.RetryAfterMax, time.Second, 24*time.Hour)
	return errors.Join(errs...)
}

func (c Config) sender(bad func(string, ...any)) {
	if a, err := mail.ParseAddress(c.From); err != nil || !plain(a.Address) {
		bad("from: must be like Shop <coupons@shop.example>, in ASCII but for the name, got %q", c.From)
	}
	if a, err := mail.ParseAddress(c.ReplyTo); c.ReplyTo != "" && (err != nil || !plain(a.Address)) {
		bad("reply_to: must be empty or like Shop <coupons@shop.example>, got %q", c.ReplyTo)
	}
	if c.ReturnPath != "" && !plain(c.ReturnPath) {
		bad("return_path: must be empty or like bounces@shop.example, got %q", c.ReturnPath)
	}
	if c.Domain != "" && !plain("x@"+c.Domain) {
		bad("domain: must be empty or a domain's name in ASCII, got %q", c.Domain)
	}
}

// plain reports whether this is an address in ASCII that we could send to.
func plain(address string) bool {
	a, utf8, err := parse(address)
	return err == nil && !utf8 && a == address
}

func odd(r rune) bool { return r <= ' ' || r == '<' || r == '>' || r >= 0x7f }

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (c Config) port() int {
	switch {
	case c.Port != 0:
		return c.Port
	case c.TLS == TLSImplicit:
		return 465
	case c.TLS == TLSNone:
		return 25
	default:
		return 587
	}
}
