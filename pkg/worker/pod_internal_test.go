package worker

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The plan is held by name: two publishers of one host that shared theirs would take it from each other at every look.
func TestProcessesOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "pod-1", strings.Repeat("n", 253)} {
		a, b := podName(name), podName(name)
		require.NotEqual(t, a, b)
		require.LessOrEqual(t, len(a), 64, "what the columns hold")
		require.True(t, strings.HasPrefix(a, name[:min(len(name), 48)]))
	}
}
