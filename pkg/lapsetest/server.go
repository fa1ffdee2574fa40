package lapsetest

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/order"
)

// Token is what Server.Client shows: it has every scope.
const Token = "lapsetest-all"

// Installation is that of the events' source.
const Installation = "lapsetest"

// TokenOf is the token that has one scope alone.
func TokenOf(scope api.Scope) string { return "lapsetest-" + string(scope) }

// Start is where the clock stands at first, unless At says otherwise: a Monday, 10:00 UTC.
func Start() time.Time { return time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC) }

// Server is Lapse in memory. Safe for concurrent use; its end is the test's.
type Server struct {
	URL    string // of the API, without /v1
	memory *memory
	orders *order.Handler
	client *client.Client
}

// settings are what options change.
type settings struct {
	start     time.Time
	reminders []string
	zone      *time.Location
	api       api.Config
}

// Option changes what New makes.
type Option func(*settings)

// At sets where the clock stands at first; a fraction of a millisecond is cut off.
func At(start time.Time) Option { return func(s *settings) { s.start = start } }

// Reminders sets the installation's offsets, instead of -3d, -1d and -30m; zone is that of times of day, nil for UTC.
func Reminders(zone *time.Location, offsets ...string) Option {
	return func(s *settings) { s.zone, s.reminders = zone, offsets }
}

// API changes the API's configuration: limits, pages, further tokens.
func API(change func(*api.Config)) Option { return func(s *settings) { change(&s.api) } }

// New starts a server on a free port; it ends with the test.
func New(t testing.TB, options ...Option) *Server {
	t.Helper()
	set := settings{start: Start(), reminders: []string{"-3d", "-1d", "-30m"}, zone: time.UTC, api: config()}
	for _, o := range options {
		o(&set)
	}
	s, err := start(t, set)
	if err != nil {
		t.Fatalf("lapsetest: %v", err)
	}
	return s
}

// config is the API's by default, with sandbox mode and the tokens.
func config() api.Config {
	c := api.DefaultConfig()
	c.Address, c.Sandbox = "127.0.0.1:0", true
	c.Gather.Linger = 0 // nobody else comes
	all := make([]string, 0, len(api.Scopes()))
	for _, scope := range api.Scopes() {
		all = append(all, string(scope))
		c.Tokens = append(c.Tokens, api.Token{Name: string(scope) + "-only", Hash: api.HashToken(TokenOf(scope)), Scopes: []string{string(scope)}})
	}
	c.Tokens = append(c.Tokens, api.Token{Name: "test", Hash: api.HashToken(Token), Scopes: all})
	return c
}

func start(t testing.TB, set settings) (*Server, error) {
	codec, err := event.NewCodec(Installation)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the field
	}
	texts, err := text.New("en")
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it reads
	}
	offsets, err := coupon.ParseOffsets(set.reminders)
	if err != nil {
		return nil, errors.Join(errors.New("reminders"), err)
	}
	if set.zone == nil {
		set.zone = time.UTC
	}
	m := newMemory(codec, coupon.Reminders{Offsets: offsets, Zone: set.zone}, set.api.KeepKeys, set.start)
	reg := prometheus.NewRegistry()
	orders, err := order.NewHandler(order.DefaultConfig(), m, nil, zap.NewNop(), reg)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the field
	}
	a, err := api.New(set.api, api.Deps{
		Templates: m, Checkout: m, Coupons: m, Wallets: m, Grants: m, Stats: m, Keys: m, Notices: m, Receipts: m, Sandbox: m, Texts: texts,
	}, zap.NewNop(), reg)
	if err != nil {
		return nil, err //nolint:wrapcheck // names the field
	}
	if err := a.Listen(t.Context()); err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	s := &Server{URL: "http://127.0.0.1:" + strconv.Itoa(a.Port()), memory: m, orders: orders}
	if s.client, err = client.New(client.Config{URL: s.URL, Token: Token}); err != nil {
		return nil, err //nolint:wrapcheck // names the field
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		s.client.Close()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("lapsetest: %v", err)
		}
	})
	return s, nil
}

// Client calls the server with every scope. It is closed at the end of the test.
func (s *Server) Client() *client.Client { return s.client }

// Now is where the clock stands.
func (s *Server) Now() time.Time {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.now
}

// Advance moves the clock on: ends, locks and reminders on the way come at their instants, in their order. It gives what was
// heard of them. A duration below zero moves nothing: time does not run back.
func (s *Server) Advance(d time.Duration) []Event { return s.memory.advance(d) }

// AdvanceTo is Advance to an instant.
func (s *Server) AdvanceTo(at time.Time) []Event { return s.Advance(at.Sub(s.Now())) }

// Events are those that consumers would have heard, in the order of what happened, whatever was read before.
func (s *Server) Events() []Event { return s.memory.heard(0) }

// Outage takes the database away, or brings it back: meanwhile every request that needs it is answered 503 unavailable.
func (s *Server) Outage(on bool) { s.memory.outage.Store(on) }
