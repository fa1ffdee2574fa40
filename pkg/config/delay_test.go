package config_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/secret"
)

// The mechanism is one of four; zset needs to know where Redis is; what is wrong below is named by its whole path.
func TestDelayIsChecked(t *testing.T) {
	t.Parallel()
	c := config.DefaultCommon().Delay
	for _, m := range []string{config.MechanismLadder, config.MechanismWheel, config.MechanismSweep} {
		c.Mechanism = m
		require.NoError(t, c.Validate())
	}
	c.Mechanism = config.MechanismZSet
	require.ErrorContains(t, c.Validate(), "redis.url: must be set for the mechanism zset")
	c.Redis.URL = secret.New("rediss://:pass@redis.internal:6380/0")
	require.NoError(t, c.Validate())
	c.Mechanism, c.Redis.Batch, c.Wheel.Window = "clock", 0, time.Millisecond
	err := c.Validate()
	for _, text := range []string{
		`mechanism: must be one of ladder, zset, wheel, sweep, got "clock"`, "redis.batch: must be between 1", "wheel.window: must be between 1s",
	} {
		require.ErrorContains(t, err, text)
	}
}
