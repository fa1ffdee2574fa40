package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func (c *scene) swept(code int, args ...string) sweepJSON {
	c.Helper()
	r := c.run(append([]string{"sweep", "--once", "--json"}, args...)...)
	require.Equal(c, code, r.code, r.stderr)
	var x sweepJSON
	require.NoError(c, json.Unmarshal([]byte(r.stdout), &x), r.stdout)
	return x
}

func TestSweepOnce(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	c.ok("grant", "--template", template, "--user=u", "--batch=b", "--count=8")
	_, made := c.issue()
	require.Equal(t, 8, made)
	c.db.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP() - INTERVAL 10 MINUTE, due_at = UTC_TIMESTAMP() - INTERVAL 10 MINUTE WHERE id <= 6`)

	x := c.swept(exitOK, "--shard=2/3") // ids 1 and 4
	require.Equal(t, sweepJSON{Settled: 2, Expired: 2, Cutoff: x.Cutoff, Shard: "2/3", TookMS: x.TookMS}, x)
	require.EqualValues(t, 2, c.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND id IN (1, 4)`))

	// While the fleet has stopped for the clock nothing is settled.
	report := coupon.ClockReport{Pod: "p", Role: "expirer", Tripped: true, Since: time.Now(), Anchored: time.Now()}
	require.NoError(t, c.store.ReportClock(c.ctx(), report))
	r := c.run("sweep", "--once", "--json")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "database clock ahead")
	require.Empty(t, r.stdout)
	report.Tripped = false
	require.NoError(t, c.store.ReportClock(c.ctx(), report))

	// A row that cannot be changed does not keep the others.
	c.db.Exec(t, `INSERT INTO coupon_history SELECT coupon_id, 2, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason,
		trigger_id, origin, trace, lock_until, previous FROM coupon_history WHERE coupon_id = 2`)
	x = c.swept(exitMiss)
	require.Equal(t, [3]int{3, 0, 1}, [3]int{x.Expired, x.Unlocked, x.Failed})
	c.db.Exec(t, `DELETE FROM coupon_history WHERE coupon_id = 2 AND version = 2`)
	require.Contains(t, c.ok("sweep", "--once"), "expired 1, unlocked 0, failed 0")
	require.EqualValues(t, 6, c.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4 AND cause = 'sweep'`))
	x = c.swept(exitOK)
	require.Zero(t, x.Settled)

	for _, bad := range []string{"0/3", "4/3", "1", "1/9999", "a/b", "-1/2"} {
		r := c.run("sweep", "--once", "--shard="+bad)
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "--shard: must be I/N")
	}
	require.Equal(t, exitError, c.run("sweep").code)
}
