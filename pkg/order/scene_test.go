package order_test

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/order"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// walk is the intake of order events on the real broker and database.
type walk struct {
	testenv.Topology

	db       testenv.Database
	store    *store.Store
	codec    *event.Codec
	template uint64
	sent     int // events
	granted  int
	acked    atomic.Int64
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{db: testenv.NewDatabase(t)}
	w.store = w.db.Store(t)
	w.Topology = testenv.NewTopology(t, ladder.Level{Name: "s", Unit: time.Second, Digits: 1}) // longer waits end after a second, too
	var err error
	w.codec, err = event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	w.template, err = w.store.CreateTemplate(t.Context(), coupon.Template{
		Name: "orders", Rule: coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact},
	})
	require.NoError(t, err)
	return w
}

// consumer is a publisher pod's intake over a client.
func (w *walk) consumer(t *testing.T, client *broker.Client, publisher *broker.Publisher, c order.Config) {
	t.Helper()
	s := w.db.Store(t)
	h, err := order.NewHandler(c, s, w.Ladder, zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	handle := func(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
		out, err := h.Handle(ctx, batch)
		for _, o := range out {
			if reflect.DeepEqual(o, broker.Ack()) {
				w.acked.Add(1)
			}
		}
		return out, err
	}
	k, err := client.NewConsumer(broker.ConsumerOptions{
		Config: c.Consumer(), Queue: w.Ladder.Orders(), Handler: handle, Ready: s.Ping,
		Publisher: publisher, ParkExchange: w.Ladder.ParkExchange(),
	})
	require.NoError(t, err)
	testenv.Run(t, k.Run)
}

// coupons grants some to user u.
func (w *walk) coupons(t *testing.T, n int) []uint64 {
	t.Helper()
	grants := make([]coupon.Grant, n)
	for i := range grants {
		w.granted++
		grants[i] = coupon.Grant{Key: fmt.Sprintf("k%d", w.granted), TemplateID: w.template, UserID: "u"}
	}
	granted, err := w.store.Issue(t.Context(), grants)
	require.NoError(t, err)
	ids := make([]uint64, n)
	for i := range granted {
		ids[i] = granted[i].CouponID
	}
	return ids
}

func (w *walk) lock(t *testing.T, orderID string, ids ...uint64) {
	t.Helper()
	_, out, err := w.store.Act(t.Context(), coupon.Order{
		Verb: coupon.VerbLock, OrderID: orderID, UserID: "u", CouponIDs: ids, LockFor: coupon.DefaultLock, Actor: "test",
	})
	require.NoError(t, err)
	for i := range out {
		require.Empty(t, out[i].Refused)
	}
}

func (w *walk) publish(t *testing.T, events ...event.Order) {
	t.Helper()
	ms := make([]broker.Message, len(events))
	for i, e := range events {
		e.EventID = fmt.Sprintf("e%d", w.sent+i)
		key, body, err := w.codec.Order(e, time.Now())
		require.NoError(t, err)
		ms[i] = broker.Message{Exchange: w.Ladder.Orders(), Key: key, ID: e.EventID, Body: body, ContentType: event.ContentType, Mandatory: true}
	}
	w.send(t, ms...)
}

func (w *walk) send(t *testing.T, ms ...broker.Message) {
	t.Helper()
	w.sent += len(ms)
	for _, err := range w.Publisher.Publish(t.Context(), ms) {
		require.NoError(t, err)
	}
}

func (w *walk) depth(t *testing.T, queue string) int {
	t.Helper()
	d, err := w.Client.Depths(t.Context(), []string{queue})
	require.NoError(t, err)
	return d[queue]
}

// drained waits until every event was done.
func (w *walk) drained(t *testing.T) {
	t.Helper()
	testenv.Wait(t, "every event to be done", func() bool { return int(w.acked.Load()) >= w.sent })
	require.Zero(t, w.depth(t, w.Ladder.Parked()))
}

func (w *walk) status(t *testing.T, id uint64) coupon.Status {
	t.Helper()
	return coupon.Status(w.db.Int(t, `SELECT status FROM coupon WHERE id = ?`, id))
}
