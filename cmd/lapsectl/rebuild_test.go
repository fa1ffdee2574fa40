package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func (y *layout) rebuilt(args ...string) rebuildJSON {
	y.Helper()
	var x rebuildJSON
	require.NoError(y, json.Unmarshal([]byte(y.ok(append([]string{"rebuild", "--reason=broker lost", "--json"}, args...)...)), &x))
	return x
}

// All queues are gone; a rebuild that is killed in the middle and gone on with, and another while the expirer runs, bring
// every trigger back: each coupon comes once, none early, and none by the sweep alone.
func TestRebuildAfterALostBroker(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", bin+"/", ".", "../expirer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	db := testenv.NewDatabase(t)
	db.Store(t)
	const unused, locked, page = 4000, 300, 1000
	// The sweep keeps away from what was not overdue: it expires because it was rung for.
	y := newLayout(t, db, "LAPSE__ADMIN__ADDRESS=127.0.0.1:0", "LAPSE__EXPIRY__SWEEP__GRACE=30m", "LAPSE__LOG__LEVEL=warn")
	plant(t, db, 1, unused, coupon.Unused, func(i int) int { return 30 + i%20 })
	plant(t, db, 5001, locked, coupon.Locked, func(i int) int { return 30 + i%10 })
	plant(t, db, 6001, 10, coupon.Unused, func(int) int { return -3600 }) // the sweep's

	x := y.rebuilt("--dry-run")
	require.True(t, x.DryRun)
	require.Equal(t, [3]int64{unused, locked, 10}, [3]int64{x.Expires, x.Unlocks, x.Overdue})
	x = y.rebuilt()
	require.True(t, x.Finished)
	require.Equal(t, [3]int64{unused, locked, 10}, [3]int64{x.Expires, x.Unlocks, x.Overdue})
	all := func() int { return y.depth(ladder.RoleWait, ladder.RoleDue) }
	testenv.Wait(t, "every trigger", func() bool { return all() == unused+locked })
	y.wipe()

	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "lapsectl"), "rebuild", "--reason=broker lost", "--rate=1000/s")
	cmd.Env = append(os.Environ(), y.environ...)
	require.NoError(t, cmd.Start())
	testenv.Wait(t, "a part of it", func() bool {
		var expires int64
		row := db.SQL.QueryRowContext(t.Context(), `SELECT COALESCE(MAX(JSON_VALUE(CONVERT(progress USING utf8mb4), '$.expires')), 0) FROM operation
			WHERE done = 0 AND progress <> ''`)
		require.NoError(t, row.Scan(&expires))
		return expires > 0 && expires < unused
	})
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	y.declared = time.Now()
	require.Less(t, all(), unused+locked)
	r := y.run("rebuild", "--reason=goes on", "--json")
	require.Equal(t, exitOK, r.code, r.stderr)
	require.Contains(t, r.stderr, "going on with the rebuild")
	x = rebuildJSON{}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &x))
	require.True(t, x.Resumed && x.Finished)
	require.Equal(t, [2]int64{unused, locked}, [2]int64{x.Expires, x.Unlocks})
	testenv.Wait(t, "every trigger again", func() bool { n := all(); return n >= unused+locked && n <= unused+locked+page })

	fleet := rig.NewFleet(t.TempDir(), filepath.Join(t.TempDir(), "run-"), rig.Program{
		Name: "expirer", Path: filepath.Join(bin, "expirer"), Env: append(os.Environ(), y.environ...),
	})
	require.NoError(t, fleet.Start(y.ctx()))
	var wg sync.WaitGroup
	wg.Go(func() { // on a full broker, beside the fleet
		x := y.rebuilt("--from-scratch")
		require.True(t, x.Finished && !x.Resumed)
	})
	wg.Wait()
	testenv.Wait(t, "every coupon", func() bool {
		return db.Int(t, `SELECT COUNT(*) FROM coupon WHERE id <= 6000 AND NOT (id <= 5000 AND status = 4 OR id > 5000 AND status = 1)`) == 0
	})
	// Only the unlocked coupons' own triggers, which the expirer's relay may have sent, are left.
	testenv.Wait(t, "the rest of the triggers", func() bool { return y.depth(ladder.RoleDue) == 0 })
	require.NoError(t, fleet.Stop(y.ctx()))
	y.declared = time.Now()

	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE id <= 5000 AND expired_at < expires_at`), "early")
	require.Equal(t, int64(unused), db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id <= 5000 AND to_status = 4 AND cause = 'ladder' AND origin = 'rebuild'`))
	require.Equal(t, int64(locked), db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id > 5000 AND to_status = 1 AND cause = 'lock'`))
	require.Equal(t, int64(unused+locked), db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id <= 6000`), "each once")
	require.Equal(t, int64(10), db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id > 6000 AND cause = 'sweep'`), "left to the sweep")
	require.Equal(t, int64(3), db.Int(t, `SELECT COUNT(*) FROM operator_log WHERE action = 'rebuild.done' AND actor = 'tester'`))
	require.Equal(t, int64(4), db.Int(t, `SELECT COUNT(*) FROM operator_log WHERE action = 'rebuild'`), "also the one that was killed")
}

// With a horizon only what lies before its end is published; the rest is the planner's. A mechanism without triggers has
// nothing to rebuild.
func TestRebuildKeepsToTheHorizon(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	require.NoError(t, s.SetHorizon(t.Context(), 2*time.Minute, time.Minute))
	y := newLayout(t, db, "LAPSE__LADDER__HORIZON=2m")
	plant(t, db, 1, 50, coupon.Unused, func(int) int { return 100 })
	plant(t, db, 101, 50, coupon.Unused, func(int) int { return 7200 })
	x := y.rebuilt()
	require.Equal(t, [2]int64{50, 50}, [2]int64{x.Expires, x.Beyond})
	require.NotEmpty(t, x.Until)
	require.Equal(t, 50, y.depth(ladder.RoleWait))
	for _, q := range y.plan.Queues {
		if q.Role != ladder.RoleWait {
			continue
		}
		d, ok, err := y.client.Get(y.ctx(), q.Name)
		require.NoError(t, err)
		if ok {
			trigger, err := event.DecodeTrigger(d.Body)
			require.NoError(t, err)
			require.Equal(t, coupon.OriginRebuild, trigger.Origin)
		}
	}

	before := len(y.environ)
	for _, m := range []string{"sweep", "wheel"} {
		y.environ = append(y.environ[:before], "LAPSE__DELAY__MECHANISM="+m)
		r := y.run("rebuild", "--reason=test")
		require.Equal(t, exitError, r.code)
		require.Contains(t, r.stderr, "there are no triggers")
	}
	y.environ = y.environ[:before]
	for _, args := range [][]string{{"--rate=0/s", "--reason=x"}, {"--rate=fast", "--reason=x"}, {"--reason="}, {}} {
		r := y.run(append([]string{"rebuild"}, args...)...)
		require.Equal(t, exitError, r.code, "%v: %s", args, r.stderr)
	}
}

// With triggers in Redis it is Redis that gets them again, and the broker is not asked.
func TestRebuildIntoRedis(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	db.Store(t)
	address := testenv.Redis(t)
	y := newLayout(t, db, "LAPSE__DELAY__MECHANISM=zset", "LAPSE__DELAY__REDIS__URL="+address.Reveal())
	plant(t, db, 1, 50, coupon.Unused, func(int) int { return 100 })
	c := delay.DefaultZSetConfig()
	c.URL = address
	z, err := delay.NewZSet(c, delay.ZSetDeps{Prefix: y.ladder.Prefix()})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, z.Forget(context.WithoutCancel(t.Context())))
		require.NoError(t, z.Close())
	})
	for range 2 {
		require.EqualValues(t, 50, y.rebuilt().Expires)
		n, err := z.Held(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 50, n, "again is no more")
	}
}
