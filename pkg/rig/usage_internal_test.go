package rig

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatAProcessUses(t *testing.T) {
	t.Parallel()
	const memory = "Name:\tbeam.smp\nVmHWM:\t    3072 kB\nVmRSS:\t    2048 kB\n"
	u, err := usageIn("7054 (beam) smp) S 1 7054 7054 0 -1 4194304 345406 529 0 1 3928 2356 1 3 20 0 20 0 7489628 2576420864 89124 1844\n", memory)
	require.NoError(t, err)
	require.Equal(t, Usage{CPU: 62*time.Second + 840*time.Millisecond, Resident: 2 << 20, Peak: 3 << 20}, u)
	for _, bad := range [][2]string{
		{"", ""},
		{"1 (a) S 1", memory},
		{"1 (a) S 1 1 1 1 1 1 1 1 1 1 x 1", memory},
		{"1 (a) S 1 1 1 1 1 1 1 1 1 1 1 1", "VmRSS:\t 1 kB\n"},
		{"1 (a) S 1 1 1 1 1 1 1 1 1 1 1 1", "VmHWM:\t 1 kB\nVmRSS:\t 99999999999999999999 kB\n"},
	} {
		_, err := usageIn(bad[0], bad[1])
		require.Error(t, err, "%q", bad)
	}
	own, err := usageOf(os.Getpid())
	require.NoError(t, err)
	require.Positive(t, own.Resident)
	require.GreaterOrEqual(t, own.Peak, own.Resident)
}
