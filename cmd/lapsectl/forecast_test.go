package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The same campaign, once for each class: what a midnight holds, and what spreading makes of it.
func TestForecastShowsAMidnightSpikeAndItsFlattening(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	require.Contains(t, c.ok("forecast"), "not known yet")
	const n = 1000
	require.NoError(t, c.store.PutDrainRate(c.ctx(), 100, true))
	midnight := time.Now().UTC().Truncate(day).Add(3 * day)
	ids := map[coupon.Precision]string{}
	for _, p := range []coupon.Precision{coupon.Exact, coupon.Standard, coupon.Relaxed} {
		ids[p] = c.template("--never", "--precision="+string(p))
		id, err := parseID("", ids[p])
		require.NoError(t, err)
		grants := make([]coupon.Grant, n)
		for i := range grants {
			grants[i] = coupon.Grant{Key: fmt.Sprintf("%s:%d", p, i), TemplateID: id, UserID: "u", ExpiresAt: midnight}
		}
		_, err = c.store.Issue(c.ctx(), grants)
		require.NoError(t, err)
	}
	window := []string{"--by=minute", "--from=" + midnight.Format(time.RFC3339), "--to=" + midnight.Add(15*time.Minute).Format(time.RFC3339)}
	for p, want := range map[coupon.Precision]struct{ minutes, fullest int64 }{
		coupon.Exact: {1, n}, coupon.Standard: {1, 50}, coupon.Relaxed: {9, 12},
	} {
		var x forecastJSON
		require.NoError(t, json.Unmarshal([]byte(c.ok(append([]string{"forecast", "--json", "--template=" + ids[p]}, window...)...)), &x))
		require.EqualValues(t, n, x.Unused)
		require.Equal(t, map[string]int64{"CNY": 500 * n}, x.Value)
		require.True(t, x.Complete)
		require.Len(t, x.Buckets, 15)
		minutes := int64(0)
		for _, b := range x.Buckets {
			if b.Unused > 0 {
				minutes++
			}
		}
		require.Equal(t, want.minutes, minutes, p)
		fullest := c.db.Int(t, `SELECT MAX(n) FROM (SELECT COUNT(*) n FROM coupon WHERE template_id = ? GROUP BY due_at) x`, ids[p])
		require.LessOrEqual(t, fullest, want.fullest, p)
		t.Logf("%s: %d coupons of one midnight come due in %d minutes, %d in the fullest second", p, n, minutes, fullest)
	}
	text := c.ok(append([]string{"forecast"}, window...)...)
	require.Contains(t, text, "PEAK")
	require.Contains(t, text, "100 coupons/s (measured, 1 expirers)")
	require.Contains(t, text, "██")
	require.NotContains(t, c.ok(append([]string{"forecast", "--rate=100000"}, window...)...), "PEAK")

	var capped forecastJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok(append([]string{"forecast", "--json", "--cap=10"}, window...)...)), &capped))
	require.False(t, capped.Complete)
	require.Equal(t, "at_least", capped.Buckets[0].Counted)
	require.Contains(t, c.ok("forecast", "--by=day"), "3000 unused")
	for _, bad := range [][]string{{"--by=week"}, {"--from=tomorrow"}, {"--template=x"}, {"--to=2020-01-01T00:00:00Z"}, {"--cap=0"}, {"--rate=Inf", "--json"}, {"--rate=NaN"}, {"--rate=0"}} {
		require.Equal(t, exitError, c.run(append([]string{"forecast"}, bad...)...).code, bad)
	}
}
