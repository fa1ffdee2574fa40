package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
)

func (c *scene) status() (statusJSON, call) {
	c.Helper()
	r := c.run("status", "--json")
	var x statusJSON
	require.NoError(c, json.Unmarshal([]byte(r.stdout), &x), r.stderr)
	return x, r
}

func (c *scene) tell(role string, slow pulse.Stage) {
	c.Helper()
	r := pulse.Report{Pod: role + ".1", Role: role, Version: "v1", Started: time.Now(), Stages: map[pulse.Stage]pulse.Timing{}}
	for _, s := range pulse.Stages() {
		r.Stages[s] = pulse.Timing{Count: 10, Mean: s.Floor() / 2, Max: s.Floor(), Calm: s.Floor()}
	}
	if slow != "" {
		r.Stages[slow] = pulse.Timing{Count: 10, Mean: 20 * slow.Floor(), Max: 30 * slow.Floor(), Calm: slow.Floor()}
	}
	require.NoError(c, c.store.PutPulse(c.ctx(), r))
}

func TestStatus(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	x, r := c.status()
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, x.Attention, "no worker runs")
	require.True(t, x.Broker.Reachable)

	require.NoError(t, c.client.Declare(c.ctx(), c.ladder.Plan()))
	defer func() { require.NoError(t, c.client.Delete(c.ctx(), c.ladder.Plan())) }()
	for _, role := range []string{"publisher", "expirer", "notifier"} {
		c.tell(role, "")
	}
	x, r = c.status()
	require.Empty(t, x.Attention)
	require.Equal(t, exitOK, r.code)
	require.True(t, x.Healthy)
	require.Nil(t, x.Bottleneck)
	require.Len(t, x.Fleet, 3)
	text := c.ok("status")
	for _, want := range []string{"healthy", "publisher 1, expirer 1, notifier 1", "waiting 0, due 0", "horizon unlimited", "bottleneck  none", "reminders   none"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "\x1b")

	for stage, party := range map[pulse.Stage]string{pulse.Publish: "broker", pulse.Commit: "database", pulse.Send: "provider"} {
		c.tell("expirer", stage)
		x, r = c.status()
		require.Equal(t, exitMiss, r.code)
		require.NotNil(t, x.Bottleneck)
		require.Equal(t, party, x.Bottleneck.Party)
		require.Equal(t, []string{"the " + party + " is the bottleneck: " + string(stage) + " takes 7 times as long as when all is calm"}, x.Attention)
	}
	c.tell("expirer", "")

	c.db.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 40 SECOND WHERE name LIKE 'pod.notifier%'`)
	x, _ = c.status()
	require.Equal(t, []string{"no notifier runs"}, x.Attention)
	require.Contains(t, c.run("status").stdout, "silent for 4")
}

// The lag at every offset is told; one of minutes needs attention.
func TestStatusOfReminders(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	o, err := coupon.ParseOffsets([]string{"-2h", "-30m"})
	require.NoError(t, err)
	r := coupon.Reminders{Offsets: o, Zone: time.UTC, Leads: map[string]time.Duration{"-2h": time.Hour, "-30m": time.Second}}
	require.NoError(t, c.store.SetReminders(c.ctx(), r))
	template := c.template("--after=2h")
	c.ok("grant", "--template", template, "--user=u", "--batch=b", "--count=1")
	c.issue()
	x, _ := c.status()
	require.Contains(t, strings.Join(x.Attention, "\n"), " behind with reminders at -2h")
	require.Len(t, x.Planner.Reminders, 2)
	require.InDelta(t, 3600, x.Planner.Reminders[0].LagSeconds, 60)
	require.Zero(t, x.Planner.Reminders[1].LagSeconds)
	require.Contains(t, c.run("status").stdout, "-30m lag 0s")
}

func TestStatusWithoutABroker(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	for _, role := range []string{"publisher", "expirer", "notifier"} {
		c.tell(role, "")
	}
	c.environ = append([]string{"LAPSE__BROKER__URL=amqp://u:hidden@127.0.0.1:1/v"}, withoutBroker(c.environ)...)
	x, r := c.status()
	require.Equal(t, exitMiss, r.code)
	require.False(t, x.Broker.Reachable)
	require.Len(t, x.Attention, 1)
	require.Contains(t, x.Attention[0], "the broker cannot be reached")
	require.NotContains(t, r.stdout, "hidden")
	require.Contains(t, c.run("status").stdout, "broker cannot be reached")
}

func withoutBroker(environ []string) []string {
	var out []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "LAPSE__BROKER__URL=") {
			out = append(out, v)
		}
	}
	return out
}

func TestStatusCannotBeTold(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	c.environ = append(c.environ, "LAPSE__DATABASE__ADDRESS=127.0.0.1:1")
	var environ []string
	for _, v := range c.environ {
		if !strings.HasPrefix(v, "LAPSE__DATABASE__ADDRESS="+c.db.Config.Address) {
			environ = append(environ, v)
		}
	}
	c.environ = environ
	require.Equal(t, exitError, c.run("status").code)
	require.Equal(t, exitError, c.run("status", "--every=1ms").code)
}

func TestStatusWatches(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	ctx, cancel := context.WithTimeout(c.ctx(), 4*time.Second)
	defer cancel()
	r := c.runIn(ctx, "status", "--watch", "--every=1s", "--json")
	require.Equal(t, exitOK, r.code, r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.NotEmpty(t, lines)
	for _, line := range lines {
		require.True(t, json.Valid([]byte(line)), line)
	}
}
