package chaos_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/chaos"
)

// The seed alone says what strikes when: a failure can be had again.
func TestASeedIsASchedule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		over := time.Duration(rapid.IntRange(30, 600).Draw(t, "s")) * time.Second
		strikes := chaos.Schedule(seed, over, nil)
		require.Equal(t, strikes, chaos.Schedule(seed, over, nil))
		require.NotEmpty(t, strikes)
		for _, k := range strikes {
			require.LessOrEqual(t, k.At+k.For, over)
			require.Positive(t, k.For)
		}
	})
}

// Twenty seeds of a minute and a half: every fault strikes, and of those that have targets each of these is struck.
func TestEveryFaultStrikesEverybody(t *testing.T) {
	t.Parallel()
	struck := make(map[string]map[string]bool)
	for seed := range uint64(20) {
		for _, k := range chaos.Schedule(seed, chaos.DefaultFor, []string{"all", chaos.GroupCluster, chaos.GroupClock}) {
			if struck[k.Fault] == nil {
				struck[k.Fault] = make(map[string]bool)
			}
			struck[k.Fault][k.Target] = true
		}
	}
	for _, name := range chaos.Names() {
		require.NotEmpty(t, struck[name], name)
	}
	require.Len(t, struck["kill"], 7)
	require.Len(t, struck["term"], 7)
	require.GreaterOrEqual(t, len(struck["pause"]), 6)
	require.GreaterOrEqual(t, len(struck["cut"]), 14)
}

func TestOnlyWhatWasNamedStrikes(t *testing.T) {
	t.Parallel()
	for _, k := range chaos.Schedule(7, time.Minute, []string{"network", "kill"}) {
		require.Contains(t, []string{"kill", "cut", "half-open", "refuse", "delay", "bandwidth"}, k.Fault)
	}
	require.Empty(t, chaos.Schedule(7, time.Minute, []string{chaos.None}))
	for _, group := range []string{chaos.GroupCluster, chaos.GroupClock} {
		require.NotEmpty(t, chaos.Schedule(7, time.Minute, []string{group}))
	}
}

// What needs a cluster, or workers of another build, strikes nobody who did not ask for it: the seeds of old strike as they did.
func TestSomeFaultsMustBeNamed(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{nil, {"all"}, {"servers", "workers"}} {
		for _, k := range chaos.Schedule(7, 5*time.Minute, names) {
			require.NotContains(t, []string{"node-kill", "node-part", "node-freeze", "leader-change", "clock"}, k.Fault)
		}
		c := chaos.Config{Faults: names}
		require.False(t, c.NeedsCluster() || c.NeedsShifted())
	}
	require.True(t, chaos.Config{Faults: []string{"all", "node-kill"}}.NeedsCluster())
	require.True(t, chaos.Config{Faults: []string{"clock"}}.NeedsShifted())
	require.Equal(t, chaos.Schedule(7, time.Minute, nil), chaos.Schedule(7, time.Minute, []string{"all"}))
}

func TestConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	err := chaos.Config{Coupons: 1, For: time.Second, Faults: []string{"kill", "earthquake"}, Sabotage: "shout"}.Validate()
	require.ErrorContains(t, err, "coupons: must be between 100 and 200000, got 1")
	require.ErrorContains(t, err, "for: must be between 30s and 2h0m0s, got 1s")
	require.ErrorContains(t, err, `got "earthquake"`)
	require.ErrorContains(t, err, `got "shout"`)
	require.NoError(t, chaos.Config{Coupons: 1000, For: time.Minute, Faults: []string{chaos.None}}.Validate())
}

func TestAResultsLineIsARegression(t *testing.T) {
	t.Parallel()
	r := chaos.Result{Seed: 42, Coupons: 1000, For: 45, Asked: "kill,network"}
	got, err := chaos.ReadSeeds("# of old\n\n" + r.Line() + " # lost a lock\n")
	require.NoError(t, err)
	require.Equal(t, []chaos.Config{{Seed: 42, Coupons: 1000, For: 45 * time.Second, Faults: []string{"kill", "network"}}}, got)
	r.Asked = "all"
	got, err = chaos.ReadSeeds(r.Line())
	require.NoError(t, err)
	require.Equal(t, chaos.Schedule(42, 45*time.Second, nil), chaos.Schedule(42, 45*time.Second, got[0].Faults))
	_, err = chaos.ReadSeeds("seed=1 coupons=1000 for=45s\nseed=x\nsize=3")
	require.ErrorContains(t, err, "line 2: seed=x")
	require.ErrorContains(t, err, "line 3: size=3")
}

func TestTheRegressionsCanBeRead(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile("testdata/seeds.txt")
	require.NoError(t, err)
	_, err = chaos.ReadSeeds(string(body))
	require.NoError(t, err)
}

func TestEverySabotageIsAClass(t *testing.T) {
	t.Parallel()
	want := []string{"doubled", "early", "lost", "notices_doubled", "stuck", "wrong_state"}
	require.Equal(t, want, slices.Sorted(slices.Values(chaos.Sabotages())))
}
