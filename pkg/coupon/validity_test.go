package coupon_test

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the same rules on every machine

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func load(t testing.TB, zone string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	return loc
}

func utc(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02T15:04:05Z", s)
	require.NoError(t, err)
	return at.UTC()
}

func TestEndOfDayInZonesWithTheirOwnIdeas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, date, want, why string }{
		{"Asia/Shanghai", "2026-10-31", "2026-10-31T16:00:00Z", "no DST: 1 November 00:00 local"},
		{"Asia/Shanghai", "1991-04-13", "1991-04-13T16:00:00Z", "the evening before the clocks went forward"},
		{"UTC", "2024-02-29", "2024-03-01T00:00:00Z", "a leap day"},
		{"America/New_York", "2026-03-08", "2026-03-09T04:00:00Z", "a day of 23 hours"},
		{"America/New_York", "2026-11-01", "2026-11-02T05:00:00Z", "a day of 25 hours"},
		{"America/New_York", "2026-10-31", "2026-11-01T04:00:00Z", "the day before"},
		{"Europe/London", "2026-03-28", "2026-03-29T00:00:00Z", "midnight before the clocks go forward at one"},
		{"Europe/London", "2026-03-29", "2026-03-29T23:00:00Z", "a day of 23 hours"},
		{"Europe/London", "2026-10-25", "2026-10-26T00:00:00Z", "a day of 25 hours"},
		{"America/Sao_Paulo", "2018-11-03", "2018-11-04T03:00:00Z", "midnight lies in a gap: the first instant after it, 01:00"},
		{"America/Sao_Paulo", "2018-02-17", "2018-02-18T03:00:00Z", "midnight comes twice: 23:00 again, then the later midnight"},
		{"Pacific/Apia", "2011-12-29", "2011-12-30T10:00:00Z", "30 December does not exist: the start of the 31st"},
		{"Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z", "a skipped day ends where the next existing day starts"},
		{"Pacific/Apia", "2011-12-31", "2011-12-31T10:00:00Z", "the day after"},
		{"America/Havana", "2026-10-31", "2026-11-01T04:00:00Z", "01:00 goes back to 00:00: midnight comes twice, but from the first on it is 1 November for good"},
		{"America/Havana", "2026-11-01", "2026-11-02T05:00:00Z", "a day of 25 hours that begins twice"},
		{"America/St_Johns", "2010-11-06", "2010-11-07T03:30:00Z", "00:01 goes back to 23:01: midnight comes twice, the later one counts"},
		{"America/Havana", "2026-03-07", "2026-03-08T05:00:00Z", "00:00 goes forward to 01:00"},
		{"Asia/Kathmandu", "2026-06-30", "2026-06-30T18:15:00Z", "a quarter of an hour"},
		{"Pacific/Kiritimati", "2026-06-30", "2026-06-30T10:00:00Z", "+14"},
		{"Pacific/Pago_Pago", "2026-06-30", "2026-07-01T11:00:00Z", "−11"},
		{"Asia/Gaza", "2011-08-31", "", "several changes in one week"},
	} {
		day, err := time.Parse(time.DateOnly, c.date)
		require.NoError(t, err)
		loc := load(t, c.zone)
		got := coupon.EndOfDay(day.Year(), day.Month(), day.Day(), loc)
		require.Equal(t, bruteForce(day, loc), got, "%s %s by counting minutes: %s", c.zone, c.date, c.why)
		if c.want != "" {
			require.Equal(t, utc(t, c.want), got, "%s %s: %s", c.zone, c.date, c.why)
		}
		rule := coupon.Rule{Kind: coupon.RuleEndOfDay, Date: c.date, Zone: c.zone}
		resolved, err := rule.Resolve(now)
		require.NoError(t, err)
		require.Equal(t, got, resolved)
	}
}

// bruteForce looks at every minute of five days for the last at which the local date is not later than the given one.
func bruteForce(day time.Time, loc *time.Location) time.Time {
	want := day.Format(time.DateOnly)
	for at := day.Add(72 * time.Hour); ; at = at.Add(-time.Minute) {
		if at.In(loc).Format(time.DateOnly) <= want {
			return at.Add(time.Minute)
		}
	}
}

func TestEndOfDayEqualsBruteForce(t *testing.T) {
	t.Parallel()
	zones := []string{
		"Asia/Shanghai", "America/New_York", "Europe/London", "America/Sao_Paulo", "Pacific/Apia", "America/Havana", "UTC",
		"Asia/Tehran", "Africa/Cairo", "Asia/Beirut", "America/Asuncion", "Australia/Lord_Howe", "Antarctica/Troll",
		"Asia/Amman", "Asia/Gaza", "Atlantic/Azores", "Africa/Casablanca", "America/Godthab", "Pacific/Kwajalein", "Europe/Lisbon",
	}
	locs := make(map[string]*time.Location)
	for _, zone := range zones {
		locs[zone] = load(t, zone)
	}
	rapid.Check(t, func(t *rapid.T) {
		loc := locs[rapid.SampledFrom(zones).Draw(t, "zone")]
		// Since 1975 offsets are whole minutes in all of these; near a change of the clocks as often as not.
		day := time.Date(rapid.IntRange(1975, 2037).Draw(t, "year"), 1, rapid.IntRange(1, 366).Draw(t, "day"), 0, 0, 0, 0, time.UTC)
		if rapid.Bool().Draw(t, "near a change") {
			if _, until := day.In(loc).ZoneBounds(); !until.IsZero() && until.Year() < 2038 {
				y, m, d := until.In(loc).Date()
				day = time.Date(y, m, d+rapid.IntRange(-2, 2).Draw(t, "around"), 0, 0, 0, 0, time.UTC)
			}
		}
		require.Equal(t, bruteForce(day, loc), coupon.EndOfDay(day.Year(), day.Month(), day.Day(), loc), "%s %s", loc, day.Format(time.DateOnly))
	})
}

