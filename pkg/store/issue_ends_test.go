package store_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestIssueResolvesEnds(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	shanghai, err := time.LoadLocation("Asia/Shanghai")
	require.NoError(t, err)
	newYork, err := time.LoadLocation("America/New_York")
	require.NoError(t, err)
	year := now.Year() + 1
	// A day that has 25 hours in New York: the first Sunday of November.
	fall := time.Date(year, 11, 1, 0, 0, 0, 0, newYork)
	for fall.Weekday() != time.Sunday {
		fall = fall.AddDate(0, 0, 1)
	}
	for _, c := range []struct {
		name string
		rule coupon.Rule
		want time.Time
	}{
		{"never", coupon.Rule{Kind: coupon.RuleNever}, coupon.Never},
		{"fixed with a fraction", coupon.Rule{Kind: coupon.RuleFixed, At: fmt.Sprintf("%d-10-31T23:59:59.001+08:00", year)}, time.Date(year, 10, 31, 16, 0, 0, 0, time.UTC)},
		{"end of 31 October in Shanghai", coupon.Rule{Kind: coupon.RuleEndOfDay, Date: fmt.Sprintf("%d-10-31", year), Zone: "Asia/Shanghai"}, time.Date(year, 10, 31, 16, 0, 0, 0, time.UTC)},
		{"end of a day of 25 hours", coupon.Rule{Kind: coupon.RuleEndOfDay, Date: fall.Format(time.DateOnly), Zone: "America/New_York"}, fall.AddDate(0, 0, 1)},
		{"end of the 7th day after", coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"}, func() time.Time {
			y, m, d := now.In(shanghai).Date()
			return time.Date(y, m, d+8, 0, 0, 0, 0, shanghai)
		}()},
		{"the longest by days", coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 3653, Zone: "Pacific/Apia"}, time.Time{}},
		{"the longest by duration", coupon.Rule{Kind: coupon.RuleAfter, After: coupon.MaxLife.String()}, time.Time{}},
	} {
		template := create(t, s, func(tpl *coupon.Template) { tpl.Rule = c.rule })
		answer := issueOne(t, s, grant(template, "u", c.name))
		require.Empty(t, answer.Refused, "%s: %s", c.name, answer.Detail)
		if !c.want.IsZero() {
			require.Equal(t, c.want.UTC(), answer.ExpiresAt, c.name)
		}
	}
	consistent(t, db)
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE expires_at = '9999-12-31' AND due_at = '9999-12-31'`))
	require.EqualValues(t, 6, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "without an end there is nothing to ring for")
}

func TestIssueChecksAskedInstants(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, nil)
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	hour := now.Add(time.Hour).Truncate(time.Second)
	for i, c := range []struct {
		from, until time.Time
		code        coupon.Code
		end         time.Time
	}{
		{until: hour, end: hour},
		{until: hour.Add(time.Nanosecond), end: hour.Add(time.Second)},
		{until: coupon.Never, end: coupon.Never},
		{until: coupon.Never.Add(time.Hour), end: coupon.Never},
		{until: now.Add(-time.Second), code: coupon.CodeAlreadyEnded},
		{until: now.Add(coupon.MaxLife - time.Second), end: coupon.CeilSecond(now.Add(coupon.MaxLife - time.Second))},
		{until: now.Add(coupon.MaxLife + time.Minute), code: coupon.CodeInvalid},
		{from: hour, until: hour, code: coupon.CodeInvalid},
		{from: hour.Add(time.Minute), until: hour, code: coupon.CodeInvalid},
		{from: hour.Add(-time.Minute), until: hour, end: hour},
		{from: now.Add(-time.Hour), until: hour, end: hour},
		{from: time.Unix(-1, 0), until: hour, code: coupon.CodeInvalid},
		{from: coupon.Never, until: coupon.Never, code: coupon.CodeInvalid},
		{from: hour, until: coupon.Never, end: coupon.Never},
	} {
		g := grant(template, "u", strconv.Itoa(i))
		g.ValidFrom, g.ExpiresAt = c.from, c.until
		answer := issueOne(t, s, g)
		require.Equal(t, c.code, answer.Refused, "%d: %s", i, answer.Detail)
		require.Equal(t, c.end, answer.ExpiresAt, "%d", i)
	}
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE valid_from IN (?, ?)`, hour, hour.Add(-time.Minute)))
	consistent(t, db)
}

func TestIssueTriggersWithinReachOnly(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	template := create(t, s, func(c *coupon.Template) { c.Terms.Precision = coupon.Relaxed })
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	setting := func(name string, ms int64) {
		db.Exec(t, `REPLACE INTO setting (name, value, updated_at) VALUES (?, ?, UTC_TIMESTAMP(3))`, name, strconv.FormatInt(ms, 10))
	}
	setting("horizon", time.Hour.Milliseconds())
	setting("guard", 10*time.Minute.Milliseconds())
	triggers := func(key string, due time.Time) int64 {
		g := grant(template, "u", key)
		g.ExpiresAt = due.Add(-coupon.DueAt(due, coupon.Relaxed, g.Issuer, key).Sub(due)) // it is the due instant that counts
		answer := issueOne(t, s, g)
		require.Empty(t, answer.Refused)
		return db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id = ? AND class = 'r'`, answer.CouponID)
	}
	require.EqualValues(t, 1, triggers("near", now.Add(69*time.Minute)))
	require.EqualValues(t, 0, triggers("far", now.Add(72*time.Minute)))
	require.EqualValues(t, 0, triggers("never", coupon.Never))
	setting("frontier", now.Add(3*time.Hour).UnixMilli())
	require.EqualValues(t, 1, triggers("walked", now.Add(3*time.Hour+9*time.Minute)))
	require.EqualValues(t, 0, triggers("not walked", now.Add(3*time.Hour+11*time.Minute)))
	setting("horizon", 0)
	require.EqualValues(t, 1, triggers("unlimited", now.Add(8760*time.Hour)))
	require.EqualValues(t, 0, triggers("never, unlimited", coupon.Never))
}
