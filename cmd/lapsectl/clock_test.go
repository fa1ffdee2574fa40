package main

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// clocked is a process that watches the clocks; slept is how long its monotonic clock has stood still.
type clocked struct {
	guard *clock.Guard
	slept atomic.Int64
}

func (c *scene) process(pod string) *clocked {
	c.Helper()
	p := &clocked{}
	p.guard = clock.NewGuard(2*time.Second, func() time.Time { return time.Now().Add(-time.Duration(p.slept.Load())) })
	w := clock.NewWatch(p.guard, c.store, clock.Options{
		Pod: pod, Role: "expirer", Now: time.Now, Log: zap.NewNop(), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(c, w.Start(ctx))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	c.Cleanup(func() {
		cancel()
		require.NoError(c, <-ended)
	})
	return p
}

// A machine was suspended for an hour: to it the database's clock has jumped, and only a person can tell.
func TestClockAccept(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	empty := c.ok("clock", "status")
	require.NotContains(t, empty, "accepted")
	woken := c.process("woken")
	c.process("steady")
	require.Contains(t, c.ok("clock", "status"), "believes it")
	r := c.run("clock", "accept", "--reason=r")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "nothing to accept")

	woken.slept.Store(int64(time.Hour))
	// The other one has just come and knows no better: it is held with it.
	testenv.Wait(t, "both to stop", func() bool {
		return strings.Contains(c.run("clock", "status").stderr, "2 of 2 processes expire nothing")
	})
	r = c.run("clock", "status", "--json")
	require.Equal(t, exitMiss, r.code)
	var x clockJSON
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &x))
	require.Nil(t, x.Accepted)
	require.Equal(t, 2, x.Stopped)
	require.Equal(t, []string{"steady", "woken"}, []string{x.Processes[0].Pod, x.Processes[1].Pod})
	require.InDelta(t, time.Hour.Milliseconds(), x.Processes[1].JumpMS, 2000)
	require.InDelta(t, 0, x.Processes[1].OffsetMS, 2000, "its own clock shows that the database's is right")
	require.NotNil(t, x.Processes[1].Since)

	require.Equal(t, exitError, c.run("clock", "accept").code, "why?")
	require.Contains(t, c.ok("clock", "accept", "--reason=the machine was suspended", "--actor=ann"), "2 processes go on")
	now, err := c.store.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, woken.guard.Allow(now))
	require.Contains(t, c.ok("clock", "status"), "by ann: the machine was suspended")
	deeds, err := c.store.Deeds(t.Context(), store.DeedClockAccept, 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 1)
	require.Equal(t, "ann", deeds[0].Actor)
}
