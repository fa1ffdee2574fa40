package expiry_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/clock"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
)

// Whatever the process believes the time to be, and however the database's clock steps: no coupon ends before its true end.
func TestNothingExpiresEarlyByAnyClock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		process time.Duration // how far the process's own clock is ahead of the truth
		stepped time.Duration // by how much the database's clock is set forward after a while
		expires bool          // at the true instant of the look
	}{
		"all agree":                               {expires: true},
		"the process is a day ahead":              {process: 24 * time.Hour, expires: true},
		"the process is a day behind":             {process: -24 * time.Hour, expires: true},
		"the database is set an hour ahead":       {stepped: time.Hour},
		"both are an hour ahead, one of a sudden": {process: time.Hour, stepped: time.Hour},
		"the database is set back":                {stepped: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			truth := start
			guard := clock.NewGuard(2*time.Second, func() time.Time { return truth.Add(c.process) })
			rows := table{rows: map[uint64]*coupon.Row{
				1: unused(1, start.Add(30*time.Minute)), // ends by then
				2: unused(2, start.Add(2*time.Hour)),    // does not; by a clock an hour ahead it would
			}, now: truth}
			rows.rows[2].ExpiresAt = start.Add(90 * time.Minute)
			rows.rows[2].DueAt = rows.rows[2].ExpiresAt
			core := expiry.NewCore(&rows, guard, prometheus.NewRegistry())
			ts := []coupon.Trigger{
				{Kind: coupon.KindExpire, CouponID: 1, At: rows.rows[1].ExpiresAt},
				{Kind: coupon.KindExpire, CouponID: 2, At: rows.rows[2].ExpiresAt},
			}
			_, err := core.Settle(t.Context(), ts)
			require.NoError(t, err)
			require.Equal(t, coupon.Unused, rows.rows[1].Status)

			truth = start.Add(time.Hour)
			rows.now = truth.Add(c.stepped)
			_, err = core.Settle(t.Context(), ts)
			require.Equal(t, coupon.Unused, rows.rows[2].Status, "its end has not come")
			require.Equal(t, c.expires, rows.rows[1].Status == coupon.Expired)
			if c.stepped > 0 {
				require.ErrorIs(t, err, clock.ErrAhead)
				rows.now = truth
				_, err = core.Settle(t.Context(), ts)
				require.NoError(t, err, "both agree again")
				require.Equal(t, coupon.Expired, rows.rows[1].Status)
				require.Equal(t, coupon.Unused, rows.rows[2].Status)
			}
		})
	}
}
