package issuance_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const issuersTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// carrier keeps the trace of every grant.
type carrier map[string]string

func (c carrier) Issue(_ context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	for _, g := range grants {
		c[g.Key] = g.Trace
	}
	return make([]coupon.Granted, len(grants)), nil
}

func carrying(t *testing.T) (*issuance.Handler, carrier) {
	t.Helper()
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	c := carrier{}
	h, err := issuance.NewHandler(issuance.DefaultConfig(), c, codec, "p.park", zap.NewNop(), prometheus.NewRegistry())
	require.NoError(t, err)
	return h, c
}

// The grants of an event follow from its span, which follows from the issuer's.
func TestGrantsFollowFromTheirEvent(t *testing.T) {
	t.Parallel()
	traces, came := testenv.Traces(t, 0)
	h, c := carrying(t)
	h.Trace(traces)
	traced := delivery("1", many(member("a", "u"), member("b", "u")))
	traced.Headers = map[string]any{broker.HeaderTrace: issuersTrace}
	_, err := h.Handle(t.Context(), []broker.Delivery{traced, delivery("2", member("c", "u"))})
	require.NoError(t, err)
	spans := came()
	require.Len(t, spans, 1)
	require.Equal(t, [4]string{"grant", issuersTrace[3:35], issuersTrace[36:52], "2"},
		[4]string{spans[0].Name, spans[0].Trace, spans[0].Parent, spans[0].Attributes["lapse.grants"]})
	own := "00-" + spans[0].Trace + "-" + spans[0].ID + "-01"
	require.Equal(t, carrier{"a": own, "b": own, "c": ""}, c)
}

func TestWithoutTracesTheIssuersIsKept(t *testing.T) {
	t.Parallel()
	h, c := carrying(t)
	traced := delivery("1", member("a", "u"))
	traced.Headers = map[string]any{broker.HeaderTrace: issuersTrace}
	nonsense := delivery("2", member("b", "u"))
	nonsense.Headers = map[string]any{broker.HeaderTrace: "nonsense"}
	_, err := h.Handle(t.Context(), []broker.Delivery{traced, nonsense})
	require.NoError(t, err)
	require.Equal(t, carrier{"a": issuersTrace, "b": ""}, c)
}
