package order_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/order"
)

var now = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

// fake answers as it is told, by coupon.
type fake struct {
	mu      sync.Mutex
	asked   []coupon.Order
	told    []coupon.RedeemRefused
	answers map[uint64]coupon.Acted
	fail    map[uint64]error
	refuse  error           // of RecordRedeemRefused
	inAct   func(id uint64) // called within Act
}

func (f *fake) Act(_ context.Context, o coupon.Order) (time.Time, []coupon.Acted, error) {
	if f.inAct != nil {
		f.inAct(o.CouponIDs[0])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, o)
	out := make([]coupon.Acted, len(o.CouponIDs))
	for i, id := range o.CouponIDs {
		if err := f.fail[id]; err != nil {
			return time.Time{}, nil, fmt.Errorf("act: %w", err)
		}
		out[i] = f.answers[id]
		out[i].Coupon.ID = id
	}
	return now, out, nil
}

func (f *fake) RecordRedeemRefused(_ context.Context, refusals []coupon.RedeemRefused) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil && len(refusals) > 0 {
		return f.refuse
	}
	f.told = append(f.told, refusals...)
	return nil
}

type scene struct {
	*order.Handler
	fake   *fake
	ladder *ladder.Ladder
	codec  *event.Codec
	reg    *prometheus.Registry
	logs   *observer.ObservedLogs
}

func newScene(t require.TestingT) *scene {
	l, err := ladder.New(ladder.DefaultConfig())
	require.NoError(t, err)
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	core, logs := observer.New(zapcore.DebugLevel)
	s := &scene{
		fake:   &fake{answers: map[uint64]coupon.Acted{}, fail: map[uint64]error{}},
		ladder: l, codec: codec, reg: prometheus.NewRegistry(), logs: logs,
	}
	s.Handler, err = order.NewHandler(order.DefaultConfig(), s.fake, l, zap.New(core), s.reg)
	require.NoError(t, err)
	return s
}

func (s *scene) count(t require.TestingT, typ, result string) int {
	families, err := s.reg.Gather()
	require.NoError(t, err)
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == result && m.GetLabel()[1].GetValue() == typ {
			return int(m.GetCounter().GetValue())
		}
	}
	require.Fail(t, "no such series", typ+" "+result)
	return 0
}

// plain is an event as a sender without CloudEvents sends it.
func plain(key, orderID string, ids ...uint64) broker.Delivery {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = fmt.Sprintf("%q", fmt.Sprint(id))
	}
	return broker.Delivery{
		MessageID: "m-" + orderID, Key: key, Exchange: "lapse.orders", Queue: "lapse.orders", ContentType: "application/json",
		Body: fmt.Appendf(nil, `{"order_id":%q,"user_id":"u","coupon_ids":[%s]}`, orderID, strings.Join(texts, ",")),
	}
}

func (s *scene) cloud(t *testing.T, e event.Order) broker.Delivery {
	t.Helper()
	key, body, err := s.codec.Order(e, now)
	require.NoError(t, err)
	return broker.Delivery{Key: key, Queue: "lapse.orders", ContentType: event.ContentType, Body: body}
}

func TestWhatEachTypeAsksFor(t *testing.T) {
	t.Parallel()
	for typ, want := range map[string]coupon.Order{
		event.TypeOrderPaid:          {Verb: coupon.VerbRedeem},
		event.TypeOrderClosed:        {Verb: coupon.VerbRelease, Tombstone: true},
		event.TypeOrderPaymentFailed: {Verb: coupon.VerbRelease},
		event.TypeOrderRefunded:      {Verb: coupon.VerbRefund, Tombstone: true},
	} {
		s := newScene(t)
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		out, err := s.Handle(t.Context(), []broker.Delivery{s.cloud(t, event.Order{
			Type: typ, EventID: "e", OrderID: "o", UserID: "u", CouponIDs: []uint64{3, 1}, Reason: "why", Trace: trace,
		})})
		require.NoError(t, err)
		require.Equal(t, []broker.Outcome{broker.Ack()}, out)
		want.OrderID, want.UserID, want.CouponIDs, want.Each = "o", "u", []uint64{3, 1}, true
		want.Actor, want.Reason, want.Trace = order.Actor, "why", trace
		require.Equal(t, []coupon.Order{want}, s.fake.asked)
		require.NoError(t, want.Validate())
		require.Equal(t, 1, s.count(t, strings.TrimSuffix(strings.TrimPrefix(typ, "order."), ".v1"), "done"))
		require.Empty(t, s.fake.told)
	}
}

func TestAPartialRefundMovesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	d := plain("order.refunded", "o", 1)
	d.Body = []byte(`{"order_id":"o","coupon_ids":["1"],"full":false}`)
	out, err := s.Handle(t.Context(), []broker.Delivery{d})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack()}, out)
	require.Empty(t, s.fake.asked)
	require.Equal(t, 1, s.count(t, "refunded", "partial"))
}

func TestARefusedRedemptionIsTold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.fake.answers[1] = coupon.Acted{Repeated: true}
	s.fake.answers[2] = coupon.Acted{Refused: coupon.CodeNotFound}
	s.fake.answers[3] = coupon.Acted{Refused: coupon.CodeExpired, Coupon: coupon.Coupon{
		Row: coupon.Row{Status: coupon.Unused, ExpiresAt: now.Add(-time.Hour)}, UserID: "owner",
		Terms: coupon.Terms{TemplateID: 7, Value: 500, Currency: "CNY"},
	}}
	nobody := plain("order.paid", "p", 3)
	nobody.Body = []byte(`{"order_id":"p","coupon_ids":[3]}`)
	out, err := s.Handle(t.Context(), []broker.Delivery{
		plain("order.paid", "o", 1, 2, 3, 4), nobody,
		plain("order.closed", "q", 3), plain("order.refunded", "q", 2), plain("order.payment_failed", "q", 1),
	})
	require.NoError(t, err)
	require.Equal(t, slices.Repeat([]broker.Outcome{broker.Ack()}, 5), out)
	require.Equal(t, []coupon.RedeemRefused{
		{CouponID: 2, OrderID: "o", UserID: "u", Code: coupon.CodeNotFound, At: now},
		{CouponID: 3, OrderID: "o", UserID: "u", Code: coupon.CodeExpired, TemplateID: 7, State: coupon.Expired, Value: 500, Currency: "CNY", At: now},
		{CouponID: 3, OrderID: "p", UserID: "owner", Code: coupon.CodeExpired, TemplateID: 7, State: coupon.Expired, Value: 500, Currency: "CNY", At: now},
	}, s.fake.told, "and no other verb's refusal is told")
	require.Equal(t, 2, s.count(t, "paid", "refused"))
	require.Equal(t, 1, s.count(t, "closed", "refused"))
	require.Equal(t, 1, s.count(t, "refunded", "refused"))
	require.Equal(t, 1, s.count(t, "payment_failed", "repeated"))
}

func TestWhatCannotBeReadIsParkedWithItsReason(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	bodies := []string{
		``, `not json`, `{}`, `{"order_id":"o","coupon_ids":[]}`, `{"order_id":"o","coupon_ids":["1","1"]}`,
		`{"specversion":"1.0","type":"order.paid.v2","id":"1","source":"s","data":{}}`,
	}
	for _, body := range bodies {
		d := plain("order.paid", "o", 1)
		d.Body = []byte(body)
		out, err := s.Handle(t.Context(), []broker.Delivery{d, plain("order.paid", "good", 1)})
		require.NoError(t, err)
		require.Equal(t, broker.Ack(), out[1], "the others go on")
		_, err = event.DecodeOrder(d.Body, d.ContentType, d.MessageID, d.Key)
		require.Equal(t, broker.Park(err.Error()), out[0])
	}
	other := plain("order.shipped", "o", 1)
	out, err := s.Handle(t.Context(), []broker.Delivery{other})
	require.NoError(t, err)
	_, err = event.DecodeOrder(other.Body, other.ContentType, other.MessageID, other.Key)
	require.Equal(t, broker.Park(err.Error()), out[0])
	require.Equal(t, len(bodies)+1, s.count(t, "unknown", "parked"))
}

