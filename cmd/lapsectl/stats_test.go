package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func TestStats(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	id := c.template("--after=1h")
	require.Contains(t, c.ok("stats", id), "total  0        0")
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	template, err := parseID("template", id)
	require.NoError(t, err)
	event := func(coupons uint64, version uint32, from, to coupon.Status, at time.Time) coupon.Counted {
		return coupon.Counted{CouponID: coupons, Version: version, TemplateID: template, From: from, To: to, At: at, Value: 500}
	}
	_, err = c.store.CountEvents(c.ctx(), []coupon.Counted{
		event(1, 1, 0, coupon.Unused, at), event(2, 1, 0, coupon.Unused, at),
		event(1, 2, coupon.Unused, coupon.Used, at), event(1, 3, coupon.Used, coupon.Expired, at.Add(12*time.Hour)),
	})
	require.NoError(t, err)

	lines := strings.Split(c.ok("stats", id), "\n")
	require.Equal(t, []string{"2026-03-01", "2", "0", "0", "1", "0", "0", "0", "0", "1000", "500", "0", "0", "0", "0"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"2026-03-02", "0", "0", "0", "0", "1", "1", "0", "0", "0", "0", "500", "500", "0", "0"}, strings.Fields(lines[2]))
	require.Equal(t, []string{"total", "2", "0", "0", "1", "1", "1", "0", "0", "1000", "500", "500", "500", "0", "0"}, strings.Fields(lines[3]))
	require.Equal(t, "Values are minor units.", lines[4])

	var out statsJSON
	require.NoError(t, json.Unmarshal([]byte(c.ok("stats", id, "--from=2026-03-02", "--to=2026-03-02", "--json")), &out))
	day := dayJSON{Day: "2026-03-02", Refunded: 1, Expired: 1, RefundedValue: 500, ExpiredValue: 500}
	total := day
	total.Day = ""
	require.Equal(t, statsJSON{TemplateID: id, Currency: "CNY", Days: []dayJSON{day}, Total: total}, out)

	r := c.run("stats", "77")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "there is no template 77")
	r = c.run("stats", id, "--from=March", "--to=2026-03-01T00:00:00Z")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, `--from: must be a day, YYYY-MM-DD, got "March"`)
	require.Contains(t, r.stderr, `--to: must be a day`)
	r = c.run("stats", id, "--from=2026-03-02", "--to=2026-03-01")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--to: must not be before --from (2026-03-02), got 2026-03-01")
}
