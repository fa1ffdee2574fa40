package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type statsCommand struct {
	Template string `arg:"" help:"The template's id."`
	From     string `placeholder:"DATE" help:"The first day (YYYY-MM-DD, UTC)."`
	To       string `placeholder:"DATE" help:"The last day (YYYY-MM-DD, UTC)."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

// Help tells what is counted.
func (c *statsCommand) Help() string {
	return "Steps are counted on the UTC day on which they happened. A refund after the coupon's end counts as refunded and as expired. " +
		"Days on which nothing happened are left out."
}

// Run prints a template's days and their totals.
func (c *statsCommand) Run(ctx context.Context, s *system) error {
	id, err := parseID("template", c.Template)
	from, fromErr := parseDay("--from", c.From)
	to, toErr := parseDay("--to", c.To)
	if err := errors.Join(err, fromErr, toErr); err != nil {
		return err
	}
	if c.To != "" && from.After(to) {
		return fmt.Errorf("--to: must not be before --from (%s), got %s", c.From, c.To)
	}
	return s.withStore(ctx, func(db *store.Store) error {
		t, err := db.Template(ctx, id)
		if errors.Is(err, coupon.ErrNotFound) {
			return s.miss("there is no template %d", id)
		}
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		days, err := db.TemplateStats(ctx, id, from, to)
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if c.JSON {
			return s.printJSON(statsOf(t, days))
		}
		return s.print(statsTable(t, days))
	})
}

// parseDay reads a UTC day; the zero time if none is given.
func parseDay(field, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	day, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return day, fmt.Errorf("%s: must be a day, YYYY-MM-DD, got %q", field, text)
	}
	return day, nil
}

// statsJSON is what --json prints.
type statsJSON struct {
	TemplateID string    `json:"template_id"`
	Currency   string    `json:"currency"` // of all values, which are minor units
	Days       []dayJSON `json:"days"`
	Total      dayJSON   `json:"total"`
}

type dayJSON struct {
	Day           string `json:"day,omitempty"` // none: the total
	Granted       int64  `json:"granted"`
	Locked        int64  `json:"locked"`
	Released      int64  `json:"released"`
	Used          int64  `json:"used"`
	Refunded      int64  `json:"refunded"`
	Expired       int64  `json:"expired"`
	Voided        int64  `json:"voided"`
	GrantedValue  int64  `json:"granted_value"`
	UsedValue     int64  `json:"used_value"`
	RefundedValue int64  `json:"refunded_value"`
	ExpiredValue  int64  `json:"expired_value"`
	VoidedValue   int64  `json:"voided_value"`

	Reinstated      int64 `json:"reinstated"`
	ReinstatedValue int64 `json:"reinstated_value"`
}

func dayOf(d coupon.DayStats) dayJSON {
	day := dayJSON{
		Granted: d.Granted, Locked: d.Locked, Released: d.Released, Used: d.Used, Refunded: d.Refunded, Expired: d.Expired, Voided: d.Voided,
		GrantedValue: d.GrantedValue, UsedValue: d.UsedValue, RefundedValue: d.RefundedValue, ExpiredValue: d.ExpiredValue, VoidedValue: d.VoidedValue,
		Reinstated: d.Reinstated, ReinstatedValue: d.ReinstatedValue,
	}
	if !d.Day.IsZero() {
		day.Day = d.Day.Format(time.DateOnly)
	}
	return day
}

func totalOf(days []coupon.DayStats) (sum coupon.DayStats) {
	for _, d := range days {
		sum.Granted += d.Granted
		sum.Locked += d.Locked
		sum.Released += d.Released
		sum.Used += d.Used
		sum.Refunded += d.Refunded
		sum.Expired += d.Expired
		sum.Voided += d.Voided
		sum.GrantedValue += d.GrantedValue
		sum.UsedValue += d.UsedValue
		sum.RefundedValue += d.RefundedValue
		sum.ExpiredValue += d.ExpiredValue
		sum.VoidedValue += d.VoidedValue
		sum.Reinstated += d.Reinstated
		sum.ReinstatedValue += d.ReinstatedValue
	}
	return sum
}

func statsOf(t coupon.Template, days []coupon.DayStats) statsJSON {
	out := statsJSON{
		TemplateID: strconv.FormatUint(t.ID, 10), Currency: t.Terms.Currency, Days: make([]dayJSON, len(days)), Total: dayOf(totalOf(days)),
	}
	for i, d := range days {
		out.Days[i] = dayOf(d)
	}
	return out
}

// statsTable has a row for each day and one for all of them; the values stand behind the counts.
func statsTable(t coupon.Template, days []coupon.DayStats) string {
	in := " " + t.Terms.Currency
	rows := table{{
		"DAY", "GRANTED", "LOCKED", "RELEASED", "USED", "REFUNDED", "EXPIRED", "REINSTATED", "VOIDED",
		"GRANTED" + in, "USED" + in, "REFUNDED" + in, "EXPIRED" + in, "REINSTATED" + in, "VOIDED" + in,
	}}
	for _, d := range append(days, totalOf(days)) {
		x := dayOf(d)
		if x.Day == "" {
			x.Day = "total"
		}
		row := []string{x.Day}
		for _, n := range []int64{
			x.Granted, x.Locked, x.Released, x.Used, x.Refunded, x.Expired, x.Reinstated, x.Voided,
			x.GrantedValue, x.UsedValue, x.RefundedValue, x.ExpiredValue, x.ReinstatedValue, x.VoidedValue,
		} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	return rows.String() + "Values are minor units.\n"
}
