package notice_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const (
	oneTrace   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	otherTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

func TestEventsAreCollectedInTheirTraces(t *testing.T) {
	t.Parallel()
	traces, came := testenv.Traces(t, 0)
	w := newWindows()
	c, _ := collector(t, w, zap.NewNop(), func(d *notice.CollectorDeps) { d.Traces = traces })
	e := coupon.Expiring{
		CouponID: 7, UserID: "u", TemplateID: 1, Version: 1, ExpiresAt: ended, Offset: "-3d", NotifyAt: ended.AddDate(0, 0, -3), Currency: "CNY", Trace: oneTrace,
	}
	batch := []broker.Delivery{expiring(t, e), expired(t, "test", 8, "u")}
	_, err := c.Handle(t.Context(), batch)
	require.NoError(t, err)
	w.err = errors.New("away")
	_, err = c.Handle(t.Context(), batch)
	require.Error(t, err)
	spans := came()
	require.Len(t, spans, 2)
	for i, failed := range []string{"", "not stored"} {
		require.Equal(t, [4]string{"collect expiring", oneTrace[3:35], oneTrace[36:52], failed},
			[4]string{spans[i].Name, spans[i].Trace, spans[i].Parent, spans[i].Failed})
	}
}

// A notice that tells of one coupon is in its trace; one that tells of several is linked to theirs.
func TestNoticesAreInTheirCouponsTraces(t *testing.T) {
	t.Parallel()
	traces, came := testenv.Traces(t, 0)
	asked := func(_ context.Context, windows []uint64) (map[uint64][]string, error) {
		require.ElementsMatch(t, []uint64{1, 2, 3}, windows)
		return map[uint64][]string{1: {oneTrace}, 2: {oneTrace, "nonsense", otherTrace}}, nil
	}
	spans := notice.Spans(traces, asked, coupon.ChannelPush, map[uint64]notice.Result{
		1: {Outcome: notice.Sent}, 2: {Outcome: notice.Retry, Reason: "http_500"}, 3: {Outcome: notice.Sent},
	})
	require.Equal(t, 2, spans)
	by := make(map[string]receive.Span)
	for _, s := range came() {
		require.Equal(t, "notice push", s.Name)
		by[s.Attributes["lapse.notice_id"]] = s
	}
	require.Len(t, by, 2)
	require.Equal(t, [2]string{oneTrace[3:35], oneTrace[36:52]}, [2]string{by["1-push"].Trace, by["1-push"].Parent})
	require.Equal(t, "sent", by["1-push"].Attributes["lapse.outcome"])
	many := by["2-push"]
	require.Empty(t, many.Parent)
	require.Equal(t, [][2]string{{oneTrace[3:35], oneTrace[36:52]}, {otherTrace[3:35], otherTrace[36:52]}}, many.Links)
	require.Equal(t, [2]string{"retry", "http_500"}, [2]string{many.Attributes["lapse.outcome"], many.Failed})
}