func TestWhatCannotBeStoredIsParked(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.fake.fail[2] = fmt.Errorf("%w: row", coupon.ErrIntegrity)
	out, err := s.Handle(t.Context(), []broker.Delivery{plain("order.paid", "a", 1), plain("order.paid", "b", 2)})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Park("attempt 1 failed: act: integrity: row")}, out)
	require.Equal(t, 1, s.count(t, "paid", "parked"))
}

func TestWhileTheDatabaseIsAwayNothingIsDecided(t *testing.T) {
	t.Parallel()
	for _, fail := range []error{coupon.ErrUnavailable, context.Canceled, fmt.Errorf("unforeseen")} {
		s := newScene(t)
		s.fake.fail[2] = fail
		out, err := s.Handle(t.Context(), []broker.Delivery{plain("order.paid", "a", 1), plain("order.paid", "b", 2)})
		require.ErrorIs(t, err, fail)
		require.Nil(t, out)

		s = newScene(t)
		s.fake.refuse = fail
		s.fake.answers[1] = coupon.Acted{Refused: coupon.CodeExpired}
		out, err = s.Handle(t.Context(), []broker.Delivery{plain("order.paid", "a", 1)})
		require.ErrorIs(t, err, fail, "it is not acked before it is told")
		require.Nil(t, out)
	}
}

// A coupon that somebody holds delays its own events, and no others; they come back as they were, later and later.
func TestAHeldCouponWaitsAside(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.fake.fail[2] = fmt.Errorf("%w: held", coupon.ErrContention)
	delays := []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	d := plain("order.paid", "b", 2, 5)
	d.Headers = map[string]any{broker.HeaderTrace: "trace", "secret": strings.Repeat("x", 1000)}
	for attempt, delay := range delays {
		out, err := s.Handle(t.Context(), []broker.Delivery{plain("order.paid", "a", 1), d, plain("order.closed", "c", 5, 6), plain("order.closed", "d", 6), plain("order.paid", "e", 7)})
		require.NoError(t, err)
		route := s.ladder.Route(delay, ladder.Order, ladder.Exact, 2)
		aside := broker.Message{
			Exchange: s.ladder.Enter(), Key: route.Key, ID: "m-b", Body: d.Body, ContentType: "application/json", Mandatory: true,
			Type: event.TypeOrderPaid, Attempt: attempt + 1, Headers: map[string]any{broker.HeaderTrace: "trace"},
		}
		require.Equal(t, delay, route.Wait)
		require.Zero(t, route.Expiration)
		require.Equal(t, broker.Ack(), out[0])
		require.Equal(t, broker.Forward(aside), out[1])
		for i, partition := range map[int]int{2: 5, 3: 6} {
			behind := plain("order.closed", map[int]string{2: "c", 3: "d"}[i], map[int][]uint64{2: {5, 6}, 3: {6}}[i]...)
			require.Equal(t, broker.Forward(broker.Message{
				Exchange: s.ladder.Enter(), Key: s.ladder.Route(delay, ladder.Order, ladder.Exact, partition).Key, ID: behind.MessageID, Body: behind.Body,
				ContentType: "application/json", Mandatory: true, Type: event.TypeOrderClosed,
			}), out[i], "what shares a coupon with it stays behind it, and no attempt counts")
		}
		require.Equal(t, broker.Ack(), out[4])
		// It comes back by the ladder.
		d = broker.Delivery{
			MessageID: aside.ID, Key: aside.Key, Exchange: s.ladder.Due(), Queue: s.ladder.Orders(), ContentType: aside.ContentType,
			Type: aside.Type, Body: aside.Body, Headers: aside.Headers, Attempt: aside.Attempt,
		}
	}
	out, err := s.Handle(t.Context(), []broker.Delivery{d})
	require.NoError(t, err)
	require.Equal(t, broker.Park("attempt 6 failed: act: contention: held"), out[0])
	require.Equal(t, 5, s.count(t, "paid", "aside"))

	// Parked, it can be sent to the queue once more as it is.
	delete(s.fake.fail, 2)
	parked := d.Parked(s.ladder.ParkExchange(), "reason")
	replay := broker.Delivery{MessageID: parked.ID, Key: parked.Key, ContentType: parked.ContentType, Type: parked.Type, Body: parked.Body, Attempt: parked.Attempt}
	out, err = s.Handle(t.Context(), []broker.Delivery{replay})
	require.NoError(t, err)
	require.Equal(t, broker.Ack(), out[0])
}

