package testenv

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/secret"
)

// Topology is a small ladder of the test's own on the real broker.
type Topology struct {
	Ladder    *ladder.Ladder
	Client    *broker.Client
	Publisher *broker.Publisher // running
}

// NewTopology declares a ladder of these levels under a prefix of its own, and deletes it when the test ends.
func NewTopology(t testing.TB, levels ...ladder.Level) Topology {
	t.Helper()
	Servers(t)
	c := ladder.DefaultConfig()
	c.Prefix, c.GroupSize, c.Levels = Prefix(t), 1, levels
	var y Topology
	var err error
	y.Ladder, err = ladder.New(c)
	require.NoError(t, err)
	y.Client = y.NewClient(t, os.Getenv("TEST_AMQP_URL"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, y.Client.Declare(ctx, y.Ladder.Plan()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, y.Client.Delete(ctx, y.Ladder.Plan()))
	})
	y.Publisher = y.NewPublisher(t)
	return y
}

// NewClient is another pod's, which reaches the broker at an address of its own: that of a proxy, say.
func (y Topology) NewClient(t testing.TB, amqp string) *broker.Client {
	t.Helper()
	c := broker.DefaultConfig()
	c.URL, c.ManagementURL, c.Name = secret.New(amqp), secret.New(os.Getenv("TEST_MANAGEMENT_URL")), "test"
	client, err := broker.New(c, broker.Options{Role: "test", Plan: y.Ladder.Plan(), Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	return client
}

// NewPublisher is another publisher, with a connection of its own, running until the test ends.
func (y Topology) NewPublisher(t testing.TB) *broker.Publisher {
	t.Helper()
	p := y.NewClient(t, os.Getenv("TEST_AMQP_URL")).NewPublisher()
	Run(t, p.Run)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx))
	return p
}

// Run starts a component; the function stops it and waits, as the test's end does.
func Run(t testing.TB, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "a component does not stop")
		}
	})
	t.Cleanup(stop)
	return stop
}
