package planner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/planner"
)

func TestRemindConfig(t *testing.T) {
	t.Parallel()
	r, err := planner.DefaultRemindConfig().Reminders()
	require.NoError(t, err)
	require.Equal(t, map[string]time.Duration{"-3d": 36 * time.Hour, "-1d": 36 * time.Hour, "-30m": 12 * time.Hour}, r.Leads)
	require.Equal(t, time.UTC, r.Zone)

	c := planner.DefaultRemindConfig()
	c.Offsets, c.Zone = []string{"-1d@10:00", "-23h"}, "Asia/Shanghai"
	r, err = c.Reminders()
	require.NoError(t, err)
	require.Equal(t, map[string]time.Duration{"-1d@10:00": 36 * time.Hour, "-23h": 12 * time.Hour}, r.Leads)
	require.Equal(t, "Asia/Shanghai", r.Zone.String())

	c.Offsets = nil
	r, err = c.Reminders()
	require.NoError(t, err)
	require.Empty(t, r.Offsets, "nobody is reminded")

	for _, bad := range []struct {
		want   string
		change func(*planner.RemindConfig)
	}{
		{`offsets[1]: must be like -3d, -30m or -1d@10:00, got "3d"`, func(c *planner.RemindConfig) { c.Offsets = []string{"-1d", "3d"} }},
		{`offsets[0]: must be like -3d, -30m or -1d@10:00, got "-0m"`, func(c *planner.RemindConfig) { c.Offsets = []string{"-0m"} }},
		{`offsets[0]: a time of day goes with whole days, as in -1d@10:00, got "-2h@10:00"`, func(c *planner.RemindConfig) { c.Offsets = []string{"-2h@10:00"} }},
		{`offsets[0]: must be at most -90d, got "-2161h"`, func(c *planner.RemindConfig) { c.Offsets = []string{"-2161h"} }},
		{`offsets: names the same instant twice, got "-60m"`, func(c *planner.RemindConfig) { c.Offsets = []string{"-1h", "-60m"} }},
		{`offsets: must name at most 8, got 9`, func(c *planner.RemindConfig) {
			c.Offsets = []string{"-1d", "-2d", "-3d", "-4d", "-5d", "-6d", "-7d", "-8d", "-9d"}
		}},
		{`zone: must be a name of the tz database such as Asia/Shanghai, got "Mars/Olympus"`, func(c *planner.RemindConfig) { c.Zone = "Mars/Olympus" }},
		{`zone: must be a name of the tz database such as Asia/Shanghai, got ""`, func(c *planner.RemindConfig) { c.Zone = "" }},
		{`zone: must be a name of the tz database such as Asia/Shanghai, got "Local"`, func(c *planner.RemindConfig) { c.Zone = "Local" }},
		{`lead_days: must be between 1s and 720h0m0s, got 0s`, func(c *planner.RemindConfig) { c.LeadDays = 0 }},
		{`lead: must be between 1s and 720h0m0s, got 721h0m0s`, func(c *planner.RemindConfig) { c.Lead = 721 * time.Hour }},
		{"lead_days: must be between 1s and 720h0m0s, got -1s\nlead: must be between 1s and 720h0m0s, got 1ms", func(c *planner.RemindConfig) { c.LeadDays, c.Lead = -time.Second, time.Millisecond }},
	} {
		c := planner.DefaultRemindConfig()
		bad.change(&c)
		require.EqualError(t, c.Validate(), bad.want)
	}
}
