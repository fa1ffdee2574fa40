package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/compare/report"
)

var update = flag.Bool("update", false, "write the golden files")

// result is two rounds of all four, drawn up by hand.
func result() report.Result {
	r := report.Result{
		Began: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), TookS: 612.4, Commit: "0123abc", Seed: 1, Coupons: 20_000, Steady: 2000, SteadyForS: 10, Rounds: 2,
		Machine: report.Machine{CPU: "A CPU <of some kind>", Cores: 2, MemoryMiB: 24_000, System: "Debian, Linux 6"},
		Servers: report.Servers{Broker: "RabbitMQ 3.10.8", Database: "MariaDB 10.11.19", Redis: "Redis 7.0.15"},
		Errors:  []string{},
	}
	for round := 1; round <= 2; round++ {
		for i, name := range report.Names() {
			scale := float64(i+1) + float64(round-1)*0.2
			r.Runs = append(r.Runs, report.Run{
				Round: round, Mechanism: name, Tally: report.Tally{Again: round * i}, AcceptPerS: 4000 / scale,
				Steady: part(2000, 40*scale, 10), Spike: part(20_000, 900*scale, 1.8*scale),
				Kill: report.Kill{Part: part(20_000, 2500*scale, 5*scale), AtS: 1.2 * scale, Left: 9000 + i, RecoveryS: 3.8 * scale},
				Costs: map[string]report.Cost{
					"workers":  {AcceptCPU: 11 * scale, DueCPU: 4 * scale, WaitCores: 0.02, WaitingMiB: 3, PeakMiB: 88 + scale, GrownMiB: 21 * scale},
					"broker":   {AcceptCPU: 9 * scale, DueCPU: 5 * scale, WaitCores: 0.01, WaitingMiB: 70, PeakMiB: 250, GrownMiB: 60},
					"database": {AcceptCPU: 6, DueCPU: 3, WaitCores: 0.01 * scale, WaitingMiB: 40, PeakMiB: 500, GrownMiB: 80},
				},
				Amiss: []string{},
			})
		}
	}
	for i := range r.Runs {
		if r.Runs[i].Mechanism == "zset" {
			r.Runs[i].Costs["redis"] = report.Cost{AcceptCPU: 0.4, DueCPU: 0.3, WaitCores: 0.004, WaitingMiB: 48, PeakMiB: 30, GrownMiB: 12}
		}
	}
	return r
}

func part(n int, p50, took float64) report.Part {
	p := report.Part{Coupons: n, Late: report.Lateness{P50: p50, P99: 2 * p50, P999: 2.2 * p50, Max: 2.5 * p50}, TookS: took, PerS: float64(n) / took}
	for i := range 101 {
		p.CurveMS = append(p.CurveMS, p50*float64(i)/50)
	}
	return p
}

func TestARoundsMediansAndSums(t *testing.T) {
	t.Parallel()
	r := result()
	r.Settle()
	require.True(t, r.Passed)
	require.Len(t, r.Mechanisms, 4)
	zset := r.Mechanisms[1]
	require.Equal(t, "zset", zset.Name)
	require.Equal(t, 2, zset.Rounds)
	require.Equal(t, 3, zset.Again, "a sum: 1 + 2")
	require.InDelta(t, 40*2.1, zset.Steady.Late.P50, 1e-9, "the mean of the middle two")
	require.InDelta(t, 40*2.1, zset.Steady.CurveMS[50], 1e-9)
	require.InDelta(t, 3.8*2.1, zset.Kill.RecoveryS, 1e-9)
	require.Equal(t, 9001, zset.Kill.Left)
	require.InDelta(t, 15*2.1, zset.Costs["workers"].CPU(), 1e-9)
	require.Contains(t, zset.Costs, "redis")
	require.NotContains(t, r.Mechanisms[0].Costs, "redis")
}

