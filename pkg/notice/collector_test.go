package notice_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/notice"
)

const time10 = 10 * time.Second

// windows is a store that keeps event ids and refuses some.
type windows struct {
	kept   map[string]bool
	refuse func(coupon.NoticeItem) bool
	err    error
	calls  int
}

func (w *windows) CollectNotices(_ context.Context, _ coupon.NoticeKind, _ coupon.WindowRules, items []coupon.NoticeItem) (int, error) {
	w.calls++
	if w.err != nil {
		return 0, w.err
	}
	if w.refuse != nil && slices.ContainsFunc(items, w.refuse) {
		return 0, fmt.Errorf("insert: %w", coupon.ErrIntegrity)
	}
	added := 0
	for _, it := range items {
		if !w.kept[it.EventID] {
			w.kept[it.EventID] = true
			added++
		}
	}
	return added, nil
}

func expired(t require.TestingT, installation string, id uint64, user string) broker.Delivery {
	codec, err := event.NewCodec(installation)
	require.NoError(t, err)
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	_, _, body, err := codec.Transition(coupon.Transition{
		CouponID: id, Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder, UserID: user,
		Terms: coupon.Terms{TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY"}, ExpiresAt: at, DueAt: at, At: at,
	})
	require.NoError(t, err)
	return broker.Delivery{Body: body}
}

func collector(t require.TestingT, w *windows, log *zap.Logger) (*notice.Collector, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	c, err := notice.NewCollector(notice.DefaultConfig(), "/lapse/test", w, log, reg)
	require.NoError(t, err)
	return c, reg
}

func TestCollectorParksWhatItCannotRead(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	w := &windows{kept: map[string]bool{}}
	c, reg := collector(t, w, zap.New(core))
	batch := []broker.Delivery{
		expired(t, "test", 1, "secret-user"),
		{Body: []byte("{")},
		expired(t, "elsewhere", 2, "secret-user"), expired(t, "test", 3, "secret-user"),
		{Body: []byte(`{"user_id":"secret-user"}`)},
		expired(t, "test", 1, "secret-user"),
	}
	out, err := c.Handle(t.Context(), batch)
	require.NoError(t, err)
	for _, i := range []int{0, 3, 5} {
		require.Equal(t, broker.Ack(), out[i])
	}
	require.Contains(t, fmt.Sprint(out[1]), "decode")
	require.Equal(t, broker.Park(`source: must be /lapse/test, got "/lapse/elsewhere"`), out[2])
	require.Len(t, w.kept, 2)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP lapse_notice_items_total Events collected for notices, by what became of them.
# TYPE lapse_notice_items_total counter
lapse_notice_items_total{kind="expired",result="added"} 2
lapse_notice_items_total{kind="expired",result="parked"} 3
lapse_notice_items_total{kind="expired",result="repeated"} 1
`), "lapse_notice_items_total"))
	require.Equal(t, 1, logs.Len(), "one line for a batch")
	require.NotContains(t, fmt.Sprint(logs.All()), "secret-user")
}

func TestCollectorFindsTheBadOnes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "n")
		bad := rapid.SliceOfDistinct(rapid.Uint64Range(1, uint64(n)), rapid.ID).Draw(t, "bad")
		w := &windows{kept: map[string]bool{}, refuse: func(it coupon.NoticeItem) bool { return slices.Contains(bad, it.CouponID) }}
		c, _ := collector(t, w, zap.NewNop())
		batch := make([]broker.Delivery, n)
		for i := range batch {
			batch[i] = expired(t, "test", uint64(i+1), "u")
		}
		out, err := c.Handle(context.Background(), batch)
		require.NoError(t, err)
		for i := range out {
			if slices.Contains(bad, uint64(i+1)) {
				require.Equal(t, broker.Park("insert: integrity"), out[i])
			} else {
				require.Equal(t, broker.Ack(), out[i])
			}
		}
		require.Len(t, w.kept, n-len(bad))
	})
}

func TestCollectorWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	w := &windows{kept: map[string]bool{}, err: fmt.Errorf("x: %w", coupon.ErrUnavailable)}
	c, _ := collector(t, w, zap.NewNop())
	batch := []broker.Delivery{expired(t, "test", 1, "u"), {Body: []byte("{")}}
	out, err := c.Handle(t.Context(), batch)
	require.ErrorIs(t, err, coupon.ErrUnavailable)
	require.Nil(t, out)
	require.Equal(t, 1, w.calls)

	w.err = fmt.Errorf("x: %w", coupon.ErrContention)
	out, err = c.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, broker.Hold(250*time.Millisecond), out[0])
}
