//go:build proof

package crash_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/ladder"
)

const (
	shortLife = 10 * time.Minute   // two hops of the ladder
	longLife  = 9100 * time.Second // its first hop is by the topmost queue, which nobody hears
)

// intake is the way of a grant to ladder and books.
func intake() *stage {
	return &stage{
		name: "intake", rings: []string{"00.00.#"},
		env: func(_ *world, role string) map[string]string {
			if role != crash.Publisher {
				return nil
			}
			return map[string]string{"LAPSE__LEDGER__SEED_BATCH": "2", "LAPSE__LEDGER__SEED_PAUSE": "10ms", "LAPSE__OUTBOX__LEASE": "1s"}
		},
		begin: func(w *world) {
			for range 4 {
				w.grant(crash.Publisher, w.soon(shortLife))
			}
			w.counted("steps that are counted", 4, "SELECT COUNT(*) FROM ledger_seen")
		},
		lanes: []lane{{worker: crash.Publisher, scenes: []scene{
			{point: "commit seed statistics", pass: func(v *visit) {
				// What an earlier release leaves: history, and nobody who has counted it.
				v.stop(func() {
					v.kill(v.worker)
					v.exec("DELETE FROM setting WHERE name = 'ledger.seed'")
					v.exec("DELETE FROM ledger_seen")
					v.exec("DELETE FROM template_stats")
					v.launch(v.worker)
				}, func() {
					require.Equal(v, v.done(), v.count("SELECT COUNT(*) FROM setting WHERE name = 'ledger.seed'"), "the place of the walk")
				})
				v.counted("the walk over history", 1, "SELECT COUNT(*) FROM setting WHERE name = 'ledger.seed' AND value = 'done'")
			}},
			{point: "commit issue", pass: func(v *visit) {
				c := v.granting(shortLife, func(c *promised) { require.Equal(v, v.done(), v.keys(c)) })
				require.Equal(v, 1, v.keys(c))
			}},
			{point: "ack issuance", pass: func(v *visit) {
				c := v.granting(shortLife, func(c *promised) { require.Equal(v, 1, v.keys(c)) })
				require.Equal(v, 1, v.keys(c))
			}},
			{point: "commit claim outbox partitions", pass: func(v *visit) {
				v.stop(func() {})
				c := v.grant(shortLife)
				v.drained()
				v.heard(c, "issued", 1)
			}},
			{point: "publish trigger", pass: func(v *visit) {
				c := v.granting(shortLife, nil)
				v.drained()
				require.Equal(v, 1+v.done(), v.bells.rung(trigger(coupon.SentByVerb, c)))
			}},
			{point: "publish event", pass: func(v *visit) {
				c := v.granting(shortLife, nil)
				v.drained()
				v.heard(c, "issued", 1+v.done())
			}},
			{point: "commit delete outbox rows", pass: func(v *visit) {
				c := v.granting(shortLife, nil)
				v.drained()
				v.heard(c, "issued", 0)
				// One of the two lanes was stopped here; the other may have been anywhere.
				came := []int{v.bells.rung(trigger(coupon.SentByVerb, c)), v.ears.times(c.ID, "issued")}
				require.Contains(v, came, 2-v.done(), "trigger and event")
			}},
			{point: "commit refuse outbox rows", pass: func(v *visit) {
				v.lose("k", 9)
				c := v.granting(longLife, func(*promised) {
					require.Equal(v, v.done(), v.count("SELECT MAX(refused) FROM outbox WHERE lane = ?", coupon.LaneTrigger), "refusals that are counted")
				})
				v.drained() // who starts declares what is missing
				v.heard(c, "issued", 0)
			}},
			{point: "commit count events", pass: func(v *visit) {
				c := v.granting(shortLife, func(c *promised) { require.Equal(v, v.done(), v.seen(c)) })
				v.counted("counted steps of coupon "+c.id, 1, seenQuery, []byte(c.Key))
			}},
			{point: "ack ledger", pass: func(v *visit) { // of this coupon's event, or of one that came again
				c := v.granting(shortLife, nil)
				v.counted("counted steps of coupon "+c.id, 1, seenQuery, []byte(c.Key))
			}},
			{point: "commit fold quota", pass: func(v *visit) {
				template := v.stocked()
				c := v.grant(shortLife, func(g *client.Grant) { g.TemplateID = template })
				void := v.asking(c, model.Void, "")
				api := v.api(v.worker)
				v.stop(func() { _ = void.once(v.ctx, api) }, func() { // the quota is folded when it has been answered, or is about to be
					require.Equal(v, 1-v.done(), v.count("SELECT COUNT(*) FROM quota_return WHERE coupon_id = ?", c.ID))
				})
				void.answered(v.worker)
				v.counted("quota that was not given back", 0, "SELECT COUNT(*) FROM quota_return")
				require.Zero(v, v.count("SELECT taken FROM template_stock WHERE template_id = ?", template), "it is given back once")
			}},
		}}},
	}
}

