package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/pkg/certs"
)

// target is where and as whom a connection is made. It is put together for each: what has changed in a file (the URL with its
// password, certificates) holds for the next connection.
type target struct {
	url     string // of the scheme amqp, whatever it was: TLS is ours
	uri     amqp.URI
	vhost   string
	address string
	tls     *tls.Config // nil: none
}

var errURL = errors.New("url: must be amqp://user:password@host:port/vhost (reserved characters percent-encoded)")

func (c *Client) target() (target, error) {
	now, err := c.cfg.URL.Current()
	if err != nil {
		return target{}, fmt.Errorf("url: %w", err)
	}
	t := target{url: now.Reveal()}
	if t.uri, err = amqp.ParseURI(t.url); err != nil {
		return target{}, errURL // the library's shows the password
	}
	t.vhost = t.uri.Vhost
	if c.cfg.Vhost != "" {
		t.vhost = c.cfg.Vhost
	}
	t.address = c.nextAddress(net.JoinHostPort(t.uri.Host, strconv.Itoa(t.uri.Port)))
	if t.uri.Scheme != schemeTLS {
		return t, nil
	}
	t.url = "amqp" + strings.TrimPrefix(t.url, schemeTLS)
	if t.tls, err = c.cfg.TLS.with(t.uri).Client(t.uri.Host); err != nil {
		return target{}, fmt.Errorf("tls.%w", err)
	}
	return t, nil
}

const schemeTLS = "amqps"

// TLSConfig says whom a connection trusts, if the URL is amqps://.
type TLSConfig struct {
	certs.Config `koanf:",squash"`
}

// with takes what RabbitMQ's clients know as parameters of the URL where the configuration says nothing.
func (c TLSConfig) with(u amqp.URI) certs.Config {
	conf := c.Config
	for _, f := range []struct {
		field *string
		param string
	}{{&conf.CAFile, u.CACertFile}, {&conf.CertFile, u.CertFile}, {&conf.KeyFile, u.KeyFile}, {&conf.ServerName, u.ServerName}} {
		if *f.field == "" {
			*f.field = f.param
		}
	}
	return conf
}

// dial opens a connection named for its purpose.
func (c *Client) dial(ctx context.Context, purpose string) (*session, error) {
	t, err := c.target()
	if err != nil {
		return nil, fmt.Errorf("connecting to RabbitMQ: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	var (
		w    *wire
		last *listening
		stop = func() bool { return true }
	)
	props := amqp.NewConnectionProperties()
	props["product"] = "lapse"
	props.SetClientConnectionName(c.name + " " + purpose)
	conn, err := amqp.DialConfig(t.url, amqp.Config{
		Vhost:      c.cfg.Vhost,
		Heartbeat:  c.cfg.Heartbeat,
		Properties: props,
		Dial: func(network, _ string) (net.Conn, error) {
			conn, err := t.dial(ctx, network, time.Now().Add(c.cfg.DialTimeout))
			if err != nil {
				return nil, err
			}
			last = &listening{Conn: conn}
			w = newWire(last, c.cfg.WriteTimeout)
			stop = context.AfterFunc(ctx, w.abort)
			return w, nil
		},
	})
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if w != nil {
			w.abort()
			<-w.done
			// With TLS 1.3 a server says that it wants another certificate when the handshake is over for us.
			if heard := last.err(); certs.Explain(heard) != "" {
				err = heard
			}
		}
		return nil, fmt.Errorf("connecting to RabbitMQ at %s: %w", t.address, t.explain(err))
	}
	s := &session{
		conn: conn, wire: w, address: t.address,
		done: make(chan struct{}), changed: make(chan struct{}),
	}
	go s.watch(conn.NotifyClose(make(chan *amqp.Error, 1)), conn.NotifyBlocked(make(chan amqp.Blocking, 8)))
	return s, nil
}

// dial connects, and shakes hands over TLS. The deadline stays.
func (t target) dial(ctx context.Context, network string, deadline time.Time) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, network, t.address)
	if err != nil {
		return nil, err
	}
	if err := raw.SetDeadline(deadline); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	if t.tls == nil {
		return raw, nil
	}
	conn := tls.Client(raw, t.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// explain says in words why there is no connection.
func (t target) explain(err error) error {
	var (
		said *amqp.Error
		name *net.DNSError
	)
	words := certs.Explain(err)
	switch {
	case words != "":
		words = "no trusted connection to it: " + words
	case errors.As(err, &name):
		words = "the host of broker.url (or broker.addresses) cannot be found"
	case errors.Is(err, syscall.ECONNREFUSED):
		words = "nothing listens there (broker.url)"
	case !errors.As(err, &said):
	case said.Code == amqp.AccessRefused && !strings.Contains(said.Reason, "vhost"):
		words = fmt.Sprintf("it refuses user %q or the password (broker.url)", t.uri.Username)
	case said.Code == amqp.NotAllowed && strings.Contains(said.Reason, "not found"):
		words = fmt.Sprintf("it has no vhost %q (broker.url, broker.vhost)", t.vhost)
	case strings.Contains(said.Reason, "limit"): // says it itself
	case said.Code == amqp.NotAllowed, said.Code == amqp.AccessRefused:
		words = fmt.Sprintf("user %q has no permissions in vhost %q", t.uri.Username, t.vhost)
	}
	if words == "" {
		return err
	}
	return fmt.Errorf("%s: %w", words, err)
}

// explainChannel says in words what the broker refuses on a connection.
func explainChannel(err error) error {
	var said *amqp.Error
	if errors.As(err, &said) && said.Code == amqp.AccessRefused && strings.Contains(said.Reason, "access to ") && !strings.Contains(said.Reason, "access to vhost") {
		return fmt.Errorf("the user of broker.url lacks a permission: %w", err)
	}
	return err
}

// listening remembers why nothing more is heard.
type listening struct {
	net.Conn

	mu   sync.Mutex
	last error
}

func (l *listening) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err != nil {
		l.mu.Lock()
		if l.last == nil {
			l.last = err
		}
		l.mu.Unlock()
	}
	return n, err
}

func (l *listening) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}
