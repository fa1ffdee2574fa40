package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// What a trigger came with is kept with the step that it led to, in the outbox with its event, and is found by the notice of it.
func TestATriggersTraceComesToTheNotice(t *testing.T) {
	t.Parallel()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 3, coupon.Unused, past, "NULL")
	ts := triggersFor(1, 3, coupon.OriginLadder)
	ts[0].Trace, ts[1].Trace = trace, trace
	_, _, err := s.ExpireBatch(t.Context(), ts, always)
	require.NoError(t, err)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4 AND trace = ?`, trace))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.expired' AND trace = ?`, trace))

	items := told(1, 3, 1)
	for i := range items {
		items[i].Version = 2
	}
	require.Equal(t, 3, collect(t, s, coupon.WindowRules{Quiet: time.Hour, MaxAge: time.Hour, MaxItems: 500}, items))
	window := uint64(d.Int(t, `SELECT MIN(window_id) FROM notice_item`))
	traces, err := s.NoticeTraces(t.Context(), []uint64{window, window + 1000})
	require.NoError(t, err)
	require.Equal(t, map[uint64][]string{window: {trace, trace}}, traces)
	none, err := s.NoticeTraces(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
