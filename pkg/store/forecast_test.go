package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var eve = time.Date(2035, 11, 10, 16, 0, 0, 0, time.UTC)

func query24(from time.Time) coupon.ForecastQuery {
	return coupon.ForecastQuery{From: from, To: from.Add(24 * time.Hour), Bucket: time.Hour, Cap: 100_000, Budget: 1_000_000}
}

func TestForecastCountsWhatComesDueWhen(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 300, coupon.Unused, "'2035-11-10 17:00:00'", "NULL")
	plant(t, d, 301, 20, coupon.Unused, "'2035-11-10 17:59:59'", "NULL")
	plant(t, d, 321, 50, coupon.Locked, "'2035-11-10 17:00:01'", future)
	plant(t, d, 371, 7, coupon.Unused, "'2035-11-10 20:00:00'", "NULL")
	plant(t, d, 378, 9, coupon.Used, "'2035-11-10 17:00:00'", "NULL")
	plant(t, d, 387, 9, coupon.Unused, "'9999-12-31'", "NULL")
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
		VALUES (2,1,'t','{"kind":"never"}',30,'EUR','exact',UTC_TIMESTAMP(3),'test','')`)
	d.Exec(t, `UPDATE coupon SET template_id = 2 WHERE id <= 100`)

	f, err := s.Forecast(t.Context(), query24(eve))
	require.NoError(t, err)
	require.Len(t, f.Buckets, 24)
	b := f.Buckets[1]
	require.Equal(t, eve.Add(time.Hour), b.Start)
	require.EqualValues(t, 320, b.Unused)
	require.EqualValues(t, 50, b.Locked)
	require.Equal(t, map[string]int64{"CNY": 270 * 500, "EUR": 100 * 30}, b.Value)
	require.Equal(t, coupon.Peak{At: eve.Add(time.Hour), Coupons: 300}, b.Peak)
	require.EqualValues(t, 7, f.Buckets[4].Unused)
	var all int64
	for _, b := range f.Buckets {
		all += b.Unused + b.Locked
		require.False(t, b.Capped || b.Skipped)
	}
	require.EqualValues(t, 377, all)
	require.Zero(t, b.Drain, "no rate is known yet")

	require.NoError(t, s.PutDrainRate(t.Context(), 100, false))
	q := query24(eve)
	q.Template = 2
	f, err = s.Forecast(t.Context(), q)
	require.NoError(t, err)
	require.EqualValues(t, 100, f.Buckets[1].Unused)
	require.Equal(t, map[string]int64{"EUR": 3000}, f.Buckets[1].Value)
	require.EqualValues(t, 300, f.Buckets[1].Peak.Coupons, "a second is full for all")
	require.Equal(t, time.Second, f.Buckets[1].Drain)
	require.True(t, f.Drain.Over(300) && !f.Drain.Over(100))
	require.Equal(t, 3*time.Second, f.Drain.Lateness(300))
}

func TestForecastIsBounded(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 3000, coupon.Unused, "'2035-11-10 17:00:00'", "NULL")
	plant(t, d, 3001, 3000, coupon.Unused, "'2035-11-10 18:00:00'", "NULL")
	d.Exec(t, "ANALYZE TABLE coupon")
	q := query24(eve)
	q.Cap = 1000
	f, err := s.Forecast(t.Context(), q)
	require.NoError(t, err)
	require.True(t, f.Buckets[1].Capped)
	require.EqualValues(t, 1000, f.Buckets[1].Unused)
	require.EqualValues(t, 1000, f.Buckets[1].Peak.Coupons)
	q.Budget = 1500
	f, err = s.Forecast(t.Context(), q)
	require.NoError(t, err)
	require.EqualValues(t, 500, f.Buckets[2].Unused)
	require.True(t, f.Buckets[2].Capped && f.Buckets[3].Skipped)

	c, err := d.SQL.Conn(t.Context())
	require.NoError(t, err)
	defer c.Close()
	// A piece of the index, and for what each is worth each row once more; the groups are read too.
	read := rowsRead(t, c, statement(t, "forecast.terms"), 1, eve, eve.Add(24*time.Hour), 1000)
	require.LessOrEqual(t, read, 4*1000)
	for name, args := range map[string][]any{
		"forecast.peak":   {eve, eve.Add(24 * time.Hour), 1000},
		"forecast.within": {315_360_000 * 2, 1000},
		"forecast.second": {eve.Add(time.Hour), 1000},
	} {
		require.LessOrEqual(t, rowsRead(t, c, statement(t, name), args...), 3*1000+20, name)
	}
	for _, bad := range []coupon.ForecastQuery{
		{From: eve, To: eve, Bucket: time.Hour, Cap: 1, Budget: 1},
		{From: eve, To: eve.Add(time.Hour), Bucket: time.Millisecond, Cap: 1, Budget: 1},
		{From: eve, To: eve.Add(1000 * time.Hour), Bucket: time.Minute, Cap: 1, Budget: 1},
		{From: eve, To: eve.Add(time.Hour), Bucket: time.Hour},
	} {
		_, err := s.Forecast(t.Context(), bad)
		require.Error(t, err)
	}
}

func TestDrainRateIsThatOfAllExpirersHeardOf(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	rate, err := s.DrainRate(t.Context())
	require.NoError(t, err)
	require.Zero(t, rate.PerSecond())
	require.NoError(t, s.PutDrainRate(t.Context(), 5000, false))
	for pod, role := range map[string]string{"a": "expirer", "b": "expirer", "c": "publisher"} {
		require.NoError(t, s.ReportClock(t.Context(), coupon.ClockReport{Pod: pod, Role: role}))
	}
	rate, err = s.DrainRate(t.Context())
	require.NoError(t, err)
	require.Equal(t, coupon.DrainRate{PerPod: 5000, Pods: 2, At: rate.At}, rate)
	require.NoError(t, s.PutDrainRate(t.Context(), 7000, true))
	require.NoError(t, s.PutDrainRate(t.Context(), 5000, false))
	rate, err = s.DrainRate(t.Context())
	require.NoError(t, err)
	require.True(t, rate.Measured)
	require.InDelta(t, 14000, rate.PerSecond(), 0.1, "what was measured stays")
}

// Who grants more to a second than the fleet drains in one is told so, and by spreading the same coupons is not.
func TestAGrantThatMakesAPeakIsTold(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	require.NoError(t, s.PutDrainRate(t.Context(), 100, true))
	grants := func(p coupon.Precision, first, n int) []coupon.Grant {
		template := create(t, s, func(c *coupon.Template) { c.Terms.Precision = p })
		out := make([]coupon.Grant, n)
		for i := range out {
			out[i] = grant(template, "u", fmt.Sprintf("%s%d", p, first+i))
			out[i].ExpiresAt = eve
		}
		return out
	}
	told := func(gs []coupon.Grant) (n int, peak int64) {
		answers, err := s.Issue(t.Context(), gs)
		require.NoError(t, err)
		for _, a := range answers {
			if a.Peak > 0 {
				n++
			}
			peak = max(peak, a.Peak)
		}
		return n, peak
	}
	n, _ := told(grants(coupon.Relaxed, 0, 1000))
	require.Zero(t, n, "a thousand relaxed ones are due over nine minutes")
	n, _ = told(grants(coupon.Exact, 0, 90))
	require.Zero(t, n)
	n, peak := told(grants(coupon.Exact, 90, 60))
	require.Equal(t, 60, n)
	require.GreaterOrEqual(t, peak, int64(150))
	again := grants(coupon.Exact, 200, 1)
	n, _ = told(again)
	require.Equal(t, 1, n, "one more is one of a peak")
	n, _ = told(again)
	require.Zero(t, n, "a repeated grant makes nothing")

	other := d.Store(t) // another pod, which must count for itself
	gs := grants(coupon.Exact, 300, 1)
	answers, err := other.Issue(t.Context(), gs)
	require.NoError(t, err)
	require.GreaterOrEqual(t, answers[0].Peak, int64(152))
}
