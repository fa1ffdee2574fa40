package expiry_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/rig/receive"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const (
	firstTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	otherTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled  = "00-11111111111111111111111111111111-2222222222222222-00"
)

// carried is the table, and what traces the triggers came to it with.
type carried struct {
	table
	traces map[uint64]string
}

func (c *carried) ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error) {
	c.traces = make(map[uint64]string)
	for _, t := range ts {
		c.traces[t.CouponID] = t.Trace
	}
	return c.table.ExpireBatch(ctx, ts, allow)
}

func tracedBy(t *testing.T, tb *carried, traces *telemetry.Traces) (*expiry.Handler, func(id uint64, at time.Time, trace string) broker.Delivery) {
	t.Helper()
	c := codec(t)
	core := expiry.NewCore(tb, clock.NewGuard(2*time.Second, func() time.Time { return start }), prometheus.NewRegistry())
	core.Trace(traces)
	h := expiry.NewHandler(core, &route{}, c, rate.NewLimiter(rate.Inf, 0), zap.NewNop())
	return h, func(id uint64, at time.Time, trace string) broker.Delivery {
		d := delivery(c, ring(id, at))
		d.Headers = map[string]any{broker.HeaderTrace: trace}
		return d
	}
}

// Each trigger is settled in its own trace; the transaction that they share is linked to them, and they to it.
func TestTriggersAreSettledInTheirTraces(t *testing.T) {
	t.Parallel()
	traces, came := testenv.Traces(t, 0)
	ended := start.Add(-time.Second)
	tb := &carried{table: table{now: start, busy: map[uint64]bool{4: true}, rows: map[uint64]*coupon.Row{
		1: unused(1, ended), 2: unused(2, ended), 3: unused(3, ended), 4: unused(4, ended),
	}}}
	h, comes := tracedBy(t, tb, traces)
	out, err := h.Handle(t.Context(), []broker.Delivery{
		comes(1, ended, firstTrace), comes(2, ended, otherTrace), comes(3, ended, unsampled), comes(4, ended, firstTrace),
	})
	require.NoError(t, err)
	again := broker.Message{Exchange: "enter", Key: "1s", ID: "v4.1", Body: codec(t).Trigger(ring(4, ended)), Headers: map[string]any{broker.HeaderTrace: firstTrace}}
	require.Equal(t, broker.Forward(again), out[3], "what comes again keeps the trace that it came with")

	byCoupon := make(map[string]receive.Span)
	var batch receive.Span
	for _, s := range came() {
		if s.Name == "settle batch" {
			batch = s
			continue
		}
		require.Equal(t, "expire", s.Name)
		byCoupon[s.Attributes["lapse.coupon_id"]] = s
	}
	require.Len(t, byCoupon, 3)
	require.Empty(t, batch.Parent)
	require.Equal(t, [][2]string{{firstTrace[3:35], firstTrace[36:52]}, {otherTrace[3:35], otherTrace[36:52]}, {firstTrace[3:35], firstTrace[36:52]}}, batch.Links)
	for id, trace := range map[string]string{"1": firstTrace, "2": otherTrace, "4": firstTrace} {
		s := byCoupon[id]
		require.Equal(t, [2]string{trace[3:35], trace[36:52]}, [2]string{s.Trace, s.Parent})
		require.Equal(t, [][2]string{{batch.Trace, batch.ID}}, s.Links)
	}
	require.Equal(t, "expire", byCoupon["1"].Attributes["lapse.action"])
	require.Equal(t, "1000", byCoupon["1"].Attributes["lapse.lateness_ms"])
	require.Equal(t, "busy", byCoupon["4"].Attributes["lapse.action"])
	require.Equal(t, "00-"+byCoupon["2"].Trace+"-"+byCoupon["2"].ID+"-01", tb.traces[2], "what the transaction leaves follows from the span")
	require.Equal(t, unsampled, tb.traces[3])
}

// Where traces are off the issuer's own comes through all the same; what is no traceparent does not.
func TestTracesAreCarriedOnWithoutASpan(t *testing.T) {
	t.Parallel()
	ended := start.Add(-time.Second)
	tb := &carried{table: table{now: start, rows: map[uint64]*coupon.Row{1: unused(1, ended), 2: unused(2, ended)}}}
	h, comes := tracedBy(t, tb, nil)
	_, err := h.Handle(t.Context(), []broker.Delivery{comes(1, ended, firstTrace), comes(2, ended, "nonsense")})
	require.NoError(t, err)
	require.Equal(t, map[uint64]string{1: firstTrace, 2: ""}, tb.traces)
}
