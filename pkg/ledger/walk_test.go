package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/ledger"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// walk is the ledger on the real broker and database.
type walk struct {
	db        testenv.Database
	store     *store.Store
	ladder    *ladder.Ladder
	client    *broker.Client
	publisher *broker.Publisher
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{db: testenv.NewDatabase(t)}
	w.store = w.db.Store(t)
	y := testenv.NewTopology(t, ladder.Level{Name: "s", Unit: time.Second, Digits: 1})
	w.ladder, w.client, w.publisher = y.Ladder, y.Client, y.Publisher
	return w
}

// pod is a publisher's ledger: consumer, seeding and housekeeping.
func (w *walk) pod(t *testing.T) {
	t.Helper()
	c := ledger.DefaultConfig()
	c.Batch, c.SeedBatch, c.SeedPause, c.QuotaInterval = 50, 30, time.Millisecond, 20*time.Millisecond
	l, err := ledger.New(c, w.db.Store(t), zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	k, err := w.client.NewConsumer(broker.ConsumerOptions{
		Config: c.Consumer().Bundled(), Queue: w.ladder.Ledger(), Ready: w.store.Ping,
		Handler:   broker.Unbundling{Most: c.Batch, Park: w.ladder.ParkExchange(), Again: w.ladder.Replay()}.Unbundle(l.Handle),
		Publisher: w.publisher, ParkExchange: w.ladder.ParkExchange(),
	})
	require.NoError(t, err)
	testenv.Run(t, l.Run)
	testenv.Run(t, k.Run)
	testenv.Run(t, func(ctx context.Context) error { return l.Seed(ctx, k.Ready) })
}

// publish sends events that the outbox holds, as its relay would.
func (w *walk) publish(t *testing.T, where string) int {
	t.Helper()
	rows, err := w.db.SQL.QueryContext(t.Context(), `SELECT msg_id, routing_key, body FROM outbox WHERE lane = 1 AND `+where+` ORDER BY id`)
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	var ms []broker.Message
	for rows.Next() {
		m := broker.Message{Exchange: w.ladder.Events(), ContentType: event.ContentType}
		require.NoError(t, rows.Scan(&m.ID, &m.Key, &m.Body))
		ms = append(ms, m)
	}
	require.NoError(t, rows.Err())
	bundles, _ := broker.Bundles(w.ladder.Bundles(), w.ladder.BundleKey, broker.BundleEvents, ms)
	for _, err := range w.publisher.Publish(t.Context(), bundles) {
		require.NoError(t, err)
	}
	return len(ms)
}

// TestStatisticsThroughTheBroker: a release without a ledger granted and expired; then two pods of this one come, while
// events go on, some of them twice. Statistics are those of the rows, and quota comes back.
func TestStatisticsThroughTheBroker(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	template, err := w.store.CreateTemplate(t.Context(), coupon.Template{
		Name: "walk", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"}, Quota: 1000,
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact, QuotaBack: coupon.QuotaBackTotal},
	})
	require.NoError(t, err)
	grants := make([]coupon.Grant, 200)
	for i := range grants {
		grants[i] = coupon.Grant{Key: fmt.Sprintf("k%d", i), TemplateID: template, UserID: fmt.Sprintf("u%d", i%9)}
	}
	out, err := w.store.Issue(t.Context(), grants[:150])
	require.NoError(t, err)
	w.db.Exec(t, `DELETE FROM outbox`) // these events are gone: nobody listened
	past := func(first, last uint64) {
		t.Helper()
		w.db.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE, due_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE
			WHERE id BETWEEN ? AND ?`, first, last)
		_, err := w.store.SweepBatch(t.Context(), false, time.Now().UTC(), coupon.Cursor{}, 500, func(time.Time) error { return nil })
		require.NoError(t, err)
	}
	past(out[0].CouponID, out[59].CouponID)

	w.pod(t)
	w.pod(t)
	late, err := w.store.Issue(t.Context(), grants[150:])
	require.NoError(t, err)
	past(late[0].CouponID, late[9].CouponID)
	require.Equal(t, 120, w.publish(t, "1=1"), "60 + 10 expiries, 50 grants")
	w.publish(t, "id % 3 = 0")
	for _, err := range w.publisher.Publish(t.Context(), []broker.Message{
		{Exchange: w.ladder.Replay(), Key: w.ladder.Ledger(), ID: "bad", Body: []byte(`{"not":"an event"}`), ContentType: event.ContentType},
	}) {
		require.NoError(t, err)
	}

	testenv.Wait(t, "everything to be counted", func() bool {
		return w.db.Int(t, `SELECT COUNT(*) FROM ledger_seen`) == 270 && w.db.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'ledger.seed' AND value = 'done'`) == 1
	})
	depth := func(queue string) int {
		d, err := w.client.Depths(t.Context(), []string{queue})
		require.NoError(t, err)
		return d[queue]
	}
	testenv.Wait(t, "an empty queue, the bad event parked", func() bool { return depth(w.ladder.Ledger()) == 0 && depth(w.ladder.Parked()) == 1 })
	days, err := w.store.TemplateStats(t.Context(), template, time.Time{}, time.Time{})
	require.NoError(t, err)
	var granted, expired, value int64
	for _, d := range days { // the test may run over midnight
		granted, expired, value = granted+d.Granted, expired+d.Expired, value+d.ExpiredValue
	}
	require.Equal(t, []int64{200, 70, 70 * 500}, []int64{granted, expired, value})
	testenv.Wait(t, "the quota to be back", func() bool { return w.db.Int(t, `SELECT taken FROM template_stock`) == 130 })
	require.Zero(t, w.db.Int(t, `SELECT COUNT(*) FROM quota_return`))
}
