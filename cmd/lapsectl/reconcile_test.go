package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func (c *scene) reconciled(code int, args ...string) reconcileJSON {
	c.Helper()
	r := c.run(append([]string{"reconcile", "--json"}, args...)...)
	require.Equal(c, code, r.code, r.stderr)
	var x reconcileJSON
	require.NoError(c, json.Unmarshal([]byte(r.stdout), &x), r.stdout)
	return x
}

// old makes everything look as if it had happened two hours ago.
func (c *scene) old() {
	c.Helper()
	c.db.Exec(c, `UPDATE coupon SET granted_at = granted_at - INTERVAL 2 HOUR`)
	c.db.Exec(c, `UPDATE coupon_history SET at = at - INTERVAL 2 HOUR`)
	c.db.Exec(c, `DELETE FROM outbox`)
	for done := false; !done; {
		var err error
		_, done, err = c.store.SeedStats(c.ctx(), 500)
		require.NoError(c, err)
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h", "--quota=100")
	c.ok("grant", "--template", template, "--user=u", "--batch=b", "--count=8")
	_, made := c.issue()
	require.Equal(t, 8, made)
	c.old()

	require.Contains(t, c.ok("reconcile"), "The books agree: 8 coupons.")
	x := c.reconciled(exitOK)
	require.Empty(t, x.Findings)
	require.Equal(t, []templateLine{{TemplateID: template, Granted: 8, Unused: 8, Taken: 8, Statistics: 8}}, x.Templates)

	c.db.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP(0) - INTERVAL 1 HOUR, due_at = expires_at WHERE id = 3`)
	c.db.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.expires_at = c.expires_at, h.due_at = c.due_at WHERE c.id = 3`)
	c.db.Exec(t, `UPDATE template_stock SET taken = 11`)
	file := filepath.Join(t.TempDir(), "orders.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"order_id":"o1","state":"paid","coupon_ids":["5"],"at":"2026-01-01T00:00:00Z"}`), 0o600))
	r := c.run("reconcile", "--orders", file)
	require.Equal(t, exitMiss, r.code)
	for _, text := range []string{"overdue: 1 found", "coupon 3", "quota: 1 found", "8 taken", "11 taken", "order_paid: 1 found", "order o1 coupon 5", "1 orders compared"} {
		require.Contains(t, r.stdout, text)
	}
	require.Contains(t, r.stderr, "3 findings are left; overdue, stuck_lock, quota and statistics can be mended")

	require.Contains(t, c.run("reconcile", "--repair").stderr, "--reason: must not be empty")
	require.Contains(t, c.run("reconcile", "--repair", "--reason=r", "--shard=1/2").stderr, "--repair: must not be given with --shard")
	x = c.reconciled(exitOK, "--repair", "--reason=drill", "--actor=ann")
	require.Zero(t, x.Left)
	require.Len(t, x.Findings, 2)
	require.EqualValues(t, 1, c.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE cause = 'admin' AND to_status = 4 AND actor = 'ann' AND reason = 'drill'`))
	deeds, err := c.store.Deeds(c.ctx(), deedReconcile, 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 2)
	require.JSONEq(t, `{"overdue":1,"quota":1}`, string(deeds[0].Detail.(json.RawMessage)))

	r = c.run("reconcile", "--once", "--orders", file)
	require.Equal(t, exitMiss, r.code)
	require.Regexp(t, `^\{.*"left":1.*\}\n$`, r.stdout)
	require.NoError(t, os.WriteFile(file, []byte("{}\n"), 0o600))
	r = c.run("reconcile", "--orders", file)
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "orders: line 1: order_id: must have 1 to 128 bytes")
	require.Equal(t, exitError, c.run("reconcile", "--orders=/nowhere").code)
	require.Equal(t, exitError, c.run("reconcile", "--template=0").code)
}

func TestArchiveOnce(t *testing.T) {
	t.Parallel()
	c := newScene(t)
	template := c.template("--after=1h")
	c.ok("grant", "--template", template, "--user=u", "--batch=b", "--count=6")
	c.issue()
	c.db.Exec(t, `DELETE FROM outbox`)
	c.db.Exec(t, `UPDATE coupon SET status = 3, used_at = UTC_TIMESTAMP(3) - INTERVAL 40 DAY WHERE id <= 4`)
	c.db.Exec(t, `UPDATE coupon SET used_at = UTC_TIMESTAMP(3) - INTERVAL 20 DAY WHERE id = 4`)
	archived := func(code int, args ...string) archiveJSON {
		t.Helper()
		r := c.run(append([]string{"archive", "--once", "--json"}, args...)...)
		require.Equal(t, code, r.code, r.stderr)
		var x archiveJSON
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &x), r.stdout)
		return x
	}
	x := archived(exitOK, "--shard=2/3")
	require.Equal(t, archiveJSON{Moved: 1, Steps: 1, Complete: true, Shard: "2/3", TookMS: x.TookMS}, x)
	require.Equal(t, 2, archived(exitOK).Moved)
	require.Contains(t, c.ok("archive", "--once", "--after=240h"), "archived 1 coupons")
	require.Contains(t, c.ok("explain", "1"), "archived")
	require.Zero(t, archived(exitOK).Moved)
	r := c.run("archive", "--once", "--after=1s")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "--after: archive.after: must be between 1h0m0s")
	require.Equal(t, exitError, c.run("archive").code)
	require.Equal(t, exitError, c.run("archive", "--once", "--budget=0s").code)
	require.Equal(t, exitError, c.run("archive", "--once", "--shard=3/2").code)
}
