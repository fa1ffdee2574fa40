package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

func demoResult() demo.Result {
	return demo.Result{
		Granting: 4130 * time.Millisecond,
		Report: audit.Report{
			Coupons: 10_000, Expired: 10_000, Users: 3000, Transitions: 10_000, Events: 10_000,
			Notices: 3000, CouponsInNotices: 10_000, UsersWithNotice: 3000, Waiting: 300, NextWaiting: 2 * time.Minute,
			TransitionLateness: audit.Lateness{P50: 180, P95: 300, P99: 340, Max: 600}, ExampleID: 4711,
			Example: "你有3张优惠券已过期 / 3 of your coupons have expired",
		},
	}
}

func TestDemoTable(t *testing.T) {
	t.Parallel()
	s := &system{executable: "/somewhere/bin/lapsectl", dir: "/somewhere"}
	r := demoResult()
	r.Kept = &demo.Kept{Management: "http://127.0.0.1:35673", User: "lapse", Password: "abc"}
	require.Equal(t, `  granted   10 000 coupons of 3 000 users, through RabbitMQ      4.1 s
  expired   10 000 / 10 000   early 0   twice 0   lost 0         audit by SQL and an independent consumer: PASS
  lateness  p50 0.18 s   p99 0.34 s   max 0.60 s                 (database clock)
  notices    3 000 to 3 000 users, e.g. "你有3张优惠券已过期 / 3 of your coupons have expired"
  waiting      300 coupons, next in 00:02:00   →  http://127.0.0.1:35673, user lapse, password abc
  try       bin/lapsectl explain 4711 · bin/lapsectl events tail · bin/lapsectl demo --kill broker · scripts/stack down
`, s.demoTable(demo.Config{}, r))
}

func TestDemoTableSaysWhatIsAmiss(t *testing.T) {
	t.Parallel()
	r := demoResult()
	r.Report.Expired, r.Report.NotExpired, r.Report.Early = 9999, 1, 2
	r.Failures = []string{"2 coupons early", "1 coupons lost"}
	r.Logs = "/x/.stack/log/demo-failed"
	table := (&system{}).demoTable(demo.Config{Kill: demo.Expirer}, r)
	require.Contains(t, table, "audit by SQL and an independent consumer: FAIL\n")
	require.Contains(t, table, "  killed    expirer; events heard twice 0, recovered by the sweep 0\n")
	require.Contains(t, table, "  amiss     2 coupons early\n            1 coupons lost\n  logs      /x/.stack/log/demo-failed\n")
	require.NotContains(t, table, "waiting")
}

func TestDemoJSONHasTheDocumentedFields(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "demo.json")
	require.NoError(t, (&demoCommand{JSON: path}).write(&system{}, demoResult()))
	body, err := os.ReadFile(path)
	require.NoError(t, err)
	doc, err := os.ReadFile("../../docs/demo.md")
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(body, &fields))
	for _, name := range []string{
		"coupons", "expired", "early", "not_expired", "transitions", "duplicate_transitions", "events", "duplicate_event_ids",
		"missing_events", "notices", "coupons_in_notices", "users_with_notice", "transition_lateness_ms", "event_lateness_ms",
		"throughput_per_s", "sweep_recovered", "waiting",
	} {
		require.Contains(t, fields, name)
	}
	for name := range fields {
		require.Contains(t, string(doc), "| `"+name+"` |")
	}
	require.Equal(t, []any{}, fields["failures"])
	require.Equal(t, true, fields["passed"])
}

func TestDemoRefusesBadFlagsAndOtherServers(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"STACK_DIR": t.TempDir(), "STACK_TOKEN": "x", "STACK_PORT_BASE": "1", "TEST_AMQP_URL": "amqp://u:p@192.0.2.1:673/lapse",
		"TEST_MANAGEMENT_URL": "http://u:p@192.0.2.1:674", "TEST_MYSQL_DSN": "u:p@tcp(192.0.2.1:307)/lapse",
		"STACK_MYSQL_ROOT_DSN": "u:p@tcp(192.0.2.1:307)/",
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"demo", "--help"}, exitOK, ""},
		{[]string{"demo", "--kill", "all"}, exitError, `must be one of "","publisher","expirer","notifier","broker" but got "all"`},
		{[]string{"demo", "--coupons", "0"}, exitError, "coupons: must be between 1 and 1000000, got 0"},
		{[]string{"demo"}, exitError, "192.0.2.1:"},
	} {
		var stdout, stderr bytes.Buffer
		s := newSystem(c.args)
		s.stdout, s.stderr = &stdout, &stderr
		s.lookup = func(name string) (string, bool) { v, ok := env[name]; return v, ok }
		require.Equal(t, c.code, run(t.Context(), s), "%v: %s", c.args, stderr.String())
		require.Contains(t, stderr.String(), c.says)
	}
}