func TestTheVerdict(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]func(r *report.Result){
		"early":             func(r *report.Result) { r.Runs[3].Early = 1 },
		"lost":              func(r *report.Result) { r.Runs[0].Lost = 1 },
		"doubled":           func(r *report.Result) { r.Runs[7].Doubled = 1 },
		"amiss":             func(r *report.Result) { r.Runs[7].Amiss = []string{"something"} },
		"a run that failed": func(r *report.Result) { r.Errors = []string{"wheel, round 2: the publisher ended"} },
		"nothing was run":   func(r *report.Result) { r.Runs = nil },
	} {
		r := result()
		spoil(&r)
		r.Settle()
		require.False(t, r.Passed, what)
		require.Contains(t, report.Verdict(&r), "FAIL", what)
	}
	r := result()
	r.Runs[5].Amiss, r.Errors = []string{"1 coupons lost"}, []string{"wheel, round 2: it ended"}
	r.Settle()
	require.Contains(t, report.Verdict(&r), "\n  wheel, round 2: it ended\n  zset, round 2: 1 coupons lost")
}

func TestTheTable(t *testing.T) {
	t.Parallel()
	r := result()
	r.Settle()
	golden(t, "table.txt", report.Table(&r))
}

func page(t *testing.T, r *report.Result) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, report.HTML(&b, r))
	return b.String()
}

func TestThePage(t *testing.T) {
	t.Parallel()
	r := result()
	r.Settle()
	text := page(t, &r)
	golden(t, "page.html", text)
	require.NotContains(t, text, "<of some kind>", "what is not ours is escaped")
	require.NotContains(t, text, "ZgotmplZ")
	require.NotContains(t, text, "NaN")
	require.Equal(t, 3*4, strings.Count(text, "<polyline"), "three plots of four lines")
	require.Equal(t, 4, strings.Count(text, "<circle"), "each line of the kill is marked")
	for _, name := range report.Names() {
		require.Contains(t, text, `class="line `+name+`"`)
		require.NotEmpty(t, report.WordsOf(name).Limits)
		for _, limit := range report.WordsOf(name).Limits {
			require.Contains(t, html.UnescapeString(text), limit)
		}
	}
}

// Whoever opens it may be without a network, and must not tell anybody.
func TestThePageAsksNobody(t *testing.T) {
	t.Parallel()
	r := result()
	r.Settle()
	text := page(t, &r)
	require.NotRegexp(t, `(?i)<script|<link|<iframe|<img|https?://|\bon\w+=|@import|url\((?:[^#)])`, text)
	require.Contains(t, text, `Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"`)
	require.Contains(t, text, "prefers-color-scheme: dark")
	require.Contains(t, text, `name="viewport"`)
}

// One mechanism, nothing heard, no costs: whatever could not be measured leaves a gap and no error.
func TestGaps(t *testing.T) {
	t.Parallel()
	r := result()
	r.Runs = r.Runs[:1]
	r.Runs[0].Costs, r.Runs[0].Spike, r.Runs[0].Kill, r.Runs[0].Lost = nil, report.Part{}, report.Kill{}, 20_000
	r.Settle()
	text := page(t, &r)
	require.Equal(t, 1, strings.Count(text, "<polyline"))
	require.NotContains(t, text, "<h2>Cost</h2>")
	require.Contains(t, text, "failed")
	require.Contains(t, report.Table(&r), "lost")
	empty := report.Result{}
	empty.Settle()
	require.NotEmpty(t, page(t, &empty))
	require.NotEmpty(t, report.Table(&empty))
}

func TestTheJSONIsReadBack(t *testing.T) {
	t.Parallel()
	r := result()
	r.Settle()
	body, err := json.Marshal(r)
	require.NoError(t, err)
	var again report.Result
	require.NoError(t, json.Unmarshal(body, &again))
	require.Equal(t, r, again)
	require.NotContains(t, string(body), ":null")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o700))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test ./pkg/compare/report -update writes it")
	require.Equal(t, string(want), got)
}
