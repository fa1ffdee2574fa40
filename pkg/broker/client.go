package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/lifecycle"
)

// Options are what a Client gets from its process.
type Options struct {
	// Role of the process (publisher, expirer, notifier, lapsectl): the first
	// word of connection names and consumer tags.
	Role string
	// Plan is declared at the start of every session if topology.declare is
	// on. An empty plan declares nothing.
	Plan ladder.Plan
	// Log defaults to none, Registerer to none.
	Log        *zap.Logger
	Registerer prometheus.Registerer
}

// Client is what the publishers and consumers of one process share: how to
// connect, what to declare, what to count. It holds no connection itself.
type Client struct {
	cfg     Config
	name    string // role and pod
	plan    ladder.Plan
	log     *zap.Logger
	metrics *metrics
	dials   atomic.Uint64

	declaring chan struct{} // holds a token while a session declares
	declared  time.Time     // when the last successful one began; guarded by the token

	mu    sync.Mutex
	there chan struct{} // closed, and replaced, when a session was opened
}

// New checks the config; it does not connect.
func New(cfg Config, opts Options) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("broker config: %w", err)
	}
	if cfg.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("naming the pod: %w", err)
		}
		cfg.Name = host
	}
	if opts.Role == "" {
		opts.Role = "lapse"
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	m, err := newMetrics(opts.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering broker metrics: %w", err)
	}
	return &Client{
		declaring: make(chan struct{}, 1), there: make(chan struct{}),
		cfg: cfg, name: opts.Role + " " + cfg.Name, plan: opts.Plan,
		log: opts.Log.Named("broker"), metrics: m,
	}, nil
}

// nextAddress takes the configured addresses in turn, so that a dead node is
// left behind at the next attempt.
func (c *Client) nextAddress(fromURL string) string {
	if len(c.cfg.Addresses) == 0 {
		return fromURL
	}
	n := c.dials.Add(1) - 1
	return c.cfg.Addresses[n%uint64(len(c.cfg.Addresses))]
}

// open makes a session that is ready for work: connected, topology declared.
func (c *Client) open(ctx context.Context, purpose string) (*session, error) {
	s, err := c.dial(ctx, purpose)
	if err != nil {
		return nil, err
	}
	if c.cfg.Topology.Declare && !empty(c.plan) {
		if err := c.declareOnce(ctx, s, time.Now()); err != nil {
			s.close()
			return nil, err
		}
	}
	c.arrived()
	return s, nil
}

// arrived tells whoever waits for another attempt that the broker is there.
func (c *Client) arrived() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.there)
	c.there = make(chan struct{})
}

func (c *Client) arrival() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.there
}

// declareOnce declares the plan for a session that is connected since then,
// unless another session of the process has declared it after that: what could
// have undone it (a restart of the broker) would have ended this session, too.
// So a worker with five sessions declares once when the broker comes back.
func (c *Client) declareOnce(ctx context.Context, s *session, connected time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	select {
	case c.declaring <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting for another session to declare the topology: %w", ctx.Err())
	}
	defer func() { <-c.declaring }()
	if c.declared.After(connected) {
		return nil
	}
	began := time.Now()
	if err := c.declareOn(ctx, s, c.plan); err != nil {
		return err
	}
	c.declared = began
	return nil
}

// with runs f on a connection of its own.
func (c *Client) with(ctx context.Context, purpose string, f func(*session) error) error {
	s, err := c.dial(ctx, purpose)
	if err != nil {
		return err
	}
	defer s.close()
	return f(s)
}

// Prepare makes the plan of Options ready for use, at the start of a process:
// declares it, or only verifies it if topology.declare is off, and looks at
// the policies. An error for which Refused answers true will not go away by
// itself; any other is worth another try.
func (c *Client) Prepare(ctx context.Context) error {
	if !c.cfg.Topology.Declare {
		return c.Verify(ctx, c.plan)
	}
	if err := c.Declare(ctx, c.plan); err != nil {
		return err
	}
	return c.CheckPolicies(ctx, c.plan)
}

// Refused says whether err is about how the broker is set up (a queue with
// other arguments, something missing, a harmful policy) and not about reaching it.
func Refused(err error) bool {
	var (
		mismatch *MismatchError
		missing  *MissingError
		policy   *PolicyError
	)
	return errors.As(err, &mismatch) || errors.As(err, &missing) || errors.As(err, &policy)
}

// Ping connects, says hello and leaves.
func (c *Client) Ping(ctx context.Context) error {
	return c.with(ctx, "ping", func(*session) error { return nil })
}

// attempts is the wait between attempts at one thing: jittered, growing,
// without end; and the log of its failures, where a repeated one is told once
// a minute: what lasts must not fall silent.
type attempts struct {
	c    *Client
	wait *backoff.ExponentialBackOff
	log  *zap.Logger
	last string
	told time.Time
	n    int
}

const tellEvery = time.Minute

func (c *Client) attempts(log *zap.Logger) *attempts {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = c.cfg.BackoffMin, c.cfg.BackoffMax
	b.Multiplier = 2
	return &attempts{c: c, wait: b, log: log}
}

// failed logs err, then waits; false = ctx ended. When another session of the
// process finds the broker meanwhile the wait is cut short, but never below
// backoff_min: of a worker's sessions the first to get through brings the rest.
func (a *attempts) failed(ctx context.Context, what string, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	a.n++
	err = explainChannel(err)
	d := a.wait.NextBackOff()
	level := a.log.Warn
	if text := err.Error(); text == a.last && time.Since(a.told) < tellEvery {
		level = a.log.Debug
	} else {
		a.last, a.told = text, time.Now()
	}
	level(what, zap.Error(err), zap.Int("attempt", a.n), zap.Duration("next_in", d))
	least := min(d, a.c.cfg.BackoffMin)
	there := a.c.arrival()
	if lifecycle.Sleep(ctx, least) != nil {
		return false
	}
	rest := time.NewTimer(d - least)
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-rest.C:
	case <-there:
	}
	return true
}

// lasted starts over if what succeeded at since has lasted. What breaks soon
// after it was made is not worth a quick retry either.
func (a *attempts) lasted(since time.Time) {
	if time.Since(since) < a.wait.MaxInterval {
		return
	}
	a.wait.Reset()
	a.last, a.n = "", 0
}

func empty(p ladder.Plan) bool { return len(p.Exchanges)+len(p.Queues)+len(p.Bindings) == 0 }

// Errors of publishing. Each result of Publish is nil or wraps one of them.
var (
	// ErrReturned: no binding took the mandatory message. It was not stored.
	ErrReturned = errors.New("message returned by the broker")
	// ErrNacked: the broker refused the message (a queue is full or failed).
	ErrNacked = errors.New("message refused by the broker")
	// ErrUnknown: the message was sent, and the connection, channel or time
	// ended before the confirm. It may or may not be stored: publish it again.
	ErrUnknown = errors.New("no confirm: the message may or may not be stored")
	// ErrBlocked: not sent, because the broker blocks publishing (resource
	// alarm).
	ErrBlocked = errors.New("publishing is blocked by the broker")
	// ErrNotSent: not sent, because there was no session before the time ended.
	ErrNotSent = errors.New("message not sent: no connection to the broker")
	// ErrStopped: not sent, because the publisher has stopped.
	ErrStopped = errors.New("message not sent: the publisher has stopped")
	// ErrInvalid: not sent, because the message cannot be expressed in AMQP.
	ErrInvalid = errors.New("invalid message")
)
