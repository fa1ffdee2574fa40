package broker_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = 30 * time.Second

// env is a ladder with a prefix of its own on the real broker.
type env struct {
	testing.TB
	ladder  *ladder.Ladder
	plan    ladder.Plan
	cfg     broker.Config
	log     *zap.Logger
	metrics *prometheus.Registry // of direct
	direct  *broker.Client       // not through any proxy; used to look and to clean up
}

// newEnv declares a small ladder, of one level, and deletes it in the end.
func newEnv(t testing.TB) *env {
	t.Helper()
	e := bareEnv(t)
	require.NoError(t, e.direct.Declare(e.ctx(), e.plan))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, e.direct.Delete(ctx, e.plan))
	})
	return e
}

// bareEnv declares nothing.
func bareEnv(t testing.TB) *env {
	t.Helper()
	e := &env{TB: t, log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)), cfg: broker.DefaultConfig()}
	raw := os.Getenv("TEST_AMQP_URL")
	require.NotEmpty(t, raw, "TEST_AMQP_URL is not set: start the stack (scripts/stack up) and eval \"$(scripts/stack env)\"")
	e.cfg.URL = secret.New(raw)
	e.cfg.ManagementURL = secret.New(os.Getenv("TEST_MANAGEMENT_URL"))
	e.cfg.Name = "test"
	e.cfg.BackoffMin, e.cfg.BackoffMax = 20*time.Millisecond, 500*time.Millisecond

	var id [6]byte
	_, err := rand.Read(id[:])
	require.NoError(t, err)
	lc := ladder.DefaultConfig()
	lc.Prefix = "t" + hex.EncodeToString(id[:])
	lc.Levels = []ladder.Level{{Name: "s", Unit: 10 * time.Millisecond, Digits: 5}}
	lc.GroupSize = 1
	e.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	e.plan = e.ladder.Plan()
	e.metrics = prometheus.NewRegistry()
	e.direct, err = broker.New(e.cfg, broker.Options{Role: "test", Plan: e.plan, Log: e.log, Registerer: e.metrics})
	require.NoError(t, err)
	return e
}

func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	e.Cleanup(cancel)
	return ctx
}

func (e *env) client(cfg broker.Config) *broker.Client {
	e.Helper()
	c, err := broker.New(cfg, broker.Options{Role: "test", Plan: e.plan, Log: e.log, Registerer: prometheus.NewRegistry()})
	require.NoError(e, err)
	return c
}

// run starts a component and gives a function that stops it and waits; the test's end does so too.
func (e *env) run(run func(context.Context) error) (stop func()) {
	e.Helper()
	return testenv.Run(e, run)
}

func (e *env) publisher(c *broker.Client) *broker.Publisher {
	e.Helper()
	p := c.NewPublisher()
	e.run(p.Run)
	require.NoError(e, p.WaitReady(e.ctx()))
	return p
}

// proxied is the env's config through a fault proxy.
func (e *env) proxied() (*rig.Proxy, broker.Config) {
	e.Helper()
	u, err := url.Parse(e.cfg.URL.Reveal())
	require.NoError(e, err)
	host, port, err := net.SplitHostPort(u.Host)
	require.NoError(e, err)
	p, err := rig.NewProxy(net.JoinHostPort(host, port))
	require.NoError(e, err)
	e.Cleanup(func() { require.NoError(e, p.Close()) })
	cfg := e.cfg
	cfg.Addresses = []string{p.Addr()}
	return p, cfg
}

func (e *env) depth(queue string) int {
	e.Helper()
	d, err := e.direct.Depths(e.ctx(), []string{queue})
	require.NoError(e, err)
	return d[queue]
}

func (e *env) eventually(what string, ok func() bool) {
	e.Helper()
	require.Eventually(e, ok, patience, 20*time.Millisecond, what)
}

// due is a message that goes straight to the due queue.
func (e *env) due(id string) broker.Message {
	r := e.ladder.Route(0, ladder.Expire, ladder.Exact, 0)
	return broker.Message{Exchange: r.Exchange, Key: r.Key, ID: id, Body: []byte(id), Mandatory: true}
}

func noErrors(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		require.NoError(t, err, "message %d", i)
	}
}

// counter reads the direct client's series with exactly these label values.
func (e *env) counter(name string, labels ...string) float64 {
	e.Helper()
	families, err := e.metrics.Gather()
	require.NoError(e, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matching := 0
			for _, l := range m.GetLabel() {
				if slices.Contains(labels, l.GetValue()) {
					matching++
				}
			}
			if matching == len(labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	require.Fail(e, "no such series", "%s %v", name, labels)
	return 0
}

// only is the part of the plan that is one queue.
func (e *env) only(queue string) ladder.Plan {
	for _, q := range e.plan.Queues {
		if q.Name == queue {
			return ladder.Plan{Queues: []ladder.Queue{q}}
		}
	}
	require.Fail(e, "no such queue in the plan", queue)
	return ladder.Plan{}
}
