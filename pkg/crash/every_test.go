//go:build proof

package crash_test

import (
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// scene makes one worker pass a point, and says what must be found after it was stopped there.
type scene struct {
	point  string // as it is armed, without its side
	worker string // who is armed; empty: the lane's
	pass   func(v *visit)
}

// lane is a worker and the scenes in which it is stopped, one after the other. Lanes of a stage go side by side.
type lane struct {
	worker string
	scenes []scene
	last   func(w *world) // what had to wait until nobody is stopped any more; may be nil
}

// stage is an installation with its lanes.
type stage struct {
	name  string
	env   func(w *world, role string) map[string]string // of its workers; may be nil
	runs  []string                                      // who runs besides the lanes' workers
	rings []string                                      // keys of the triggers that are heard, as bound to the ladder
	post  bool                                          // with a mail server and providers
	begin func(w *world)                                // before the first stop; may be nil
	lanes []lane
}

func stages() []*stage { return []*stage{intake(), plans(), checkout(), ends(), notices()} }

var sides = []string{"before", "after"} //nolint:gochecknoglobals // constant

// Every point of the list is passed by a real process that stops itself with SIGKILL exactly before it, and another time exactly
// behind it; it is started again, and what is found afterwards is what the list says. Rows, history, events and messages of each
// installation are then held against what was asked for. One visit alone: -run 'TestEveryPoint/ends/commit_sweep_before'.
func TestEveryPoint(t *testing.T) {
	t.Parallel()
	all := stages()
	in := make(map[string]string)
	for _, s := range all {
		for _, l := range s.lanes {
			for _, sc := range l.scenes {
				require.Empty(t, in[sc.point], "%s is in two stages", sc.point)
				in[sc.point] = s.name
			}
		}
	}
	for _, p := range crash.Points() {
		require.Contains(t, in, p.String(), "nobody is stopped at this point")
	}
	require.Len(t, in, len(crash.Points()), "scenes of points that are not on the list")

	stack, bin := testenv.Servers(t), build(t)
	var running sync.WaitGroup
	for _, s := range all {
		running.Go(func() { t.Run(s.name, func(t *testing.T) { s.run(t, stack, bin) }) })
	}
	running.Wait()
}

// build makes the programs that stop themselves.
func build(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-tags", "crashpoints", "-o", bin+"/", "../../cmd/...").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}