func TestRulesResolve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule          coupon.Rule
		granted, want string
	}{
		{coupon.Rule{Kind: coupon.RuleFixed, At: "2026-11-01T00:00:00+08:00"}, "2026-01-01T00:00:00Z", "2026-10-31T16:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleFixed, At: "2026-11-01T00:00:00.000000001+08:00"}, "2026-01-01T00:00:00Z", "2026-10-31T16:00:01Z"},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "168h"}, "2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "1ms"}, "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"},
		// The date of the grant is the local one: 23:30 in New York is the next day in UTC.
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 0, Zone: "America/New_York"}, "2026-07-02T03:30:00Z", "2026-07-02T04:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "America/New_York"}, "2026-07-02T03:30:00Z", "2026-07-09T04:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 7, Zone: "Asia/Shanghai"}, "2026-07-01T16:30:00Z", "2026-07-09T16:00:00Z"},
		// "7 days after" counts dates, not hours: over a change of the clocks it is 167 or 169 hours more.
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 1, Zone: "America/New_York"}, "2026-03-07T12:00:00Z", "2026-03-09T04:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 1, Zone: "America/New_York"}, "2026-10-31T12:00:00Z", "2026-11-02T05:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 30, Zone: "UTC"}, "2024-01-31T12:00:00Z", "2024-03-02T00:00:00Z"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 1, Zone: "Pacific/Apia"}, "2011-12-29T12:00:00Z", "2011-12-30T10:00:00Z"},
	} {
		got, err := c.rule.Resolve(utc(t, c.granted))
		require.NoError(t, err)
		require.Equal(t, utc(t, c.want), got, "%s granted %s", c.rule, c.granted)
		require.NoError(t, c.rule.Validate())
	}
	never, err := coupon.Rule{Kind: coupon.RuleNever}.Resolve(now)
	require.NoError(t, err)
	require.True(t, coupon.IsNever(never))
}

func TestRulesThatMeanNothingAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule coupon.Rule
		want string
	}{
		{coupon.Rule{}, `kind: want never, fixed, after, end_of_day or days_after, got ""`},
		{coupon.Rule{Kind: coupon.RuleFixed}, `at: want RFC 3339 with a zone, got ""`},
		{coupon.Rule{Kind: coupon.RuleFixed, At: "2026-10-31T00:00:00"}, "with a zone"},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "7d"}, `after: want a duration above 0`},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "-1h"}, "above 0"},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "0s"}, "above 0"},
		{coupon.Rule{Kind: coupon.RuleAfter, After: "99999h"}, "at most"},
		{coupon.Rule{Kind: coupon.RuleEndOfDay, Date: "2026-02-30", Zone: "UTC"}, "date: want YYYY-MM-DD"},
		{coupon.Rule{Kind: coupon.RuleEndOfDay, Date: "2026-02-03"}, `zone: want a tz database name such as Asia/Shanghai, got ""`},
		{coupon.Rule{Kind: coupon.RuleEndOfDay, Date: "2026-02-03", Zone: "Local"}, "zone: want a tz database name"},
		{coupon.Rule{Kind: coupon.RuleEndOfDay, Date: "2026-02-03", Zone: "Asia/Peking"}, `zone: not in the tz database: "Asia/Peking"`},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: -1, Zone: "UTC"}, "days: want 0 to 3653, got -1"},
		{coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 3654, Zone: "UTC"}, "days: want 0 to 3653, got 3654"},
	} {
		err := c.rule.Validate()
		require.ErrorIs(t, err, coupon.ErrRule)
		require.ErrorContains(t, err, c.want)
	}
}

func TestARuleDoesNotDependOnTheMachinesZone(t *testing.T) {
	t.Parallel()
	rule := coupon.Rule{Kind: coupon.RuleDaysAfter, Days: 3, Zone: "Asia/Shanghai"}
	want, err := rule.Resolve(now)
	require.NoError(t, err)
	for _, zone := range []string{"America/New_York", "Pacific/Kiritimati", "UTC"} {
		got, err := rule.Resolve(now.In(load(t, zone)))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTemplateReportsEveryFault(t *testing.T) {
	t.Parallel()
	good := coupon.Template{Name: "t", Rule: coupon.Rule{Kind: coupon.RuleNever}, Terms: coupon.Terms{Currency: "CNY", Precision: coupon.Exact}}
	require.NoError(t, good.Validate())
	err := coupon.Template{
		Name: strings.Repeat("n", 201), Terms: coupon.Terms{Value: -1, Currency: "cny", Precision: "soon"}, Quota: -1, PerUser: -2,
		Actor: strings.Repeat("a", 129), Reason: strings.Repeat("r", 256),
	}.Validate()
	for _, want := range []string{
		"name: must have", "kind:", "value: must be between 0 and 1000000000000 minor units, got -1", `currency: must be three capital letters of ISO 4217, got "cny"`,
		`precision: must be exact, standard or relaxed, got "soon"`, "quota: must be 0 (unlimited) or more, got -1", "per_user: must be 0 (unlimited) or more, got -2",
		"actor: must have at most 128 bytes, got 129", "reason: must have at most 255 bytes, got 256",
	} {
		require.ErrorContains(t, err, want)
	}
}