// Whatever a batch holds, events that share a coupon keep their order, and no more than the limit are worked on at once.
func TestEventsOfACouponKeepTheirOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newScene(t)
		var mu sync.Mutex
		busy, most := 0, 0
		s.fake.inAct = func(uint64) {
			mu.Lock()
			busy++
			most = max(most, busy)
			mu.Unlock()
			defer func() { mu.Lock(); busy--; mu.Unlock() }()
		}
		ids := rapid.SliceOfNDistinct(rapid.Uint64Range(1, 12), 1, 3, rapid.ID[uint64])
		sent := rapid.SliceOfN(ids, 1, 40).Draw(t, "events")
		batch := make([]broker.Delivery, len(sent))
		for i := range sent {
			batch[i] = plain("order.paid", fmt.Sprint(i), sent[i]...)
		}
		out, err := s.Handle(context.Background(), batch)
		require.NoError(t, err)
		require.Equal(t, slices.Repeat([]broker.Outcome{broker.Ack()}, len(sent)), out)
		require.Len(t, s.fake.asked, len(sent))
		require.LessOrEqual(t, most, order.DefaultConfig().Parallel)
		last := map[uint64]int{}
		for _, o := range s.fake.asked {
			var i int
			_, err := fmt.Sscan(o.OrderID, &i)
			require.NoError(t, err)
			for _, id := range o.CouponIDs {
				require.GreaterOrEqual(t, i, last[id])
				last[id] = i
			}
		}
	})
}

// One that waits does not keep the others of its batch from being done.
func TestDifferentOrdersAreDoneSideBySide(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	others := make(chan struct{}, 2)
	s.fake.inAct = func(id uint64) {
		if id != 1 {
			others <- struct{}{}
			return
		}
		<-others
		<-others
	}
	out, err := s.Handle(t.Context(), []broker.Delivery{plain("order.paid", "a", 1), plain("order.paid", "b", 2), plain("order.paid", "c", 3)})
	require.NoError(t, err)
	require.Len(t, out, 3)
}

func TestNothingOfUsersIsLogged(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.fake.fail[424242] = fmt.Errorf("%w: held by alice", coupon.ErrIntegrity)
	d := plain("order.paid", "secret-order", 424242)
	bad := plain("order.paid", "secret-order", 1)
	bad.Body = []byte(`{"order_id":["secret-order"]}`)
	_, err := s.Handle(t.Context(), []broker.Delivery{d, bad})
	require.NoError(t, err)
	require.Equal(t, 2, s.logs.Len())
	for _, e := range s.logs.All() {
		text := fmt.Sprint(e.Message, e.ContextMap())
		for _, secret := range []string{"alice", "secret-order", "424242"} {
			require.NotContains(t, text, secret)
		}
	}
}

func TestEveryResultIsThereFromTheStart(t *testing.T) {
	t.Parallel()
	n, err := testutil.GatherAndCount(newScene(t).reg, "lapse_orders_total")
	require.NoError(t, err)
	require.Equal(t, 4*5+2, n)
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	require.NoError(t, order.DefaultConfig().Validate())
	require.NoError(t, order.DefaultConfig().Consumer().Validate())
	err := order.Config{Batch: 1001, Linger: -1, Prefetch: 1}.Validate()
	for _, want := range []string{
		"batch: must be between 1 and 1000, got 1001", "linger: must be between 0s and 10s, got -1ns",
		"prefetch: must be between batch (1001) and 10000, got 1", "concurrency: must be between 1 and 64, got 0",
		"parallel: must be between 1 and 64, got 0",
	} {
		require.ErrorContains(t, err, want)
	}
}
