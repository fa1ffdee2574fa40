package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/status"
	"github.com/lapsehq/lapse/pkg/store"
)

type forecastCommand struct {
	By       string `default:"hour" enum:"minute,hour,day" help:"How long a bucket is: minute, hour or day (UTC)."`
	From     string `placeholder:"TIME" help:"From when on: RFC 3339 with a zone. Now by default."`
	To       string `placeholder:"TIME" help:"Until when. By default an hour of minutes, two days of hours or thirty days from --from on."`
	Template string `placeholder:"ID" help:"Count the coupons of this template alone; peaks are those of all."`
	Rate     string `placeholder:"N/s" help:"Reckon with so many coupons a second instead of the fleet's measured rate."`
	Cap      int    `default:"200000" help:"Rows counted in one bucket and state at most."`
	Budget   int    `default:"3000000" help:"Rows counted in all at most."`
	All      bool   `help:"Show empty buckets too."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

// forecastJSON is a forecast as --json prints it.
type forecastJSON = status.Forecast

// Run shows the forecast.
func (c *forecastCommand) Run(ctx context.Context, s *system) error {
	q, err := c.query()
	rate, rateErr := parseRate(c.Rate, maxRate)
	if err := errors.Join(err, rateErr); err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		if q.From.IsZero() {
			if q.From, err = db.Now(ctx); err != nil {
				return err //nolint:wrapcheck // says what it does
			}
		}
		if q.To.IsZero() {
			q.To = q.From.Truncate(q.Bucket).Add(c.length())
		}
		f, err := db.Forecast(ctx, q)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		source := ""
		if rate > 0 {
			f.Drain, source = coupon.DrainRate{PerPod: rate, Pods: 1}, "given"
			f.Spread()
		}
		x := status.ForecastOf(q, f, source)
		if c.JSON {
			return s.printJSON(x)
		}
		return s.print(forecastText(x, c.By, c.All))
	})
}

func (c *forecastCommand) bucket() time.Duration {
	switch c.By {
	case "minute":
		return time.Minute
	case "day":
		return day
	default:
		return time.Hour
	}
}

func (c *forecastCommand) length() time.Duration {
	switch c.By {
	case "minute":
		return time.Hour
	case "day":
		return 30 * day
	default:
		return 2 * day
	}
}

func (c *forecastCommand) query() (coupon.ForecastQuery, error) {
	q := coupon.ForecastQuery{Bucket: c.bucket(), Cap: c.Cap, Budget: c.Budget}
	var errs []error
	parse := func(flag, text string) (at time.Time) {
		if text == "" {
			return at
		}
		at, reason := parseInstant(text)
		if reason != "" {
			errs = append(errs, fmt.Errorf("%s: %s, got %q", flag, reason, clipped(text)))
		}
		return at
	}
	q.From, q.To = parse("--from", c.From), parse("--to", c.To)
	if c.Template != "" {
		var err error
		if q.Template, err = parseID("--template", c.Template); err != nil {
			errs = append(errs, err)
		}
	}
	return q, errors.Join(errs...)
}

const barWidth = 30

func forecastText(x forecastJSON, by string, all bool) string {
	most := int64(1)
	for _, b := range x.Buckets {
		most = max(most, b.Unused)
	}
	t := table{{strings.ToUpper(by), "DUE", "LOCKED", "VALUE", "TAKES", "FULLEST SECOND", ""}}
	for _, b := range x.Buckets {
		if !all && b.Unused+b.Locked == 0 && b.Counted == "all" {
			continue
		}
		if b.Counted == "not" {
			t = append(t, []string{minuteText(b.Start), "not counted: the budget is used up", "", "", "", "", ""})
			break
		}
		peak := ""
		if b.PeakAt != nil {
			peak = fmt.Sprintf("%d at %s", b.PeakCoupons, (*b.PeakAt)[11:19])
		}
		if b.BeyondCapacity {
			peak += fmt.Sprintf(" PEAK, the last %s late", seconds64(b.PeakLateness))
		}
		mark := ""
		if b.Counted == "at_least" {
			mark = "+"
		}
		bar := strings.Repeat("█", int((b.Unused*barWidth+most-1)/most))
		t = append(t, []string{
			minuteText(b.Start), fmt.Sprint(b.Unused) + mark, fmt.Sprint(b.Locked), valueText(b.Value), seconds64(b.DrainSeconds), peak, bar,
		})
	}
	rate := "not known yet: no expirer has run"
	if x.Drain.PerSecond > 0 {
		rate = fmt.Sprintf("%.0f coupons/s (%s)", x.Drain.PerSecond, x.Drain.Source)
		if x.Drain.Source != "given" {
			rate = fmt.Sprintf("%.0f coupons/s (%s, %d expirers)", x.Drain.PerSecond, x.Drain.Source, x.Drain.Pods)
		}
	}
	about := table{
		{"now", x.Now},
		{"due", fmt.Sprintf("%d unused, %d locked, until %s", x.Unused, x.Locked, x.To)},
		{"at risk", valueText(x.Value)},
		{"drains", rate},
		{"peaks", fmt.Sprintf("%d buckets have a second with more than that", x.Peaks)},
	}
	if !x.Complete {
		about = append(about, []string{"note", "numbers with + are what was counted before the cap; see --cap and --budget"})
	}
	return about.String() + "\n" + t.String()
}

// minuteText is an instant to the minute.
func minuteText(at string) string { return at[:10] + " " + at[11:16] }

func seconds64(s float64) string { return status.Seconds(s) }

func valueText(v map[string]int64) string {
	var parts []string
	for _, currency := range slices.Sorted(maps.Keys(v)) {
		parts = append(parts, fmt.Sprintf("%d %s", v[currency], currency))
	}
	if len(parts) == 0 {
		return "0"
	}
	return strings.Join(parts, ", ")
}
