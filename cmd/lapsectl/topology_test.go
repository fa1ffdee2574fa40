package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// findings are those of topology verify, as "kind name", sorted.
func (y *layout) findings(args ...string) []string {
	y.Helper()
	r := y.run(append([]string{"topology", "verify", "--json", "--stuck-after=0s"}, args...)...)
	var x verifyJSON
	require.NoError(y, json.Unmarshal([]byte(r.stdout), &x), r.stderr)
	require.Empty(y, x.Unseen)
	require.Equal(y, len(x.Findings) == 0, x.Clean)
	require.Equal(y, map[bool]int{true: exitOK, false: exitMiss}[x.Clean], r.code, r.stderr)
	var out []string
	for _, f := range x.Findings {
		out = append(out, strings.ReplaceAll(f.Kind+" "+f.Name, y.prefix, "P"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// What is planned is imported as definitions, and then nothing is missing.
func TestTopologyDefinitionsAreImported(t *testing.T) {
	t.Parallel()
	y := newLayout(t, testenv.NewDatabase(t))
	require.Contains(t, y.ok("topology", "plan"), y.prefix+".wait.m.11")
	r := y.run("topology", "plan", "--diff")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stderr, "35 queues")
	y.manage("POST", "/api/definitions/VHOST", y.ok("topology", "plan", "--definitions"))
	require.Equal(t, "nothing is missing\n", y.ok("topology", "plan", "--diff"))
	require.Empty(t, y.findings())
	require.Equal(t, "nothing was missing\n", y.ok("topology", "apply"))
	var x planJSON
	require.NoError(t, json.Unmarshal([]byte(y.ok("topology", "plan", "--json")), &x))
	require.Len(t, x.Queues, len(y.plan.Queues))
	require.Equal(t, y.prefix, x.Prefix)
}

// Each kind of damage is found, and what is missing is declared again.
func TestTopologyVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	y := newLayout(t, testenv.NewDatabase(t))
	// Made by somebody else, before us: another TTL, at most once, another way, and no catch-all.
	q := func(name string) (ladder.Queue, map[string]any) {
		for _, q := range y.ladder.Plan().Queues {
			if q.Name == y.prefix+name {
				return q, q.Args
			}
		}
		t.Fatal("no queue " + name)
		return ladder.Queue{}, nil
	}
	ttl, args := q(".wait.s.05")
	args["x-message-ttl"] = int64(4000)
	once, args := q(".wait.s.06")
	delete(args, "x-dead-letter-strategy")
	astray, args := q(".wait.s.07")
	args["x-dead-letter-exchange"] = y.prefix + ".events"
	require.NoError(t, y.client.Declare(y.ctx(), ladder.Plan{
		Exchanges: []ladder.Exchange{{Name: y.ladder.Due(), Type: "topic"}}, Queues: []ladder.Queue{ttl, once, astray},
	}))
	foreign := []string{"arguments P.wait.s.05", "at_most_once P.wait.s.06", "catch_all P.due", "dead_letter P.wait.s.07"}
	r := y.run("topology", "apply")
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Contains(t, r.stderr, "4 findings remain")
	require.Contains(t, r.stdout, y.prefix+".wait.s.04")
	require.Equal(t, foreign, y.findings())

	// Over AMQP alone the same is found.
	environ := y.environ
	y.environ = slices.DeleteFunc(slices.Clone(environ), func(v string) bool { return strings.HasPrefix(v, "LAPSE__BROKER__MANAGEMENT_URL=") })
	r = y.run("topology", "verify")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, "not looked at: bindings, policies")
	require.Regexp(t, `(?s)arguments .*at_most_once .*catch_all .*dead_letter `, r.stdout)
	y.environ = environ

	y.rest()
	bucket, _ := q(".wait.s.03")
	catchAll, _ := q(".unroutable")
	require.NoError(t, y.client.Delete(y.ctx(), ladder.Plan{Queues: []ladder.Queue{bucket, catchAll, ttl, once, astray}}))
	y.manage("DELETE", "/api/exchanges/VHOST/"+y.ladder.Due(), "")
	y.manage("DELETE", "/api/bindings/VHOST/e/"+y.prefix+".level.m/q/"+y.prefix+".wait.m.02/%2A.%2A.%2A.02.%23", "")
	y.manage("POST", "/api/bindings/VHOST/e/"+y.prefix+".enter/q/"+y.prefix+".wait.m.02", `{"routing_key":"#"}`)
	found := y.findings()
	for _, want := range []string{
		"missing P.wait.s.03", `missing P.level.s -> P.wait.s.03 (key "*.*.*.*.03.#")`, "missing P.due", "catch_all P.unroutable",
		`missing P.level.m -> P.wait.m.02 (key "*.*.*.02.#")`, `extra P.enter -> P.wait.m.02 (key "#")`,
	} {
		require.Contains(t, found, want)
	}
	r = y.run("topology", "plan", "--diff")
	require.Equal(t, exitMiss, r.code)
	require.Contains(t, r.stdout, y.prefix+".wait.s.03")
	require.NotContains(t, r.stdout, y.prefix+".wait.s.04")

	// apply mends what declaring can mend.
	r = y.run("topology", "apply", "--json")
	require.Equal(t, exitMiss, r.code, r.stderr)
	require.Equal(t, []string{`extra P.enter -> P.wait.m.02 (key "#")`}, y.findings())
	y.manage("DELETE", "/api/bindings/VHOST/e/"+y.prefix+".enter/q/"+y.prefix+".wait.m.02/%23", "")
	require.Empty(t, y.findings())
}

// A policy that overrides, a queue of another layout, somebody who consumes from a bucket, dead letters that stand still.
func TestTopologyVerifyFindsWhatIsInForce(t *testing.T) {
	t.Parallel()
	y := newLayout(t, testenv.NewDatabase(t))
	y.ok("topology", "apply")
	y.manage("PUT", "/api/policies/VHOST/"+y.prefix, `{"pattern":"^`+y.prefix+`\\.(wait\\.s\\.04|due\\.unlock)$","apply-to":"queues",
		"definition":{"max-length":1000,"message-ttl":100,"delivery-limit":20}}`)
	defer y.manage("DELETE", "/api/policies/VHOST/"+y.prefix, "")
	// Its dead letters have nowhere to go: at least once, they stay.
	stuck := ladder.Queue{Name: y.prefix + ".wait.s.99", Args: map[string]any{
		"x-queue-type": "quorum", "x-dead-letter-exchange": y.prefix + ".nowhere", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish", "x-message-ttl": int64(100),
	}}
	require.NoError(t, y.client.Declare(y.ctx(), ladder.Plan{Queues: []ladder.Queue{stuck}}))
	y.plan.Queues = append(y.plan.Queues, stuck)
	for range 5 {
		y.publish(broker.Message{Key: stuck.Name, ID: "m", Body: []byte("{}"), Mandatory: true})
	}
	want := []string{"extra P.wait.s.99", "policy P.due.unlock", "policy P.wait.s.04"}
	require.Equal(t, want, y.findings())
	testenv.Wait(t, "dead letters that the broker tells of", func() bool {
		states, err := y.client.QueueStates(y.ctx(), y.prefix)
		require.NoError(t, err)
		return slices.ContainsFunc(states, func(q broker.QueueState) bool { return q.Name == stuck.Name && q.Held() == 5 })
	})
	require.Equal(t, append(want, "stuck P.wait.s.99"), y.findings("--stuck-after=6s"))
}

// Everything that stands in one prefix goes to another: each trigger once, for as long as its row says.
func TestTopologyDrain(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	db.Store(t)
	old, now := newLayout(t, db), newLayout(t, db)
	const waiting, soon, locked, used = 1500, 100, 100, 50
	plant(t, db, 1, waiting, coupon.Unused, func(i int) int { return 3600 + i })
	plant(t, db, 2001, soon, coupon.Unused, func(i int) int { return 3 + i%10 }) // moves from bucket to bucket meanwhile
	plant(t, db, 3001, locked, coupon.Locked, func(int) int { return 3600 })
	plant(t, db, 4001, used, coupon.Unused, func(int) int { return 3600 })
	old.ok("rebuild", "--reason=test", "--actor=a")
	db.Exec(t, `UPDATE coupon SET status = 3, version = 2 WHERE id > 4000`)
	old.publish(
		broker.Message{Exchange: old.ladder.ParkExchange(), ID: "parked", Body: []byte("p"), Headers: map[string]any{broker.HeaderReason: "why"}, Mandatory: true},
		broker.Message{Exchange: old.ladder.Unroutable(), ID: "no trigger", Key: "x", Body: []byte("u"), Mandatory: true},
		broker.Message{Exchange: old.ladder.Orders(), ID: "order", Key: "order.paid", Body: []byte("{}"), Mandatory: true},
		broker.Message{Exchange: old.ladder.Enter(), ID: "aside", Key: ladder.Key{Digits: [5]int{0, 0, 0, 9, 0}, Kind: ladder.Order, Class: ladder.Exact}.String(), Body: []byte("{}"), Mandatory: true},
		broker.Message{Exchange: old.ladder.Bundles(), ID: "event", Key: old.ladder.BundleKey("coupon.expired"), Body: []byte("{}"), Mandatory: true}, // to ledger and notice
	)
	r := now.run("topology", "drain", "--reason=test")
	require.Equal(t, exitError, r.code)
	require.Contains(t, r.stderr, "the configuration's own")

	// Broken off, it is gone on with.
	r = now.run("topology", "drain", "--reason=test", "--from-prefix="+old.prefix, "--within=1s", "--rate=400/s", "--json")
	require.Equal(t, exitMiss, r.code, r.stderr)
	var first, last movedJSON
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &first), r.stdout)
	require.Positive(t, first.Left)
	// By another address of the broker, as for another broker.
	local := strings.NewReplacer("127.0.0.1", "localhost")
	now.environ = append(now.environ, "LAPSECTL_FROM_URL="+local.Replace(os.Getenv("TEST_AMQP_URL")), "LAPSECTL_FROM_MANAGEMENT="+local.Replace(os.Getenv("TEST_MANAGEMENT_URL")))
	require.NoError(t, json.Unmarshal([]byte(now.ok("topology", "drain", "--reason=test", "--from-prefix="+old.prefix, "--quiet=11s", "--json")), &last))
	require.True(t, last.Empty)
	require.Zero(t, last.Left)
	require.Zero(t, old.depth())
	require.Equal(t, [4]int64{waiting + soon + locked, used, 5, 1}, [4]int64{
		first.Triggers + last.Triggers, first.Dropped + last.Dropped, first.Others + last.Others, first.Parked + last.Parked,
	})
	require.Equal(t, int64(2), db.Int(t, `SELECT COUNT(*) FROM operator_log WHERE action = 'topology.drain' AND reason = 'test'`))

	// All of them are there, once, and those that are due have come.
	testenv.Wait(t, "what is soon", func() bool { return now.depth(ladder.RoleDue) == soon })
	testenv.Wait(t, "all triggers", func() bool {
		return now.depth(ladder.RoleDue, ladder.RoleWait) == waiting+soon+locked
	})
	got := map[uint64]bool{}
	for _, q := range now.plan.Queues {
		if q.Role != ladder.RoleDue && q.Role != ladder.RoleWait {
			continue
		}
		_, err := now.client.Drain(now.ctx(), q.Name, 500, drainIdle, func(_ context.Context, batch []broker.Delivery) error {
			for _, d := range batch {
				trigger, err := event.DecodeTrigger(d.Body)
				require.NoError(t, err)
				require.Equal(t, coupon.OriginRebuild, trigger.Origin)
				require.False(t, got[trigger.CouponID], "twice")
				got[trigger.CouponID] = true
			}
			return nil
		})
		require.NoError(t, err)
	}
	require.Len(t, got, waiting+soon+locked)
	depths, err := now.client.Depths(now.ctx(), []string{now.ladder.Orders(), now.ladder.Ledger(), now.ladder.Notice(), now.ladder.Parked()})
	require.NoError(t, err)
	require.Equal(t, map[string]int{now.ladder.Orders(): 2, now.ladder.Ledger(): 1, now.ladder.Notice(): 1, now.ladder.Parked(): 2}, depths)
	_, err = now.client.Take(now.ctx(), now.ladder.Parked(), 2, func(d broker.Delivery) error {
		if d.MessageID == "parked" {
			require.Equal(t, "why", d.Headers[broker.HeaderReason])
		} else {
			require.Contains(t, d.Headers[broker.HeaderReason], "not a trigger")
		}
		return nil
	})
	require.NoError(t, err)
}
