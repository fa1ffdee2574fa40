package delay

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// An entry of Redis is read as it was written, or is broken: it is never taken for another.
func FuzzEntry(f *testing.F) {
	f.Add("1 expire.x.3 1700000000000 v3.2 \n{}", "v3.2", "", []byte("{}"), int64(1700000000000), uint64(3))
	f.Add("1 a b c d\n", "p1.1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", []byte("a\nb"), int64(-1), uint64(1)<<63)
	f.Add("2 a 1 c d\nx", "", "a b", []byte{}, int64(0), uint64(0))
	f.Add("", "", "\n", []byte(nil), int64(1), uint64(1))
	f.Fuzz(func(t *testing.T, value, id, trace string, body []byte, at int64, couponID uint64) {
		if m, when, err := decode("x", value); err == nil {
			require.Equal(t, "x", m.Exchange)
			require.True(t, strings.HasPrefix(value, "1 "+m.Key+" "))
			require.True(t, strings.HasSuffix(value, "\n"+string(m.Body)))
			require.False(t, strings.ContainsAny(m.Key+m.ID, " \n"))
			require.False(t, when.IsZero())
		}
		if strings.ContainsAny(id, " \n") {
			return // no id of a trigger has them
		}
		timed := coupon.Timed{ID: id, Body: body, Kind: coupon.KindExpire, Class: 'x', CouponID: couponID, At: time.UnixMilli(at), Trace: trace}
		m, when, err := decode("x", encode(&timed))
		require.NoError(t, err)
		require.Equal(t, at, when.UnixMilli())
		require.Equal(t, dueKey(&timed), m.Key)
		require.Equal(t, id, m.ID)
		require.Equal(t, string(body), string(m.Body))
		if trace != "" && !strings.ContainsAny(trace, " \n") {
			require.Equal(t, map[string]any{broker.HeaderTrace: trace}, m.Headers)
		} else {
			require.Empty(t, m.Headers)
		}
	})
}
