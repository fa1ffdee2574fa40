package notice_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/notice/policy"
)

// windows is a store that keeps items by event id and refuses some.
type windows struct {
	kept     map[string]coupon.NoticeItem
	refuse   func(coupon.NoticeItem) bool
	err      error
	calls    int
	profiles map[string]coupon.Profile
	asked    []string
	now      time.Time
}

func (w *windows) Profiles(_ context.Context, users []string) (map[string]coupon.Profile, error) {
	w.asked = append(w.asked, users...)
	return w.profiles, w.err
}

func (w *windows) CollectNotices(_ context.Context, _ coupon.WindowRules, items []coupon.NoticeItem) (int, error) {
	w.calls++
	if w.err != nil {
		return 0, w.err
	}
	if w.refuse != nil && slices.ContainsFunc(items, w.refuse) {
		return 0, fmt.Errorf("insert: %w", coupon.ErrIntegrity)
	}
	added := 0
	for _, it := range items {
		if _, known := w.kept[it.EventID]; !known {
			w.kept[it.EventID] = it
			added++
		}
	}
	return added, nil
}

func newWindows() *windows {
	return &windows{kept: map[string]coupon.NoticeItem{}, now: ended.Add(time.Minute)}
}

func (w *windows) Now(context.Context) (time.Time, error) { return w.now, nil }

// ended is when the tests' coupons end; their clock shows a minute after.
var ended = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func expired(t require.TestingT, installation string, id uint64, user string) broker.Delivery {
	codec, err := event.NewCodec(installation)
	require.NoError(t, err)
	at := ended
	key, _, body, err := codec.Transition(coupon.Transition{
		CouponID: id, Version: 2, From: coupon.Unused, To: coupon.Expired, Cause: coupon.CauseLadder, UserID: user,
		Terms: coupon.Terms{TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY"}, ExpiresAt: at, DueAt: at, At: at,
	})
	require.NoError(t, err)
	return broker.Delivery{Key: key, Body: body}
}

func expiring(t require.TestingT, e coupon.Expiring) broker.Delivery {
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	key, _, body := codec.Expiring(e)
	return broker.Delivery{Key: key, Body: body}
}

func collector(t require.TestingT, w *windows, log *zap.Logger, change ...func(*notice.CollectorDeps)) (*notice.Collector, *prometheus.Registry) {
	reg := prometheus.NewRegistry()
	c := notice.DefaultConfig()
	c.Channels = append(c.Channels, "sms", "push", "email")
	rules, err := policy.New(c.Policy, c.Names())
	require.NoError(t, err)
	d := notice.CollectorDeps{
		Source: "/lapse/test", Store: w, Policy: rules, Log: log, Registerer: reg,
	}
	for _, f := range change {
		f(&d)
	}
	k, err := notice.NewCollector(c, d)
	require.NoError(t, err)
	return k, reg
}

func TestCollectorParksWhatItCannotRead(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	w := newWindows()
	c, reg := collector(t, w, zap.New(core))
	batch := []broker.Delivery{
		expired(t, "test", 1, "secret-user"),
		{Body: []byte("{")},
		expired(t, "elsewhere", 2, "secret-user"), expired(t, "test", 3, "secret-user"),
		{Body: []byte(`{"user_id":"secret-user"}`)},
		{Key: "coupon.used", Body: []byte(strings.ReplaceAll(string(expired(t, "test", 9, "secret-user").Body), "coupon.expired.v1", "coupon.used.v1"))},
		expired(t, "test", 1, "secret-user"),
	}
	out, err := c.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(out[5]), "unknown type")
	for _, i := range []int{0, 3, 6} {
		require.Equal(t, broker.Ack(), out[i])
	}
	require.Contains(t, fmt.Sprint(out[1]), "decode")
	require.Equal(t, broker.Park(`source: must be /lapse/test, got "/lapse/elsewhere"`), out[2])
	require.Len(t, w.kept, 2)
	for _, x := range []struct {
		kind, result string
		n            float64
	}{
		{"expired", "added", 2}, {"expired", "repeated", 1}, {"expired", "parked", 3}, {"other", "parked", 1}, {"at_risk", "parked", 0},
	} {
		require.InDelta(t, x.n, metric(t, reg, "lapse_notice_items_total", "kind", x.kind, "result", x.result), 0, x.kind+x.result)
	}
	require.Equal(t, 1, logs.Len(), "one line for a batch")
	require.NotContains(t, fmt.Sprint(logs.All()), "secret-user")
}

func TestCollectorFindsTheBadOnes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "n")
		bad := rapid.SliceOfDistinct(rapid.Uint64Range(1, uint64(n)), rapid.ID).Draw(t, "bad")
		w := newWindows()
		w.refuse = func(it coupon.NoticeItem) bool { return slices.Contains(bad, it.CouponID) }
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
	w := newWindows()
	w.err = fmt.Errorf("x: %w", coupon.ErrUnavailable)
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

