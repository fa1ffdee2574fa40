package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMediansOfSpeedAndTheWorstOfLosses(t *testing.T) {
	t.Parallel()
	runs := []metrics{{"per_s": 10, "lost": 0, "rss_expirer_mib": 40}, {"per_s": 30, "lost": 2, "rss_expirer_mib": 60}, {"per_s": 20, "lost": 0}}
	require.Equal(t, metrics{"per_s": 20, "lost": 2, "rss_expirer_mib": 60}, medians(runs))
	require.Equal(t, metrics{"per_s": 20}, medians([]metrics{{"per_s": 10}, {"per_s": 30}}))
	require.Empty(t, medians(nil))
}

func TestPercentiles(t *testing.T) {
	t.Parallel()
	var ds []time.Duration
	for i := range 1000 {
		ds = append(ds, time.Duration(i+1)*time.Millisecond)
	}
	require.InDelta(t, 500, percentile(ds, 500), 1e-9)
	require.InDelta(t, 990, percentile(ds, 990), 1e-9)
	require.InDelta(t, 999, percentile(ds, 999), 1e-9)
	require.InDelta(t, 1000, percentile(ds, 1000), 1e-9)
	require.Zero(t, percentile(nil, 990))
}

// spiked is a result with a spike in which lapse reached so many coupons a second.
func spiked(rate float64) Result {
	of := func(name string, m metrics) Subject {
		return Subject{Name: name, What: "it is " + name, Median: m, Runs: []metrics{m}}
	}
	r := Result{Runs: 1, Machine: Machine{Machine: rig.Machine{CPU: "abacus"}}}
	r.put(Scenario{Name: "idle", What: "nothing", Subjects: []Subject{of("lapse", metrics{"cpu_percent": 2, "statements_per_s": 3})}})
	r.put(Scenario{Name: "spike", What: "a spike", Subjects: []Subject{
		of("lapse", metrics{"per_s": rate, "early": 0, "lost": 1}), of("asynq", metrics{"per_s": 1000}), of("bare_broker", metrics{"per_s": 20_000}),
		of("bare_database", metrics{"per_s": 30_000}),
		{Name: "zset", What: "broken", Error: "no Redis", Median: metrics{"per_s": 1}},
	}})
	return r
}

func TestTargetsAreJudged(t *testing.T) {
	t.Parallel()
	r := spiked(9000)
	r.judge()
	require.Equal(t, []string{"spike", "idle"}, []string{r.Scenarios[0].Name, r.Scenarios[1].Name}, "in the order in which they run")
	require.InDelta(t, 9, r.Ratios["cliff_vs_asynq"], 1e-9)
	require.InDelta(t, 0.75, r.Ratios["cliff_vs_serial_limit"], 1e-9)
	require.NotContains(t, r.Ratios, "cliff_vs_zset", "what failed has no figure")
	verdict := make(map[string]bool)
	for _, target := range r.Targets {
		verdict[target.Name] = target.Reached
	}
	require.Equal(t, map[string]bool{
		"cliff_vs_asynq": true, "cliff_vs_serial_limit": true, "spike.lapse.early": true, "spike.lapse.lost": false,
		"idle.lapse.cpu_percent": false, "idle.lapse.statements_per_s": true,
	}, verdict)
	require.EqualError(t, r.fails(), "spike zset: no Redis")
}

func TestTheReportSaysWhatFallsShort(t *testing.T) {
	t.Parallel()
	r := spiked(3000)
	r.judge()
	text := r.markdown()
	require.Contains(t, text, "| cliff_vs_asynq | 3 | >= 3.50 | **falls short** |")
	require.Contains(t, text, "abacus")
	require.Contains(t, text, "**These are not the full sizes**")
	require.Contains(t, text, "`zset`: broken — **did not run to its end**: no Redis")
	require.NotContains(t, text, "%!")
	r.Full = true
	require.NotContains(t, r.markdown(), "full sizes")
}

func TestResultsAreKeptWhenMerged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty, err := readResult(dir)
	require.NoError(t, err)
	require.Empty(t, empty.Scenarios)
	r := spiked(9000)
	r.judge()
	require.NoError(t, r.write(dir))
	again, err := readResult(dir)
	require.NoError(t, err)
	again.put(Scenario{Name: "idle", What: "anew"})
	require.Len(t, again.Scenarios, 2)
	require.Equal(t, "anew", again.Scenarios[1].What)
}

func TestBadFlagsAreNamed(t *testing.T) {
	t.Parallel()
	_, _, _, err := parse(t.Context(), []string{"-scenarios", "spike,rain", "-size", "3", "-runs", "0"})
	require.ErrorContains(t, err, "size: must be between 100 and 1000000, got 3")
	require.ErrorContains(t, err, "runs: must be between 1 and 99, got 0")
	require.ErrorContains(t, err, `scenarios: must be of spike,steady,`)
	require.ErrorContains(t, err, `got "rain"`)
}

func TestAnEarHearsEachCouponOnce(t *testing.T) {
	t.Parallel()
	e := &ear{moved: make(chan struct{})}
	e.expect(10, 2)
	for _, id := range []string{"10:2:expired", "10:2:expired", "9:2:expired", "11:1:issued", "x:2:expired"} {
		e.hear(id)
	}
	h := e.harvest(crop{first: 10, n: 2, due: time.Now().Add(-time.Second)}, 0)
	require.Equal(t, []int{1, 1, 1, 0, 2}, []int{h.n, h.lost, h.twice, h.early, e.stray})
	require.Positive(t, h.took)
}

// Every scenario and every subject runs on the real servers, with as little as can be; what is measured so means nothing.
func TestEveryScenarioRuns(t *testing.T) {
	bin := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "./cmd/publisher", "./cmd/expirer", "./cmd/notifier")
	build.Dir = ".."
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	require.NotEmpty(t, os.Getenv("TEST_REDIS_URL"), `scripts/stack up --redis; eval "$(scripts/stack env)"`)
	groups := [][]string{{"spike", "max_rate"}, {"steady", "exact5k", "issue", "sweep", "idle", "pending"}, {"api", "promote", "notify", "rows"}}
	names := slices.Concat(groups...)
	slices.Sort(names)
	all := scenarioNames()
	slices.Sort(all)
	require.Equal(t, all, names)
	for _, group := range groups {
		t.Run(group[0], func(t *testing.T) {
			t.Parallel()
			out := t.TempDir()
			require.NoError(t, command(t.Context(), []string{
				"-bin", bin, "-out", out, "-scenarios", strings.Join(group, ","), "-size", "200", "-rows", "2000", "-runs", "1", "-lead", "4s",
				"-steady", "1s", "-cron-every", "2s",
			}))
			body, err := os.ReadFile(filepath.Join(out, jsonFile))
			require.NoError(t, err)
			var r Result
			require.NoError(t, json.Unmarshal(body, &r))
			require.Len(t, r.Scenarios, len(group))
			for _, sc := range r.Scenarios {
				for _, s := range sc.Subjects {
					require.Len(t, s.Runs, 1, "%s %s", sc.Name, s.Name)
					for _, name := range []string{"lost", "early", "not_expired"} {
						require.Zero(t, s.Median[name], "%s %s: %s", sc.Name, s.Name, name)
					}
				}
			}
		})
	}
}
