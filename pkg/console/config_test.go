package console_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/console"
)

func TestEveryFaultOfTheConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	require.NoError(t, console.DefaultConfig().Validate())
	good := console.DefaultConfig()
	good.Zone = "Asia/Shanghai"
	require.NoError(t, good.Validate())
	bad := console.Config{Enabled: true, Every: time.Millisecond, Timeout: time.Hour, Rows: 1, PerSecond: 0, Burst: 1, Zone: "Asia/Atlantis"}
	err := bad.Validate()
	for _, fault := range []string{
		"every: must be between 1s and 1m, got 1ms", "timeout: must be between 1s and 30s, got 1h0m0s", "rows: must be between 1000 and 50000000, got 1",
		"per_second: must be between 1 and 1000, got 0", "burst: must be between 10 and 10000, got 1",
		`zone: must be empty or a name of the tz database such as Asia/Shanghai, got "Asia/Atlantis"`,
	} {
		require.ErrorContains(t, err, fault)
	}
	good.Zone = "Local"
	require.ErrorContains(t, good.Validate(), `zone: must be empty or a name of the tz database such as Asia/Shanghai, got "Local"`)
	bad.Enabled = false
	require.NoError(t, bad.Validate(), "what is not used may be anything")
}