func TestCollectorPlacesReminders(t *testing.T) {
	t.Parallel()
	w := newWindows()
	w.profiles = map[string]coupon.Profile{"far": {UserID: "far", Zone: "Pacific/Kiritimati"}}
	day := time.Date(2026, 11, 5, 12, 0, 0, 0, time.UTC)
	c, reg := collector(t, w, zap.NewNop())
	first := coupon.Expiring{CouponID: 1, UserID: "u", TemplateID: 7, Version: 3, ExpiresAt: day, Offset: "-1d", NotifyAt: day.Add(-24 * time.Hour), Currency: "CNY"}
	batch := []broker.Delivery{expired(t, "test", 99, "gone")}
	for _, change := range []func(*coupon.Expiring){
		func(*coupon.Expiring) {},
		func(e *coupon.Expiring) { e.UserID = "far" }, // 02:00 of the next day there
		func(e *coupon.Expiring) { e.Offset, e.UserID = "-1d@10:00", "far" },
		func(e *coupon.Expiring) { e.Offset, e.NotifyAt = "-30m", day.Add(-30*time.Minute) },
		func(e *coupon.Expiring) { // found late, and still
			e.ExpiresAt = ended.Add(18*time.Hour + 2*time.Minute)
			e.NotifyAt = e.ExpiresAt.Add(-24 * time.Hour)
		},
		func(e *coupon.Expiring) { // too late
			e.ExpiresAt = ended.Add(18 * time.Hour)
			e.NotifyAt = e.ExpiresAt.Add(-24 * time.Hour)
		},
		func(e *coupon.Expiring) { // came back from an order
			e.ExpiresAt = ended.Add(18 * time.Hour)
			e.NotifyAt, e.Late = e.ExpiresAt.Add(-24*time.Hour), true
		},
	} {
		e := first
		e.CouponID = uint64(len(batch))
		change(&e)
		batch = append(batch, expiring(t, e))
	}
	out, err := c.Handle(t.Context(), batch)
	require.NoError(t, err)
	for i := range out {
		require.Equal(t, broker.Ack(), out[i])
	}
	require.Equal(t, []string{"far", "u"}, w.asked, "once each, and not those of ended coupons")
	by := map[uint64]coupon.NoticeItem{}
	for _, it := range w.kept {
		by[it.CouponID] = it
	}
	require.Equal(t, coupon.NoticeExpired, by[99].Kind)
	require.Empty(t, by[99].Dropped)
	require.Equal(t, "-1d/2026-11-05", by[1].Slot)
	require.Equal(t, day.Add(-24*time.Hour), by[1].NotifyAt)
	require.Equal(t, day.Add(-24*time.Hour), by[1].CloseAt)
	require.Equal(t, uint64(7), by[1].TemplateID)
	require.Equal(t, "-1d/2026-11-06", by[2].Slot)
	require.Equal(t, day.Add(-24*time.Hour), by[2].NotifyAt)
	require.True(t, by[2].CloseAt.Before(by[2].NotifyAt), "it is 02:00: what is silent then goes before")
	require.Equal(t, "-1d@10:00/2026-11-06", by[3].Slot)
	require.Equal(t, time.Date(2026, 11, 4, 20, 0, 0, 0, time.UTC), by[3].NotifyAt, "10:00 there")
	require.Equal(t, "-30m/2026-11-05T12:00:00Z", by[4].Slot)
	require.Empty(t, by[5].Dropped)
	require.Equal(t, coupon.ReasonSkipped, by[6].Dropped)
	require.Empty(t, by[7].Dropped)
	require.True(t, by[7].Late)
	require.InDelta(t, 1, metric(t, reg, "lapse_notice_items_total", "kind", "expiring", "result", coupon.ReasonSkipped), 0)
	require.InDelta(t, 7, metric(t, reg, "lapse_notice_items_total", "kind", "expiring", "result", "added"), 0)
}

func TestCollectorTellsNothingOfLongAgo(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]string{24 * time.Hour: "", 24*time.Hour + time.Second: coupon.ReasonStale} {
		w := newWindows()
		w.now = ended.Add(after)
		c, _ := collector(t, w, zap.NewNop())
		out, err := c.Handle(t.Context(), []broker.Delivery{expired(t, "test", 1, "u")})
		require.NoError(t, err)
		require.Equal(t, broker.Ack(), out[0])
		for _, it := range w.kept {
			require.Equal(t, want, it.Dropped)
		}
		require.Len(t, w.kept, 1)
	}
}

func TestCollectorHandsAtRiskOn(t *testing.T) {
	t.Parallel()
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	key, _, body := codec.AtRisk(coupon.AtRisk{UserID: "u", Day: "2026-11-01", EndsAt: ended, Coupons: 2, Offer: coupon.OfferBanner, At: ended})
	batch := []broker.Delivery{expired(t, "test", 1, "u"), {Key: key, Body: body}, {Key: "elsewhere", Body: body}}
	w := newWindows()
	c, _ := collector(t, w, zap.NewNop())
	out, err := c.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack(), broker.Ack(), broker.Ack()}, out, "without a handler")

	var got []event.AtRisk
	answer := []broker.Outcome{broker.Hold(time.Second), broker.Ack()}
	c, _ = collector(t, newWindows(), zap.NewNop(), func(d *notice.CollectorDeps) {
		d.AtRisk = func(_ context.Context, ds []event.AtRisk) ([]broker.Outcome, error) {
			got = ds
			return answer, nil
		}
	})
	out, err = c.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, []string{"u", "u"}, []string{got[0].UserID, got[1].UserID})
	require.Equal(t, []broker.Outcome{broker.Ack(), answer[0], answer[1]}, out)
	answer = nil
	_, err = c.Handle(t.Context(), batch)
	require.ErrorContains(t, err, "0 outcomes of 2 events")
}
