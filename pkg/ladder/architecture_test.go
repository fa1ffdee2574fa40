package ladder_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/ladder"
)

var update = flag.Bool("update", false, "write the drawing into docs/architecture.md")

// The drawing in the documents is the plan's own.
func TestArchitectureShowsThePlan(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/architecture.md", "<!-- topology:begin -->\n", "<!-- topology:end -->"
	l, err := ladder.New(ladder.DefaultConfig())
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), begin)
	require.True(t, ok)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	want := before + begin + "```mermaid\n" + l.Plan().Mermaid() + "```\n" + end + after
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	require.Equal(t, want, string(text), "run with -update")
}
