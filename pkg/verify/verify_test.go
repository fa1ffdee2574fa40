package verify_test

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/verify"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOpsHold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		op           verify.Op
		value, bound float64
		holds        bool
	}{
		{verify.Equal, 3, 3, true},
		{verify.Equal, 3, 4, false},
		{verify.AtMost, 3, 3, true},
		{verify.AtMost, 4, 3, false},
		{verify.AtLeast, 3, 3, true},
		{verify.AtLeast, 2, 3, false},
		{verify.Below, 2.9, 3, true},
		{verify.Below, 3, 3, false},
		{"!=", 1, 2, false},
		{verify.Equal, math.NaN(), 0, false},
	} {
		require.Equal(t, c.holds, c.op.Holds(c.value, c.bound), "%v %s %v", c.value, c.op, c.bound)
	}
	require.Equal(t, "horizon.planner_share 0.5 >= 0.25", verify.Check{Name: "horizon.planner_share", Value: 0.5, Bound: 0.25, Op: verify.AtLeast}.String())
}

// The JSON is documented field by field, and every section is in the document's table.
func TestTheDocumentHasFieldsAndSections(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/verify.md")
	require.NoError(t, err)
	r := verify.Result{
		Verify: "walk", Seed: 7, Commit: "abc", Servers: rig.Versions{Broker: "RabbitMQ 3.10.8", Database: "MariaDB 10.11.19"},
		Checks: []verify.Check{{Name: "demo.early", Value: 1, Bound: 0, Op: verify.Equal}}, Errors: []string{"zones: it rained"},
	}
	body, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"verify":"walk","seed":7,"commit":"abc","servers":{"broker":"RabbitMQ 3.10.8","database":"MariaDB 10.11.19"},"passed":false,
		"checks":[{"name":"demo.early","value":1,"bound":0,"op":"==","ok":false}],"errors":["zones: it rained"]}`, string(body))
	var fields map[string]any
	require.NoError(t, json.Unmarshal(body, &fields))
	for name := range fields {
		require.Contains(t, string(doc), "| `"+name+"` |")
	}
	for _, section := range slices.Concat(verify.WalkSections(), verify.CheckoutSections(), verify.BackstopsSections(), verify.DeploySections(),
		verify.ClusterSections(), verify.OverloadSections(), verify.SoakSections()) {
		require.Regexp(t, "(?m)^\\|[^|]*`"+section+"`[^|]*\\|", string(doc))
	}
}

func TestBadConfigurationsAreNamed(t *testing.T) {
	t.Parallel()
	err := verify.Config{Coupons: 99, Only: []string{"demo", "rain"}}.Validate()
	require.ErrorContains(t, err, "coupons: must be between 100 and 100000, got 99")
	require.ErrorContains(t, err, "only: must be of demo, zones,")
	require.ErrorContains(t, err, `got "rain"`)
	require.NoError(t, verify.Config{Coupons: 100, Only: verify.WalkSections()}.Validate())
	require.Equal(t, "kill-broker", verify.WalkSections()[len(verify.WalkSections())-1], "what takes the broker from everybody comes last")
	require.NotContains(t, strings.Join(slices.Concat(verify.WalkSections(), verify.CheckoutSections()), ""), ",")
	_, err = verify.Backstops(t.Context(), verify.Config{Only: []string{"rain"}}, "huge")
	require.ErrorContains(t, err, `scale: must be small or full, got "huge"`)
	require.ErrorContains(t, err, "only: must be of rebuild,")
	_, err = verify.Deploy(t.Context(), verify.Config{}, verify.ScaleSmall, "LapseRains")
	require.ErrorContains(t, err, "alert: must be of LapseLatenessBurnsFast,")
	_, err = verify.Deploy(t.Context(), verify.Config{}, "huge", "")
	require.ErrorContains(t, err, `scale: must be small or full, got "huge"`)
	_, err = verify.Cluster(t.Context(), verify.Config{Only: []string{"rain"}}, "huge")
	require.ErrorContains(t, err, `scale: must be small or full, got "huge"`)
	require.ErrorContains(t, err, "only: must be of members,")
	_, err = verify.Cluster(t.Context(), verify.Config{}, verify.ScaleSmall)
	require.ErrorContains(t, err, "the stack's broker has 1 of 3 nodes: scripts/stack up --nodes 3")
	_, err = verify.Overload(t.Context(), verify.Config{}, "huge")
	require.ErrorContains(t, err, `scale: must be small or full, got "huge"`)
	_, err = verify.Soak(t.Context(), verify.Config{Only: []string{"rain"}}, time.Second, nil)
	require.ErrorContains(t, err, "for: must be between 1m0s and 168h0m0s, got 1s")
	require.ErrorContains(t, err, "only: must be of steady,")
	_, err = verify.Checkout(t.Context(), verify.Config{Only: []string{"speed", "rain"}})
	require.ErrorContains(t, err, "only: must be of parallel-locks,")
	require.ErrorContains(t, err, `got "rain"`)
}
