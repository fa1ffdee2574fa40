package issuance_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// walk is issuance on the real broker and database.
type walk struct {
	db        testenv.Database
	store     *store.Store
	ladder    *ladder.Ladder
	client    *broker.Client
	publisher *broker.Publisher
	codec     *event.Codec
	sent      int
}

func newWalk(t *testing.T) *walk {
	t.Helper()
	w := &walk{db: testenv.NewDatabase(t)}
	w.store = w.db.Store(t)
	y := testenv.NewTopology(t, ladder.Level{Name: "s", Unit: time.Second, Digits: 1})
	w.ladder, w.client, w.publisher = y.Ladder, y.Client, y.Publisher
	var err error
	w.codec, err = event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	return w
}

// consumer is a publisher pod's issuance.
func (w *walk) consumer(t *testing.T, c issuance.Config) (stop func()) {
	t.Helper()
	h, err := issuance.NewHandler(c, w.db.Store(t), w.codec, w.ladder.ParkExchange(), zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	k, err := w.client.NewConsumer(broker.ConsumerOptions{
		Config: c.Consumer(), Queue: w.ladder.Issuance(), Handler: h.Handle, Ready: w.store.Ping,
		Publisher: w.publisher, ParkExchange: w.ladder.ParkExchange(),
	})
	require.NoError(t, err)
	return testenv.Run(t, k.Run)
}

func (w *walk) publish(t *testing.T, contentType string, bodies ...[]byte) {
	t.Helper()
	ms := make([]broker.Message, len(bodies))
	for i, b := range bodies {
		w.sent++
		ms[i] = broker.Message{
			Exchange: w.ladder.Issuance(), Key: event.KeyGrant, ID: fmt.Sprintf("m%d", w.sent), Body: b, ContentType: contentType, Mandatory: true,
		}
	}
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

func TestGrantsThroughTheBrokerBecomeCoupons(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	template, err := w.store.CreateTemplate(t.Context(), coupon.Template{
		Name: "walk", Rule: coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"},
		Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact}, Quota: 995, PerUser: 4,
	})
	require.NoError(t, err)
	grants := make([]coupon.Grant, 1000)
	for i := range grants {
		grants[i] = coupon.Grant{Key: fmt.Sprintf("k%04d", i), TemplateID: template, UserID: fmt.Sprintf("user %d", i%250), BatchID: "walk"}
	}
	// 600 grants in events of 150, 400 in events of their own; a tenth is sent twice.
	var events [][]byte
	for i := 0; i < 600; i += 150 {
		b, err := w.codec.Grants(fmt.Sprintf("e%d", i), time.Now(), grants[i:i+150])
		require.NoError(t, err)
		events = append(events, b)
	}
	for i := 600; i < 1000; i++ {
		b, err := w.codec.Grants(fmt.Sprintf("e%d", i), time.Now(), grants[i:i+1])
		require.NoError(t, err)
		events = append(events, b)
		if i%10 == 0 {
			events = append(events, b)
		}
	}
	w.publish(t, event.ContentType, events...)
	// Bad ones between: three bodies, and one event of which two members of four cannot be read.
	extra := func(key string) string {
		return fmt.Sprintf(`{"grant_key":%q,"template_id":"%d","user_id":"other"}`, key, template)
	}
	w.publish(t, "application/json", []byte(`not json`), []byte(`{"grant_key":"x"}`), []byte(`{"grants":[]}`),
		[]byte(`{"grants":[`+strings.Join([]string{extra("x1"), `{"grant_key":"x2"}`, `7`, extra("x3")}, ",")+`]}`))

	c := issuance.DefaultConfig()
	c.Batch = 64
	stop := w.consumer(t, c)
	w.consumer(t, c) // another pod
	answered := func() int64 {
		return w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1 AND routing_key IN ('coupon.issued','coupon.refused')`)
	}
	testenv.Wait(t, "1002 answers", func() bool { return answered() >= 1002 })
	testenv.Wait(t, "4 parked", func() bool { return w.depth(t, w.ladder.Parked()) == 4 })
	testenv.Wait(t, "empty queue", func() bool { return w.depth(t, w.ladder.Issuance()) == 0 })
	stop()

	require.EqualValues(t, 995, w.db.Int(t, `SELECT COUNT(*) FROM coupon`), "the quota")
	require.EqualValues(t, 995, w.db.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version = 1 AND cause = 'grant'`))
	require.EqualValues(t, 995, w.db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`))
	require.EqualValues(t, 995, w.db.Int(t, `SELECT taken FROM template_stock`))
	require.EqualValues(t, 995, w.db.Int(t, `SELECT COUNT(*) FROM grant_key k JOIN coupon c ON c.id = k.coupon_id`))
	require.LessOrEqual(t, w.db.Int(t, `SELECT MAX(taken) FROM user_quota`), int64(4))
	require.GreaterOrEqual(t, w.db.Int(t, `SELECT COUNT(DISTINCT msg_id) FROM outbox WHERE routing_key = 'coupon.refused'`), int64(7))

	reasons := make(map[string]string)
	for range 4 {
		d, ok, err := w.client.Get(t.Context(), w.ladder.Parked())
		require.NoError(t, err)
		require.True(t, ok)
		reasons[string(d.Body)], _ = d.Headers[broker.HeaderReason].(string)
		require.Equal(t, w.ladder.Issuance(), d.Headers[broker.HeaderOrigin])
	}
	require.Contains(t, reasons[`not json`], "malformed")
	require.Contains(t, reasons[`{"grant_key":"x"}`], "user_id")
	require.Contains(t, reasons[`{"grants":[]}`], "grants")
	require.Contains(t, reasons[`{"grants":[{"grant_key":"x2"},7]}`], "grants[1].user_id")
}

func TestGrantsWaitWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := newWalk(t)
	template, err := w.store.CreateTemplate(t.Context(), coupon.Template{
		Name: "walk", Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Currency: "CNY", Precision: coupon.Exact},
	})
	require.NoError(t, err)
	// The table is away, and with it every answer.
	w.db.Exec(t, `RENAME TABLE grant_key TO grant_key_away`)
	for i := range 20 {
		b, err := w.codec.Grants(fmt.Sprintf("e%d", i), time.Now(), []coupon.Grant{{Key: fmt.Sprint(i), TemplateID: template, UserID: "u"}})
		require.NoError(t, err)
		w.publish(t, event.ContentType, b)
	}
	w.consumer(t, issuance.DefaultConfig())
	testenv.Wait(t, "the queue to be seen and put back", func() bool { return w.depth(t, w.ladder.Issuance()) == 20 })
	w.db.Exec(t, `RENAME TABLE grant_key_away TO grant_key`)
	testenv.Wait(t, "20 coupons", func() bool { return w.db.Int(t, `SELECT COUNT(*) FROM coupon`) == 20 })
	testenv.Wait(t, "empty queue", func() bool { return w.depth(t, w.ladder.Issuance()) == 0 })
	require.Zero(t, w.depth(t, w.ladder.Parked()))
}
