package broker

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/pkg/certs"
	"github.com/lapsehq/lapse/pkg/secret"
)

// Config says how to reach RabbitMQ and how patient to be with it.
type Config struct {
	// URL is amqp:// or amqps://, with user and password. Required. Given as a file (url_file), it is read again for each
	// connection.
	URL secret.String `koanf:"url"`
	// TLS says whom to trust, and as whom to come, if the URL (or ManagementURL) is one of TLS. Default the system's authorities.
	TLS TLSConfig `koanf:"tls"`
	// Addresses (host:port) are tried in turn instead of the URL's host. Over
	// TLS the certificate must be good for the URL's host. Default none.
	Addresses []string `koanf:"addresses"`
	// Vhost overrides the URL's. Default empty: the URL's.
	Vhost string `koanf:"vhost"`
	// ManagementURL (http://user:password@host:port) lets Verify look at
	// bindings and policies, which AMQP does not show. Default empty: unseen.
	ManagementURL secret.String `koanf:"management_url"`
	// ManagementAddresses (host:port) are tried in turn instead of the management URL's host, so that a node that is down does not
	// keep a worker from starting. Over TLS the certificate must be good for the URL's host. Default none.
	ManagementAddresses []string `koanf:"management_addresses"`
	// Name of this pod in connection names and consumer tags. Default: the
	// host's name.
	Name string `koanf:"name"`
	// Heartbeat interval; two missed ones end a connection. Default 10s.
	Heartbeat time.Duration `koanf:"heartbeat"`
	// DialTimeout bounds connecting, TLS and the AMQP handshake. Default 5s.
	DialTimeout time.Duration `koanf:"dial_timeout"`
	// WriteTimeout is how long the socket may refuse what is to be written
	// before the connection is given up. Default 10s.
	WriteTimeout time.Duration `koanf:"write_timeout"`
	// CallTimeout bounds one request to the broker (open, declare, consume,
	// cancel). Default 30s: a quorum queue waits for its leader.
	CallTimeout time.Duration `koanf:"call_timeout"`
	// PublishTimeout bounds Publish from the call to the last confirm. Default 10s.
	PublishTimeout time.Duration `koanf:"publish_timeout"`
	// DrainTimeout bounds how long batches in work may take to end when a
	// consumer stops, and confirms when a publisher stops. Default 10s.
	DrainTimeout time.Duration `koanf:"drain_timeout"`
	// BackoffMin and BackoffMax bound the jittered wait between attempts to
	// connect, to subscribe, and to go on after a pause. Default 200ms and 2s.
	BackoffMin time.Duration `koanf:"backoff_min"`
	BackoffMax time.Duration `koanf:"backoff_max"`
	// Channels a publisher uses side by side. Default 4.
	Channels int `koanf:"channels"`
	// Window is how many messages may wait for their confirm on one channel.
	// Default 2048.
	Window int `koanf:"window"`
	// Topology says who makes exchanges, queues and bindings.
	Topology TopologyConfig `koanf:"topology"`
}

// TopologyConfig says who makes exchanges, queues and bindings.
type TopologyConfig struct {
	// Declare makes them at the start of every session. Off: they are
	// someone else's to make, and Verify only looks. Default true.
	Declare bool `koanf:"declare"`
}

// DefaultConfig is everything but the URL.
func DefaultConfig() Config {
	return Config{
		Heartbeat:      10 * time.Second,
		DialTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		CallTimeout:    30 * time.Second,
		PublishTimeout: 10 * time.Second,
		DrainTimeout:   10 * time.Second,
		BackoffMin:     200 * time.Millisecond,
		BackoffMax:     2 * time.Second,
		Channels:       4,
		Window:         2048,
		Topology:       TopologyConfig{Declare: true},
	}
}

// Validate reports everything that is wrong, each error starting with the
// field's name. The URLs' passwords are never part of an error.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.URL.Reveal() == "" {
		bad("url: must be given")
	} else if u, err := amqp.ParseURI(c.URL.Reveal()); err != nil {
		errs = append(errs, errURL)
	} else if c.TLS != (TLSConfig{}) && u.Scheme != schemeTLS {
		bad("url: must be amqps:// where tls is set")
	}
	errs = append(errs, certs.Below("tls", c.TLS.Validate()))
	if m := c.ManagementURL.Reveal(); m != "" {
		if u, err := url.Parse(m); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			bad("management_url: must be http(s)://user:password@host:port")
		}
	}
	for name, addresses := range map[string][]string{"addresses": c.Addresses, "management_addresses": c.ManagementAddresses} {
		for _, a := range addresses {
			if _, _, err := net.SplitHostPort(a); err != nil {
				bad("%s: must be host:port, got %q", name, a)
			}
		}
	}
	between := func(name string, d, low, high time.Duration) {
		if d < low || d > high {
			bad("%s: must be between %s and %s, got %s", name, low, high, d)
		}
	}
	between("heartbeat", c.Heartbeat, time.Second, 5*time.Minute)
	between("dial_timeout", c.DialTimeout, 10*time.Millisecond, time.Minute)
	between("write_timeout", c.WriteTimeout, 10*time.Millisecond, 5*time.Minute)
	between("call_timeout", c.CallTimeout, 10*time.Millisecond, 5*time.Minute)
	between("publish_timeout", c.PublishTimeout, 10*time.Millisecond, 5*time.Minute)
	between("drain_timeout", c.DrainTimeout, 10*time.Millisecond, 5*time.Minute)
	between("backoff_min", c.BackoffMin, time.Millisecond, time.Minute)
	if c.BackoffMax < c.BackoffMin || c.BackoffMax > 5*time.Minute {
		bad("backoff_max: must be between backoff_min (%s) and 5m0s, got %s", c.BackoffMin, c.BackoffMax)
	}
	if c.Channels < 1 || c.Channels > 64 {
		bad("channels: must be between 1 and 64, got %d", c.Channels)
	}
	if c.Window < 1 || c.Window > 65536 {
		bad("window: must be between 1 and 65536, got %d", c.Window)
	}
	return errors.Join(errs...)
}
