package order_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/order"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// permutations of the types, each once.
func permutations(types []string) [][]string {
	if len(types) <= 1 {
		return [][]string{slices.Clone(types)}
	}
	var out [][]string
	for i := range types {
		rest := slices.Delete(slices.Clone(types), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]string{types[i]}, p...))
		}
	}
	return out
}

// In whatever order the events of an order come, once or again and again, its coupon ends in the same state.
func TestTheOrderOfArrivalDoesNotMatter(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	const paid, closed, failed, refunded = event.TypeOrderPaid, event.TypeOrderClosed, event.TypeOrderPaymentFailed, event.TypeOrderRefunded
	type scenario struct {
		name string
		id   uint64
		want coupon.Status
	}
	var (
		scenarios []scenario
		events    []event.Order
	)
	for _, set := range []struct {
		types []string
		want  coupon.Status
	}{
		{[]string{paid}, coupon.Used},
		{[]string{closed}, coupon.Unused},
		{[]string{failed}, coupon.Unused},
		{[]string{paid, failed}, coupon.Used},
		{[]string{paid, closed}, coupon.Used},
		{[]string{closed, failed}, coupon.Unused},
		{[]string{refunded, paid}, coupon.Unused},
		{[]string{refunded, closed, paid}, coupon.Unused},
		{[]string{refunded, failed, paid}, coupon.Unused},
		{[]string{refunded, closed, paid, failed}, coupon.Unused},
	} {
		for _, types := range permutations(set.types) {
			for times := 1; times <= 2; times++ {
				id := w.coupons(t, 1)[0]
				name := fmt.Sprintf("o%d", len(scenarios))
				w.lock(t, name, id)
				for range times {
					for _, typ := range types {
						events = append(events, event.Order{Type: typ, OrderID: name, UserID: "u", CouponIDs: []uint64{id}})
					}
				}
				scenarios = append(scenarios, scenario{fmt.Sprintf("%v %d times", types, times), id, set.want})
			}
		}
	}
	w.publish(t, events...)
	c := order.DefaultConfig()
	c.Batch = 16 // and one after the other: the order of arrival is the order of the queue
	w.consumer(t, w.Client, w.Publisher, c)
	w.drained(t)
	for _, s := range scenarios {
		require.Equal(t, s.want, w.status(t, s.id), s.name)
	}
	require.Equal(t, w.db.Int(t, `SELECT SUM(version) FROM coupon`), w.db.Int(t, `SELECT COUNT(*) FROM coupon_history`))
	require.LessOrEqual(t, w.db.Int(t, `SELECT MAX(version) FROM coupon`), int64(6))
	require.Zero(t, w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.redeem_refused' AND body NOT LIKE '%"code":"order_refunded"%'`))
	require.NotZero(t, w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.redeem_refused'`))
	require.Equal(t, w.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE from_status > 0 AND cause IN ('order','refund') AND version > 2`),
		w.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE actor = 'order event'`))

	rows, err := w.db.SQL.QueryContext(t.Context(), `SELECT body FROM outbox WHERE lane = 1 AND routing_key <> 'coupon.redeem_refused'`)
	require.NoError(t, err)
	defer rows.Close()
	told := int64(0)
	for rows.Next() {
		var body []byte
		require.NoError(t, rows.Scan(&body))
		_, err := event.DecodeLife(body)
		require.NoError(t, err)
		told++
	}
	require.NoError(t, rows.Err())
	require.Equal(t, w.db.Int(t, `SELECT COUNT(*) FROM coupon_history`), told, "an event for every step")

	// An order that was closed before its lock comes gets none; one whose payment failed may try again.
	ids := w.coupons(t, 2)
	w.publish(t, event.Order{Type: closed, OrderID: "late", CouponIDs: ids[:1]}, event.Order{Type: failed, OrderID: "again", CouponIDs: ids[1:]})
	w.drained(t)
	_, out, err := w.store.Act(t.Context(), coupon.Order{Verb: coupon.VerbLock, OrderID: "late", CouponIDs: ids[:1], LockFor: time.Minute})
	require.NoError(t, err)
	require.Equal(t, coupon.CodeOrderClosed, out[0].Refused)
	w.lock(t, "again", ids[1])
}

// A late cancel of one order never frees the coupon that another holds, and only one of two payments has it.
func TestEachPaymentThatCannotHaveItsCouponIsTold(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	ids := w.coupons(t, 3)
	w.lock(t, "b", ids[0])
	unknown := ids[2] + 1000
	for range 3 { // and all of it again
		w.publish(t,
			event.Order{Type: event.TypeOrderClosed, OrderID: "a", CouponIDs: ids[:1]},
			event.Order{Type: event.TypeOrderPaid, OrderID: "a", UserID: "u", CouponIDs: []uint64{ids[0], ids[1], unknown}},
			event.Order{Type: event.TypeOrderPaid, OrderID: "c", UserID: "thief", CouponIDs: ids[2:]},
		)
	}
	w.consumer(t, w.Client, w.Publisher, order.DefaultConfig())
	w.consumer(t, w.Client, w.Publisher, order.DefaultConfig()) // another pod
	w.drained(t)
	require.Equal(t, coupon.Locked, w.status(t, ids[0]))
	require.Equal(t, coupon.Used, w.status(t, ids[1]), "each stands by itself")
	require.Equal(t, coupon.Unused, w.status(t, ids[2]))

	rows, err := w.db.SQL.QueryContext(t.Context(), `SELECT msg_id, part, coupon_id, body FROM outbox WHERE routing_key = 'coupon.redeem_refused'`)
	require.NoError(t, err)
	defer rows.Close()
	told := map[string]map[string]any{}
	for rows.Next() {
		var (
			id   string
			part int
			of   uint64
			body []byte
		)
		require.NoError(t, rows.Scan(&id, &part, &of, &body))
		require.Equal(t, coupon.Partition(of), part)
		var e struct{ Data map[string]any }
		require.NoError(t, json.Unmarshal(body, &e))
		delete(e.Data, "refused_at")
		if before, again := told[id]; again {
			require.Equal(t, before, e.Data, "one id, one content")
		}
		told[id] = e.Data
	}
	require.NoError(t, rows.Err())
	template := fmt.Sprint(w.template)
	text := func(id uint64) string { return fmt.Sprint(id) }
	require.Equal(t, map[string]map[string]any{
		text(ids[0]) + ":a:redeem_refused": {
			"coupon_id": text(ids[0]), "order_id": "a", "user_id": "u", "template_id": template, "code": "locked_by_other_order",
			"state": "locked", "value": 500.0, "currency": "CNY",
		},
		text(unknown) + ":a:redeem_refused": {
			"coupon_id": text(unknown), "order_id": "a", "user_id": "u", "template_id": nil, "code": "not_found",
			"state": nil, "value": nil, "currency": nil,
		},
		text(ids[2]) + ":c:redeem_refused": {
			"coupon_id": text(ids[2]), "order_id": "c", "user_id": "thief", "template_id": nil, "code": "not_found",
			"state": nil, "value": nil, "currency": nil,
		},
	}, told)
}

// A coupon that a hanging transaction holds waits on the ladder; the queue goes on without it.
func TestAHangingTransactionDelaysItsCouponAlone(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	ids := w.coupons(t, 40)
	tx, err := w.db.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // ended below
	var id uint64
	require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT id FROM coupon WHERE id = ? FOR UPDATE`, ids[0]).Scan(&id))
	// As plain data, so that the routing key alone says what it is, and once more while it waits.
	for range 2 {
		w.send(t, broker.Message{
			Exchange: w.Ladder.Orders(), Key: event.KeyOrderPaid, ID: "held", Mandatory: true,
			Body: fmt.Appendf(nil, `{"order_id":"o0","coupon_ids":[%d]}`, ids[0]),
		})
	}
	for i, id := range ids[1:] {
		w.publish(t, event.Order{Type: event.TypeOrderPaid, OrderID: fmt.Sprintf("o%d", i+1), UserID: "u", CouponIDs: []uint64{id}})
	}
	w.consumer(t, w.Client, w.Publisher, order.DefaultConfig())
	testenv.Wait(t, "the others", func() bool { return w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 3`) == 39 })
	testenv.Wait(t, "it to wait on the ladder", func() bool { return w.depth(t, w.Ladder.WaitQueue("s", 1, 0)) > 0 })
	require.NoError(t, tx.Rollback())
	testenv.Wait(t, "it, too", func() bool { return w.status(t, ids[0]) == coupon.Used })
	w.drained(t)
	require.EqualValues(t, 2, w.db.Int(t, `SELECT version FROM coupon WHERE id = ?`, ids[0]))
}

func TestOrdersWaitWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	ids := w.coupons(t, 20)
	// The table is away, and with it every answer.
	w.db.Exec(t, `RENAME TABLE coupon TO coupon_away`)
	for i, id := range ids {
		w.publish(t, event.Order{Type: event.TypeOrderPaid, OrderID: fmt.Sprint(i), CouponIDs: []uint64{id}})
	}
	w.consumer(t, w.Client, w.Publisher, order.DefaultConfig())
	testenv.Wait(t, "the queue to be seen and put back", func() bool { return w.depth(t, w.Ladder.Orders()) == 20 })
	w.db.Exec(t, `RENAME TABLE coupon_away TO coupon`)
	testenv.Wait(t, "20 redemptions", func() bool { return w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 3`) == 20 })
	w.drained(t)
}

// The connection is cut again and again: what was done and not acked is a repeat.
func TestACutConnectionLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	target, err := url.Parse(os.Getenv("TEST_AMQP_URL"))
	require.NoError(t, err)
	proxy, err := rig.NewProxy(target.Host)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	target.Host = proxy.Addr()
	client := w.NewClient(t, target.String())

	const n = 400
	ids := w.coupons(t, n)
	for i := 0; i < n; i += 100 {
		events := make([]event.Order, 0, 200)
		for k := i; k < i+100; k++ {
			e := event.Order{Type: event.TypeOrderPaid, OrderID: fmt.Sprintf("o%d", k), UserID: "u", CouponIDs: ids[k : k+1]}
			events = append(events, e)
			if k%2 == 0 { // every other one is refunded
				e.Type = event.TypeOrderRefunded
				events = append(events, e)
			}
		}
		w.publish(t, events...)
	}
	c := order.DefaultConfig()
	c.Batch, c.Prefetch, c.Concurrency = 8, 64, 1
	w.consumer(t, client, w.Publisher, c)
	moved := func() int64 {
		return w.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version > 1`)
	}
	for cuts := int64(1); cuts <= 4; cuts++ {
		testenv.Wait(t, "more to be done", func() bool { return moved() >= cuts*100 })
		proxy.Cut()
	}
	testenv.Wait(t, "all to be done", func() bool { return moved() == n+n/2 })
	w.drained(t)
	require.EqualValues(t, n/2, w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 3 AND version = 2`))
	require.EqualValues(t, n/2, w.db.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1 AND version = 3`))
	require.EqualValues(t, n/2, w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.refunded'`))
	require.EqualValues(t, n, w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.used'`))
}
