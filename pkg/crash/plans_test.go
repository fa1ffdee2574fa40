//go:build proof

package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/chaos/model"
	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/event"
)

// How far ahead the planner works: what ends beyond is a row until then, and is granted so that one of them comes by each second.
const (
	horizon  = 24 * time.Hour
	remindAt = 30 * time.Minute
	lead     = time.Minute
	guard    = 8 * time.Second
	stream   = 150 // seconds
)

// plans are the planner's walks, and the events of orders, which share a publisher.
func plans() *stage {
	return &stage{
		name: "plans", rings: []string{"#"},
		env: func(_ *world, role string) map[string]string {
			vars := map[string]string{"LAPSE__LADDER__HORIZON": horizon.String(), "LAPSE__DATABASE__TX_LIMIT": "2s", "LAPSE__DATABASE__LOCK_WAIT": "1s"}
			if role == crash.Publisher {
				vars["LAPSE__PLANNER__SLICE"], vars["LAPSE__PLANNER__GUARD"] = "1s", guard.String()
				vars["LAPSE__PLANNER__POLL"], vars["LAPSE__PLANNER__LEASE"] = "200ms", "2s"
				vars["LAPSE__REMINDERS__OFFSETS"], vars["LAPSE__REMINDERS__LEAD"] = "-30m", lead.String()
				vars["LAPSE__OUTBOX__LEASE"] = "1s"
			}
			return vars
		},
		begin: func(w *world) {
			w.counted("plans", 2, "SELECT COUNT(*) FROM plan_slice")
			w.flow(horizon + guard)
			w.flow(remindAt + lead + guard)
		},
		lanes: []lane{{worker: crash.Publisher, scenes: []scene{
			{point: "commit claim plan", pass: func(v *visit) { v.stop(func() {}); v.promoted(); v.reminded() }},
			{point: "publish promotion", pass: func(v *visit) {
				before := v.bells.most(coupon.SentByPlanner)
				v.stop(func() {})
				v.promoted()
				v.pageAgain(before.again, v.bells.most(coupon.SentByPlanner).again)
			}},
			{point: "publish reminders", pass: func(v *visit) {
				before := v.ears.again("expiring")
				v.stop(func() {})
				v.reminded()
				v.pageAgain(before, v.ears.again("expiring"))
			}},
			{point: "commit move plan", pass: func(v *visit) { v.stop(func() {}); v.promoted(); v.reminded() }},
			{point: "write plan.release", pass: func(v *visit) { v.stop(func() {}); v.promoted(); v.reminded() }},
			{point: "commit redeem_refused", pass: func(v *visit) {
				c := v.grant(time.Hour)
				v.do(v.worker, c, model.Redeem, "first-"+c.id)
				v.paid(c, "second-"+c.id, nil)
				v.becomes(c, 2, model.Used)
				v.heard(c, "redeem_refused", 1+v.done())
			}},
			{point: "forward orders", pass: func(v *visit) {
				c := v.grant(time.Hour)
				v.drained()
				held, err := v.i.DB().BeginTx(v.ctx, nil)
				require.NoError(v, err)
				defer held.Rollback() //nolint:errcheck // ended below, unless the visit fails
				var id uint64
				require.NoError(v, held.QueryRowContext(v.ctx, "SELECT id FROM coupon WHERE id = ? FOR UPDATE", c.ID).Scan(&id))
				order := "held-" + c.id
				v.paid(c, order, func() { require.NoError(v, held.Rollback()) })
				v.becomes(c, 2, model.Used)
				// Set aside by who was stopped behind it, it is in the ladder; nobody else had to set it aside again.
				require.Equal(v, v.done(), v.bells.rung(paidID(order)), "order events that were set aside")
			}},
			{point: "ack orders", pass: func(v *visit) {
				c := v.grant(time.Hour)
				v.paid(c, "paid-"+c.id, nil)
				v.becomes(c, 2, model.Used)
			}},
			{point: "commit set horizon", pass: func(v *visit) {
				changed := guard + time.Second
				if v.after() {
					changed += time.Second
				}
				v.changed(map[string]string{"LAPSE__PLANNER__GUARD": changed.String()}, "guard", changed)
			}},
			{point: "commit set reminders", pass: func(v *visit) {
				changed := lead + time.Second
				if v.after() {
					changed += time.Second
				}
				v.changed(map[string]string{"LAPSE__REMINDERS__LEAD": changed.String()}, "reminders", changed)
			}},
		}}},
	}
}

// flow has coupons granted of which one each second comes into what is so far ahead.
func (w *world) flow(ahead time.Duration) {
	first := w.soon(ahead)
	grants, cs := make([]client.Grant, stream), make([]*promised, stream)
	for i := range cs {
		cs[i] = w.promise(first.Add(time.Duration(i) * time.Second))
		grants[i] = w.ask(cs[i])
	}
	w.again(crash.Publisher, func(ctx context.Context, api *client.Client) error {
		got, err := api.Grants(ctx, grants...)
		for i := range got {
			w.granted(cs[i], got[i])
		}
		return err
	})
}

// promoted waits until more triggers were promoted; reminded, until more reminders were told of.
func (v *visit) promoted() {
	before := v.bells.most(coupon.SentByPlanner)
	v.until("a promotion", func() (bool, error) { return v.bells.most(coupon.SentByPlanner).ids > before.ids+1, nil })
}

func (v *visit) reminded() {
	before := v.ears.different("expiring")
	v.until("a reminder", func() (bool, error) { return v.ears.different("expiring") > before+1, nil })
}

// pageAgain: what was in the page was sent once more, or nothing. On a busy machine a page is that of several seconds.
func (v *visit) pageAgain(before, now int) {
	if v.after() {
		require.Greater(v, now, before, "what was sent again")
		return
	}
	require.Equal(v, before, now, "what was sent again")
}

// paid tells that an order was paid, and has the worker stopped thereby.
func (v *visit) paid(c *promised, order string, dead func()) {
	v.ready(v.worker)
	body, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": paidID(order), "source": "/crash", "type": event.TypeOrderPaid, "datacontenttype": "application/json",
		"data": map[string]any{"order_id": order, "user_id": c.User, "coupon_ids": []string{c.id}},
	})
	require.NoError(v, err)
	call := model.Call{Verb: model.Paid, Order: order, Answer: model.Done, Attempts: 2}
	call.Sent, _ = v.i.Audit().Bounds()
	c.Calls = append(c.Calls, call)
	v.stop(func() {
		v.publish(broker.Message{Exchange: v.i.Ladder().Orders(), Key: "order.paid", ID: paidID(order), Body: body, ContentType: event.ContentType, Mandatory: true})
	}, func() {
		if dead != nil {
			dead()
		}
	})
}

func paidID(order string) string { return "paid-" + order }

// changed starts the worker with another configuration, of which the start tells the whole installation, and has it stopped thereby.
func (v *visit) changed(vars map[string]string, setting string, want time.Duration) {
	v.stop(func() {
		v.put(v.worker, vars)
		v.kill(v.worker)
		v.launch(v.worker)
	}, func() {
		there := v.count("SELECT COUNT(*) FROM setting WHERE name = ? AND value LIKE ?", setting, fmt.Sprintf("%%%d%%", want.Milliseconds()))
		require.Equal(v, v.done(), there, setting)
	})
	v.promoted()
	v.reminded()
}
