package delay_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/ladder"
)

// What waits for a busy row or for another try must not come back at once; what goes to its instant may come a unit
// early, since the expirer holds it until then.
func TestAWaitIsNeverCutShort(t *testing.T) {
	t.Parallel()
	l, err := ladder.New(ladder.DefaultConfig())
	require.NoError(t, err)
	m := delay.NewLadder(l, nil)
	timed := coupon.Timed{ID: "v1.1", Kind: coupon.KindExpire, Class: 'x', CouponID: 1, Body: []byte("{}"), Trace: "00-a-b-01"}
	for _, wait := range []time.Duration{time.Second, 1100 * time.Millisecond, 5 * time.Second, 2 * time.Minute} {
		msg := m.After(wait, timed)
		key, err := ladder.ParseKey(msg.Key)
		require.NoError(t, err)
		stays, err := l.Delay(key)
		require.NoError(t, err)
		require.GreaterOrEqual(t, stays, wait)
		if wait%time.Second == 0 {
			require.Zero(t, msg.Expiration, "nothing is cut from the first hop")
		}
		require.True(t, msg.Mandatory)
		require.Equal(t, "00-a-b-01", msg.Headers["traceparent"])
	}
	now := time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC)
	timed.At = now.Add(2 * time.Second)
	msg := m.Message(now, timed)
	require.Equal(t, "00.00.00.00.02.expire.x.01", msg.Key)
	require.Equal(t, time.Second+ladder.Margin, msg.Expiration, "with those of the second before")
}
