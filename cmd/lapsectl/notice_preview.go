package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

type noticePreview struct {
	Kind   string        `enum:"expiring,expired" default:"expiring" help:"What is told: expiring or expired."`
	Offset string        `default:"-1d" help:"Of expiring: the reminder's offset, such as -1d."`
	Locale string        `default:"en" help:"The reader's language, a BCP 47 tag. One that there is not falls back as for a user."`
	Count  int           `default:"3" help:"How many coupons."`
	Value  string        `default:"1000CNY" help:"What each is worth, in minor units of a currency: 1000CNY is 10.00."`
	Ends   string        `placeholder:"TIME" help:"When the first ends: RFC 3339 with a zone. By default so that it is read now."`
	Apart  time.Duration `default:"1h" help:"How long after the one before it each of the others ends; they stay within the day."`
	At     string        `placeholder:"TIME" help:"When it is read. By default at the reminder's hour, or a minute after the end."`
	Zone   string        `default:"UTC" help:"The reader's zone, such as Asia/Shanghai."`
	HTML   string        `name:"html" type:"path" placeholder:"FILE" help:"Write the e-mail's page into this file."`
	JSON   bool          `name:"json" help:"Print JSON."`
}

// Help says what it needs.
func (c *noticePreview) Help() string {
	return "Shows a notice as a user would get it, from this build's templates: no configuration or server is asked. What --html writes can be opened in a browser."
}

// previewJSON is what notice preview --json prints.
type previewJSON struct {
	Locale string            `json:"locale"`
	At     string            `json:"at"`
	Title  string            `json:"title"`
	Text   string            `json:"text"`
	Params map[string]string `json:"params"`
	HTML   string            `json:"html"`
}

// Run renders.
func (c *noticePreview) Run(_ context.Context, s *system) error {
	at, d, err := c.data(time.Now())
	if err != nil {
		return err
	}
	texts, err := text.New(text.Locales()[0])
	if err != nil {
		return fmt.Errorf("texts: %w", err)
	}
	r, err := texts.Render(at, d)
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	if c.HTML != "" {
		if err := os.WriteFile(c.HTML, []byte(r.HTML), 0o600); err != nil {
			return fmt.Errorf("--html: %w", err)
		}
	}
	if c.JSON {
		return s.printJSON(previewJSON{Locale: r.Locale, At: instant(at), Title: r.Text.Title, Text: r.Text.Text, Params: r.Params, HTML: r.HTML})
	}
	t := table{{"locale", r.Locale}, {"read at", at.In(d.Zone).Format(time.RFC3339)}, {"title", r.Text.Title}, {"text", r.Text.Text}}
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		t = append(t, []string{"{" + name + "}", r.Params[name]})
	}
	if c.HTML != "" {
		t = append(t, []string{"html", c.HTML})
	}
	return s.print(t.String())
}

// data is the notice that the flags describe, and when it is read.
func (c *noticePreview) data(now time.Time) (at time.Time, d text.Data, err error) {
	var errs []error
	fault := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		}
	}
	d = text.Data{Kind: coupon.NoticeKind(c.Kind), Items: c.Count, Locale: c.Locale, Page: true}
	d.Zone, err = time.LoadLocation(c.Zone)
	if err != nil || c.Zone == "" || c.Zone == "Local" {
		fault("--zone", fmt.Errorf("must be a name of the IANA database, such as Asia/Shanghai, got %q", clipped(c.Zone)))
		d.Zone = time.UTC
	}
	if c.Count < 1 || c.Count > 1_000_000 {
		fault("--count", fmt.Errorf("must be between 1 and 1000000, got %d", c.Count))
	}
	if c.Apart < 0 || c.Apart > day {
		fault("--apart", fmt.Errorf("must be between 0s and 24h0m0s, got %s", c.Apart))
	}
	value, err := parseSum(c.Value)
	fault("--value", err)
	offset, err := coupon.ParseOffset(c.Offset)
	if d.Kind == coupon.NoticeExpiring {
		fault("--offset", err)
		d.Offset = offset.Name
	}
	instantOf := func(flag, text string) (at time.Time) {
		if text != "" {
			var reason string
			if at, reason = parseInstant(text); reason != "" {
				fault(flag, fmt.Errorf("%s, got %q", reason, clipped(text)))
			}
		}
		return at
	}
	at, d.EndsAt = instantOf("--at", c.At), instantOf("--ends", c.Ends)
	if len(errs) > 0 {
		return at, d, errors.Join(errs...)
	}
	if d.EndsAt.IsZero() {
		d.EndsAt = c.someEnd(firstSet(at, now), offset, d.Zone)
	}
	if at.IsZero() {
		if at = d.EndsAt.Add(time.Minute); d.Kind == coupon.NoticeExpiring {
			at = offset.NotifyAt(d.EndsAt, d.Zone)
		}
	}
	c.members(&d, value)
	return at, d, nil
}

// firstSet is the first that is set.
func firstSet(at, now time.Time) time.Time {
	if at.IsZero() {
		return now
	}
	return at
}

// someEnd is an end on a whole hour, that a notice read then may tell of.
func (c *noticePreview) someEnd(read time.Time, offset coupon.Offset, zone *time.Location) time.Time {
	hour := read.Truncate(time.Hour)
	if c.Kind == string(coupon.NoticeExpired) {
		return hour
	}
	if offset.Local {
		y, m, d := read.In(zone).Date()
		return time.Date(y, m, d+offset.Days, 12, 0, 0, 0, zone)
	}
	return hour.Add(time.Hour + offset.Before)
}

// members adds the first few coupons; what would end on another day ends with the first one's.
func (c *noticePreview) members(d *text.Data, value coupon.Amount) {
	last := coupon.LastDay(d.EndsAt, d.Zone)
	d.LastEnd = d.EndsAt
	for i := range min(c.Count, coupon.MembersShown) {
		if end := d.EndsAt.Add(time.Duration(i) * c.Apart); coupon.LastDay(end, d.Zone).Equal(last) {
			d.LastEnd = end
		}
		d.Members = append(d.Members, coupon.Member{CouponID: uint64(i + 1), ExpiresAt: d.LastEnd, Value: value.Minor, Currency: value.Currency})
	}
	d.Totals = []coupon.Amount{{Minor: value.Minor * int64(c.Count), Currency: value.Currency}}
}
