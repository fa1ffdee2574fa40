package order_test

import (
	"context"
	"fmt"
	"os"
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
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = 60 * time.Second

// walk is the intake of order events on the real broker and database.
type walk struct {
	db        testenv.Database
	store     *store.Store
	ladder    *ladder.Ladder
	client    *broker.Client
	publisher *broker.Publisher
	codec     *event.Codec
	template  uint64
	sent      int // events
	granted   int
	acked     atomic.Int64
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{db: testenv.NewDatabase(t)}
	w.store = w.db.Store(t)
	lc := ladder.DefaultConfig()
	lc.Prefix = testenv.Prefix(t)
	lc.Levels = []ladder.Level{{Name: "s", Unit: time.Second, Digits: 1}} // longer waits end after a second, too
	lc.GroupSize = 1
	var err error
	w.ladder, err = ladder.New(lc)
	require.NoError(t, err)
	w.codec, err = event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	w.client = w.newClient(t, os.Getenv("TEST_AMQP_URL"))
	plan := w.ladder.Plan()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, w.client.Declare(ctx, plan))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, w.client.Delete(ctx, plan))
	})
	w.publisher = w.client.NewPublisher()
	w.run(t, w.publisher.Run)
	require.NoError(t, w.publisher.WaitReady(ctx))
	w.template, err = w.store.CreateTemplate(t.Context(), coupon.Template{
		Name: "orders", Rule: coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact},
	})
	require.NoError(t, err)
	return w
}

func (w *walk) newClient(t *testing.T, amqp string) *broker.Client {
	t.Helper()
	c := broker.DefaultConfig()
	c.URL, c.ManagementURL, c.Name = secret.New(amqp), secret.New(os.Getenv("TEST_MANAGEMENT_URL")), "test"
	client, err := broker.New(c, broker.Options{Role: "test", Plan: w.ladder.Plan(), Log: zap.NewNop(), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	return client
}

// run starts a component that ends with the test.
func (w *walk) run(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// consumer is a publisher pod's intake over a client.
func (w *walk) consumer(t *testing.T, client *broker.Client, publisher *broker.Publisher, c order.Config) {
	t.Helper()
	s := w.db.Store(t)
	h, err := order.NewHandler(c, s, w.ladder, zap.NewNop(), prometheus.NewRegistry())
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
		Config: c.Consumer(), Queue: w.ladder.Orders(), Handler: handle, Ready: s.Ping,
		Publisher: publisher, ParkExchange: w.ladder.ParkExchange(),
	})
	require.NoError(t, err)
	w.run(t, k.Run)
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
		ms[i] = broker.Message{Exchange: w.ladder.Orders(), Key: key, ID: e.EventID, Body: body, ContentType: event.ContentType, Mandatory: true}
	}
	w.send(t, ms...)
}

func (w *walk) send(t *testing.T, ms ...broker.Message) {
	t.Helper()
	w.sent += len(ms)
	for _, err := range w.publisher.Publish(t.Context(), ms) {
		require.NoError(t, err)
	}
}

func (w *walk) depth(t *testing.T, queue string) int {
	t.Helper()
	d, err := w.client.Depths(t.Context(), []string{queue})
	require.NoError(t, err)
	return d[queue]
}

// drained waits until every event was done.
func (w *walk) drained(t *testing.T) {
	t.Helper()
	testenv.Wait(t, "every event to be done", func() bool { return int(w.acked.Load()) >= w.sent })
	require.Zero(t, w.depth(t, w.ladder.Parked()))
}

func (w *walk) status(t *testing.T, id uint64) coupon.Status {
	t.Helper()
	return coupon.Status(w.db.Int(t, `SELECT status FROM coupon WHERE id = ?`, id))
}
