package watch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/rig/watch"
)

const (
	configs   = "../../../configs"
	docs      = "../../../docs"
	rulesFile = configs + "/prometheus/rules/lapse.yaml"
	testsFile = configs + "/prometheus/tests/lapse.yaml"
	board     = configs + "/grafana/dashboards/lapse.json"
)

func rules(t *testing.T) []watch.Rule {
	t.Helper()
	all, err := watch.ReadRules(rulesFile)
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func alerts(t *testing.T) map[string]watch.Rule {
	t.Helper()
	out := make(map[string]watch.Rule)
	for _, r := range rules(t) {
		if r.Alert != "" {
			out[r.Alert] = r
		}
	}
	return out
}

// tool runs a program of Debian's packages prometheus and prometheus-alertmanager (scripts/stack tools).
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// promtool takes configuration and rules, and each alert fires where it should and is silent where it should.
func TestPromtoolTakesTheRules(t *testing.T) {
	t.Parallel()
	tool(t, "promtool", "check", "config", configs+"/prometheus/prometheus.yml")
	tool(t, "promtool", "check", "rules", rulesFile)
	tool(t, "promtool", "test", "rules", testsFile)
	tool(t, "amtool", "check-config", configs+"/prometheus/alertmanager.yml")
}

// Each alert has a unit test in which it is silent at first and fires then.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(testsFile)
	require.NoError(t, err)
	var doc struct {
		Tests []struct {
			Name  string `yaml:"name"`
			Tests []struct {
				Expr    string `yaml:"expr"`
				Samples []any  `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		} `yaml:"tests"`
	}
	require.NoError(t, yaml.Unmarshal(body, &doc))
	silent, fires := map[string]bool{}, map[string]bool{}
	for _, group := range doc.Tests {
		for _, test := range group.Tests {
			if strings.Contains(test.Expr, `alertname="`+group.Name+`"`) {
				silent[group.Name] = silent[group.Name] || len(test.Samples) == 0
				fires[group.Name] = fires[group.Name] || len(test.Samples) > 0
			}
		}
	}
	for name := range alerts(t) {
		require.True(t, silent[name], "%s has no test in which it is silent", name)
		require.True(t, fires[name], "%s has no test in which it fires", name)
	}
}

// Each alert says how urgent it is, what follows from a server, and where its page is; each page has an alert.
func TestEveryAlertHasItsPage(t *testing.T) {
	t.Parallel()
	all := alerts(t)
	index, err := os.ReadFile(docs + "/runbook/README.md")
	require.NoError(t, err)
	for name, r := range all {
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], name)
		require.Contains(t, []string{"", "broker", "database", "both"}, r.Labels["needs"], name)
		require.NotEmpty(t, r.Annotations["summary"], name)
		require.NotEmpty(t, r.Annotations["description"], name)
		require.Equal(t, "https://github.com/lapsehq/lapse/blob/main/docs/runbook/"+name+".md", r.Annotations["runbook_url"])
		page, err := os.ReadFile(docs + "/runbook/" + name + ".md")
		require.NoError(t, err)
		require.Contains(t, string(page), "# "+name+"\n\n**"+r.Labels["severity"]+"**: ")
		for _, section := range []string{"What it means", "What users see", "Look first", "How it ends"} {
			require.Contains(t, string(page), "\n## "+section+"\n", name)
		}
		require.Contains(t, string(index), "| ["+name+"]("+name+".md) | "+r.Labels["severity"]+" |")
	}
	pages, err := filepath.Glob(docs + "/runbook/*.md")
	require.NoError(t, err)
	require.Len(t, pages, len(all)+1)
}

// What nobody asks for a job's name fits whatever scrapes.
func TestRulesAskForNoJob(t *testing.T) {
	t.Parallel()
	for _, r := range rules(t) {
		require.NotContains(t, r.Expr, "job=")
	}
}

var (
	family    = regexp.MustCompile(`\blapse_[a-z0-9_]+\b`)
	histogram = regexp.MustCompile(`_(bucket|sum|count)$`)
	databases = regexp.MustCompile(`^lapse_(t_|demo|verify|sandbox|stack$)`)
)

// Every metric that rules, dashboard and documents name is one that the workers have: docs/metrics.md is held against real ones by
// lapsectl verify deploy.
func TestEveryMetricThatIsNamedExists(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(docs + "/metrics.md")
	require.NoError(t, err)
	known := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(lapse_[a-z0-9_]+)` \\|").FindAllStringSubmatch(string(body), -1) {
		known[row[1]] = true
	}
	mechanisms, err := filepath.Glob("../../delay/*.go") // what only some installations have
	require.NoError(t, err)
	for _, file := range mechanisms {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\blapse_delay_[a-z_]+`).FindAllString(string(body), -1) {
			known[name] = true
		}
	}
	for _, name := range designed() {
		require.True(t, known[name], "%s is promised, and not in docs/metrics.md", name)
	}
	files, err := filepath.Glob(docs + "/*.md")
	require.NoError(t, err)
	pages, err := filepath.Glob(docs + "/runbook/*.md")
	require.NoError(t, err)
	for _, file := range append(append(files, pages...), rulesFile, testsFile, board) {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range family.FindAllString(string(body), -1) {
			if databases.MatchString(name) {
				continue
			}
			require.True(t, known[name] || known[histogram.ReplaceAllString(name, "")], "%s names %s, which no worker has", file, name)
		}
	}
}

// designed are the names that were settled before there was any code.
func designed() []string {
	return strings.Fields(`lapse_issued_total lapse_transitions_total lapse_expiry_lateness_seconds lapse_expired_early_total lapse_overdue_coupons
		lapse_overdue_oldest_seconds lapse_triggers_total lapse_reschedules_total lapse_batch_size lapse_stage_seconds lapse_outbox_rows
		lapse_outbox_oldest_seconds lapse_sweep_recovered_total lapse_planner_lag_seconds lapse_locks lapse_notices_total
		lapse_notices_suppressed_total lapse_clock_offset_seconds lapse_forecast_coupons lapse_parked_messages lapse_statement_seconds
		lapse_slow_statements_total lapse_unroutable_total lapse_events_unbound_total lapse_locks_overdue lapse_archive_lag_seconds
		lapse_reconcile_findings lapse_heartbeat_age_seconds lapse_provider_up lapse_build_info`)
}

func TestSelectors(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{`lapse_locks`, `lapse_x_total{code="5xx",queue=~"[^.]+[.]due{1}"}`, `rabbitmq_detailed_queue_messages{queue="a"}`},
		watch.Selectors(`sum by (code) (rate(lapse_x_total{code="5xx",queue=~"[^.]+[.]due{1}"}[5m])) / max(lapse_locks) > 3 and on () lapse_locks offset 1h
			or min_over_time(rabbitmq_detailed_queue_messages{queue="a"}[3m])`))
	require.Equal(t, []string{"lapse:late:ratio_rate5m"}, watch.Selectors("lapse:late:ratio_rate5m > 0.144"))
}

func TestTheDashboardAsksOfAllWorkers(t *testing.T) {
	t.Parallel()
	queries, err := watch.ReadDashboard(board)
	require.NoError(t, err)
	require.Greater(t, len(queries), 40)
	for _, q := range queries {
		require.NotContains(t, q.Expr, "$__", q.Panel)
	}
}
