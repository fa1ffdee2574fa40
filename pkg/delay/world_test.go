package delay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

// world is a database, a small topology and the consumers of its due queues, on the real servers. What comes is settled by the core.
type world struct {
	*testing.T
	db        testenv.Database
	store     *store.Store
	ladder    *ladder.Ladder
	publisher *broker.Publisher
	codec     *event.Codec
	template  uint64
	redis     secret.String

	base, read time.Time // the database's clock, and ours before it was asked: its clock is at most base + time since read

	mu    sync.Mutex
	heard map[string]int
	early map[string]time.Duration // the most that one was early
	due   map[string]time.Time     // instants, by coupon
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		T: t, db: testenv.NewDatabase(t), redis: testenv.Redis(t), heard: map[string]int{}, early: map[string]time.Duration{}, due: map[string]time.Time{},
	}
	w.store = w.db.Store(t)
	y := testenv.NewTopology(t, ladder.Level{Name: "m", Unit: time.Minute, Digits: 5}, ladder.Level{Name: "s", Unit: time.Second, Digits: 59})
	w.ladder, w.publisher = y.Ladder, y.Publisher
	var err error
	w.codec, err = event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.read = time.Now()
	w.base, err = w.store.Now(ctx)
	require.NoError(t, err)
	w.template, err = w.store.CreateTemplate(ctx, coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Value: 500, Currency: "CNY", Precision: coupon.Exact},
	})
	require.NoError(t, err)
	w.consume(y.Client)
	return w
}

// consume settles what comes on the due queues, and notes it.
func (w *world) consume(client *broker.Client) {
	c := expiry.DefaultConfig()
	h := expiry.NewHandler(w.core(), delay.NewLadder(w.ladder, w.publisher), w.codec, expiry.NewLimiter(c), zap.NewNop())
	for _, queue := range w.ladder.DueQueues() {
		consumer, err := client.NewConsumer(broker.ConsumerOptions{
			Config: c.Consumer, Queue: queue, Ready: w.store.Ping, Publisher: w.publisher, ParkExchange: w.ladder.ParkExchange(),
			Handler: func(ctx context.Context, batch []broker.Delivery) ([]broker.Outcome, error) {
				w.note(batch)
				return h.Handle(ctx, batch)
			},
		})
		require.NoError(w, err)
		w.run(consumer.Run)
	}
}

func (w *world) core() *expiry.Core {
	return expiry.NewCore(w.store, clock.NewGuard(expiry.DefaultConfig().ClockAhead, time.Now), prometheus.NewRegistry())
}

func (w *world) note(batch []broker.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range batch {
		t, err := event.DecodeTrigger(d.Body)
		if err != nil {
			continue
		}
		id := fmt.Sprint(t.Kind, t.CouponID)
		w.heard[id]++
		w.early[id] = max(w.early[id], w.due[id].Sub(w.base.Add(d.ReceivedAt.Sub(w.read))))
	}
}

// run starts a component; the function stops it and waits, as the test's end does.
func (w *world) run(run func(context.Context) error) (stop func()) {
	w.Helper()
	return testenv.Run(w, run)
}

func (w *world) now() time.Time {
	w.Helper()
	now, err := w.store.Now(w.Context())
	require.NoError(w, err)
	return now
}

// issue grants n coupons that end at an instant, and gives their triggers as the outbox would have them.
func (w *world) issue(n int, ends time.Time, name string) []coupon.Timed {
	w.Helper()
	ends = coupon.CeilSecond(ends)
	grants := make([]coupon.Grant, n)
	for i := range grants {
		grants[i] = coupon.Grant{Key: fmt.Sprint(name, ends.Unix(), ".", i), TemplateID: w.template, UserID: "u", ExpiresAt: ends}
	}
	answers, err := w.store.Issue(w.Context(), grants)
	require.NoError(w, err)
	ts := make([]coupon.Timed, n)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, a := range answers {
		require.Empty(w, a.Refused, a.Detail)
		ts[i] = w.trigger(coupon.KindExpire, a.CouponID, 1, ends)
		w.due[fmt.Sprint(coupon.KindExpire, a.CouponID)] = ends
	}
	return ts
}

func (w *world) trigger(kind coupon.Kind, id uint64, version uint32, at time.Time) coupon.Timed {
	t := coupon.Trigger{Kind: kind, CouponID: id, At: at, Origin: coupon.OriginLadder, ID: coupon.TriggerID(coupon.SentByVerb, id, version)}
	return coupon.Timed{ID: t.ID, Body: w.codec.Trigger(t), Kind: kind, Class: coupon.Exact.Class(), CouponID: id, At: at}
}

// deliver hands the triggers over, again and again until they are taken, as the relay does.
func (w *world) deliver(m delay.Mechanism, ts []coupon.Timed) {
	w.Helper()
	testenv.Wait(w, "handing over", func() bool { return errors.Join(m.Deliver(w.Context(), w.now(), ts)...) == nil })
}

func (w *world) expired() int64 { return w.db.Int(w, `SELECT COUNT(*) FROM coupon WHERE status = 4`) }

// requireHeard: each of these came at least once, and none before its instant by more than early.
func (w *world) requireHeard(ts []coupon.Timed, early time.Duration) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range ts {
		id := fmt.Sprint(t.Kind, t.CouponID)
		require.Positive(w, w.heard[id], "%s of %s never came", id, t.At)
		require.LessOrEqual(w, w.early[id], early, "%s came early", id)
	}
}

func (w *world) times(t coupon.Timed) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard[fmt.Sprint(t.Kind, t.CouponID)]
}