// done is 1 when the point has been passed.
func (v *visit) done() int {
	if v.after() {
		return 1
	}
	return 0
}

// granting has a coupon granted by an event, and the worker stopped thereby; dead is asked before it is started again.
func (v *visit) granting(life time.Duration, dead func(c *promised)) *promised {
	v.ready(v.worker)
	c := v.promise(v.soon(life))
	v.stop(func() { v.publish(v.message(c)) }, func() {
		if dead != nil {
			dead(c)
		}
	})
	v.known(c)
	return c
}

func (v *visit) keys(c *promised) int {
	return v.count("SELECT COUNT(*) FROM grant_key WHERE grant_key = ?", []byte(c.Key))
}

const seenQuery = "SELECT COUNT(*) FROM ledger_seen s JOIN grant_key k ON k.coupon_id = s.coupon_id WHERE k.grant_key = ?"

func (v *visit) seen(c *promised) int { return v.count(seenQuery, []byte(c.Key)) }

// heard waits until an event of the coupon was heard so often; 0: at all.
func (v *visit) heard(c *promised, what string, times int) {
	v.until(fmt.Sprintf("%s of coupon %s to be heard", what, c.id), func() (bool, error) { return v.ears.times(c.ID, what) >= max(1, times), nil })
	if times > 0 {
		require.Equal(v, times, v.ears.times(c.ID, what), "%s of coupon %s", what, c.id)
	}
}

// trigger is the id of the first one of a coupon.
func trigger(sender byte, c *promised) string { return coupon.TriggerID(sender, c.ID, 1) }

// lose deletes a queue of the ladder.
func (v *visit) lose(level string, digit int) {
	queue := v.i.Ladder().WaitQueue(level, digit, 0)
	plan := v.i.Ladder().Plan()
	k := slices.IndexFunc(plan.Queues, func(q ladder.Queue) bool { return q.Name == queue })
	require.GreaterOrEqual(v, k, 0, queue)
	c, err := v.i.Client()
	require.NoError(v, err)
	require.NoError(v, c.Delete(v.ctx, ladder.Plan{Queues: plan.Queues[k : k+1]}))
}

// stocked makes a template whose quota comes back.
func (v *visit) stocked() string {
	var made client.Template
	v.again(v.worker, func(ctx context.Context, api *client.Client) (err error) {
		made, err = api.CreateTemplate(ctx, terms("stocked", func(t *client.Terms) { t.Quota, t.QuotaBack = 10, "total" }))
		return err
	})
	return made.TemplateID
}

func terms(name string, change func(t *client.Terms)) client.Terms {
	t := client.Terms{Name: name, Rule: client.Rule{Kind: "after", After: "24h"}, Value: 500, Currency: "CNY", Precision: "exact", Reason: "crash"}
	if change != nil {
		change(&t)
	}
	return t
}
