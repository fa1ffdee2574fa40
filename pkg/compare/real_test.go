package compare_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/compare"
	"github.com/lapsehq/lapse/pkg/rig"
)

type logged struct{ *testing.T }

func (l logged) Step(text string) { l.Log(text) }

// Real workers on real servers, killed and all. Nothing here says anything of lateness or speed, since tests share the machine.
func TestTwoMechanismsAreCompared(t *testing.T) {
	t.Parallel()
	bin := t.TempDir() + "/"
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin, "../../cmd/publisher", "../../cmd/expirer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	stack, err := rig.LoadStack(os.LookupEnv)
	require.NoError(t, err)
	const coupons = 300
	r, err := compare.Run(t.Context(), compare.Config{
		Stack: stack, Bin: bin, Commit: "test", Coupons: coupons, Rounds: 1, Mechanisms: []string{"sweep", "zset"}, Seed: 1, View: logged{t},
	})
	require.NoError(t, err)
	require.Empty(t, r.Errors)
	require.True(t, r.Passed, "%+v", r.Runs)
	require.NotEmpty(t, r.Servers.Redis)
	require.Len(t, r.Mechanisms, 2)
	for _, m := range r.Mechanisms {
		require.Equal(t, 1, m.Rounds)
		require.Equal(t, [...]int{50, coupons, coupons}, [...]int{m.Steady.Coupons, m.Spike.Coupons, m.Kill.Coupons}, m.Name)
		require.Positive(t, m.Spike.PerS, m.Name)
		require.Positive(t, m.Kill.AtS, m.Name)
		require.Len(t, m.Kill.CurveMS, 101, m.Name)
		require.Positive(t, m.Costs["workers"].CPU(), m.Name)
		if m.Name == "sweep" {
			require.Equal(t, coupons, m.Spike.Swept, "that is who finds them")
		}
	}
	require.NotContains(t, r.Mechanisms[1].Costs, "redis", "of who uses it only")
}
