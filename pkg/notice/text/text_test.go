package text_test

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/notice/text"
)

// TestTheEnd: the same instant in its readers' zones, at moments from which it lies on different days.
func TestTheEnd(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	for _, x := range []struct{ zone, now, ends, en, zh string }{
		{
			"Asia/Shanghai", "2026-10-31T00:00:00+08:00", "2026-11-01T00:00:00+08:00", // the end of 31 October
			"Your coupon expires at the end of today, Saturday 31 October.", "你的1张优惠券将于今天（10月31日）24:00到期。",
		},
		{
			"Asia/Shanghai", "2026-10-30T23:59:59+08:00", "2026-11-01T00:00:00+08:00",
			"Your coupon expires at the end of tomorrow, Saturday 31 October.", "你的1张优惠券将于明天（10月31日）24:00到期。",
		},
		{
			"Asia/Shanghai", "2026-10-29T23:59:59+08:00", "2026-11-01T00:00:00+08:00",
			"Your coupon expires at the end of Saturday 31 October.", "你的1张优惠券将于10月31日24:00到期。",
		},
		{
			"Asia/Shanghai", "2026-10-31T12:00:00+08:00", "2026-11-01T00:00:01+08:00",
			"Your coupon expires tomorrow, Sunday 1 November, at 00:00.", "你的1张优惠券将于明天（11月1日）00:00到期。",
		},
		{
			"Asia/Shanghai", "2026-10-31T12:00:00+08:00", "2026-10-31T23:59:59+08:00",
			"Your coupon expires today, Saturday 31 October, at 23:59.", "你的1张优惠券将于今天（10月31日）23:59到期。",
		},
		{
			"America/Los_Angeles", "2026-10-31T00:00:00+08:00", "2026-11-01T00:00:00+08:00", // for somebody abroad it is a time as any other
			"Your coupon expires tomorrow, Saturday 31 October, at 09:00.", "你的1张优惠券将于明天（10月31日）09:00到期。",
		},
		{
			"Pacific/Kiritimati", "2026-10-31T00:00:00+08:00", "2026-11-01T00:00:00+08:00",
			"Your coupon expires tomorrow, Sunday 1 November, at 06:00.", "你的1张优惠券将于明天（11月1日）06:00到期。",
		},
		{
			"Africa/Cairo", "2026-04-23T12:00:00+02:00", "2026-04-24T01:00:00+03:00", // midnight is jumped over: the day begins at one
			"Your coupon expires at the end of today, Thursday 23 April.", "你的1张优惠券将于今天（4月23日）24:00到期。",
		},
		{
			"Asia/Kathmandu", "2026-12-30T12:00:00+05:45", "2027-01-02T00:00:00+05:45",
			"Your coupon expires at the end of Friday 1 January 2027.", "你的1张优惠券将于2027年1月1日24:00到期。",
		},
		{
			"Asia/Shanghai", "2026-10-31T23:30:00+08:00", "2026-11-01T00:00:00+08:00",
			"Your coupon expires in 30 minutes, at the end of the day.", "你的1张优惠券将于30分钟后（24:00）到期。",
		},
		{
			"Asia/Shanghai", "2026-10-31T11:29:31+08:00", "2026-10-31T12:00:00+08:00",
			"Your coupon expires in 30 minutes, at 12:00.", "你的1张优惠券将于30分钟后（12:00）到期。",
		},
		{
			"Asia/Shanghai", "2026-10-31T11:59:50+08:00", "2026-10-31T12:00:00+08:00",
			"Your coupon expires in 1 minute, at 12:00.", "你的1张优惠券将于1分钟后（12:00）到期。",
		},
	} {
		offset := "-1d"
		if at(t, x.ends).Sub(at(t, x.now)) < time.Hour {
			offset = "-30m"
		}
		d := text.Data{Kind: coupon.NoticeExpiring, Offset: offset, Items: 1, EndsAt: at(t, x.ends), Zone: zone(t, x.zone)}
		all, err := texts.RenderAll(at(t, x.now), d)
		require.NoError(t, err)
		require.Equal(t, x.en, all["en"].Text)
		require.Equal(t, x.zh, all["zh-CN"].Text)
	}
}

func TestSeveralEnds(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	now, shanghai := at(t, "2026-10-31T10:00:00+08:00"), zone(t, "Asia/Shanghai")
	member := func(end string, value int64) coupon.Member {
		return coupon.Member{ExpiresAt: at(t, end), Value: value, Currency: "CNY"}
	}
	render := func(kind coupon.NoticeKind, offset string, ms ...coupon.Member) (en, zh coupon.NoticeText) {
		d := text.Data{Kind: kind, Offset: offset, Items: len(ms), Members: ms, EndsAt: ms[0].ExpiresAt, LastEnd: ms[len(ms)-1].ExpiresAt, Zone: shanghai}
		all, err := texts.RenderAll(now, d)
		require.NoError(t, err)
		return all["en"], all["zh-CN"]
	}
	en, zh := render(coupon.NoticeExpiring, "-1d", member("2026-11-02T00:00:00+08:00", 500), member("2026-11-02T00:00:00+08:00", 700))
	require.Equal(t, coupon.NoticeText{Title: "2 of your coupons expire tomorrow", Text: "2 coupons expire at the end of tomorrow, Sunday 1 November: CN¥5.00 and CN¥7.00."}, en)
	require.Equal(t, coupon.NoticeText{Title: "你有2张优惠券明天到期", Text: "你的2张优惠券将于明天（11月1日）24:00到期：¥5.00、¥7.00。"}, zh)

	en, zh = render(coupon.NoticeExpiring, "-30m", member("2026-10-31T10:30:00+08:00", 500), member("2026-10-31T10:45:00+08:00", 0))
	require.Equal(t, coupon.NoticeText{Title: "2 of your coupons expire today", Text: "2 coupons expire today, Saturday 31 October: CN¥5.00 at 10:30 and 1 coupon at 10:45."}, en)
	require.Equal(t, "你的2张优惠券将于今天（10月31日）到期：¥5.00（10:30）、1张优惠券（10:45）。", zh.Text)

	en, zh = render(coupon.NoticeExpiring, "-1d", member("2026-11-01T23:00:00+08:00", 500), member("2026-11-02T01:00:00+08:00", 500)) // after a move to another zone
	require.Equal(t, coupon.NoticeText{
		Title: "2 of your coupons expire soon",
		Text:  "2 coupons expire soon, the first tomorrow, Sunday 1 November, at 23:00: CN¥5.00 (1 November, 23:00) and CN¥5.00 (2 November, 01:00).",
	}, en)
	require.Equal(t, "你有2张优惠券即将到期", zh.Title)

	en, zh = render(coupon.NoticeExpired, "", member("2026-10-30T12:00:00+08:00", 500), member("2026-10-31T00:00:00+08:00", 500), member("2026-10-31T09:00:00+08:00", 500))
	require.Equal(t, "3 coupons have expired, the last today, Saturday 31 October, at 09:00: CN¥5.00 (30 October, 12:00), CN¥5.00 (end of 30 October) and CN¥5.00 (31 October, 09:00).", en.Text)
	require.Equal(t, "你的3张优惠券已过期，最晚的在今天（10月31日）09:00：¥5.00（10月30日 12:00）、¥5.00（10月30日 24:00）、¥5.00（10月31日 09:00）。", zh.Text)
	en, _ = render(coupon.NoticeExpired, "", member("2026-10-31T00:00:00+08:00", 500))
	require.Equal(t, "Your coupon expired at the end of yesterday, Friday 30 October.", en.Text)
}

func TestSums(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	for _, x := range []struct {
		minor         int64
		currency      string
		en, zh, plain string
	}{
		{123456, "CNY", "CN¥1,234.56", "¥1,234.56", "CNY"},
		{5, "CNY", "CN¥0.05", "¥0.05", "CNY"},
		{1500, "JPY", "¥1,500", "JP¥1,500", "JPY"},
		{1500, "KWD", "KWD 1.500", "KWD 1.500", "KWD"},
		{7, "BHD", "BHD 0.007", "BHD 0.007", "BHD"},
		{12345, "CLF", "CLF 1.2345", "CLF 1.2345", "CLF"},
		{99, "USD", "$0.99", "US$0.99", "USD"},
		{100, "EUR", "€1.00", "€1.00", "EUR"},
		{1_000_000_000_000_000_001, "EUR", "€10,000,000,000,000,000.01", "€10,000,000,000,000,000.01", "EUR"},
		{-250, "EUR", "€-2.50", "€-2.50", "EUR"},
		{250, "ZZZ", "ZZZ 2.50", "ZZZ 2.50", "ZZZ"}, // no such
		{250, "XXX", "XXX 2.50", "XXX 2.50", "XXX"},
		{250, "eur", "2.50", "2.50", ""}, // nothing that we would print
		{0, "EUR", "", "", "EUR"},
	} {
		d := text.Data{Kind: coupon.NoticeExpired, Items: 1, Totals: []coupon.Amount{{Minor: x.minor, Currency: x.currency}}, EndsAt: at(t, "2026-10-31T10:00:00Z")}
		for locale, want := range map[string]string{"en": x.en, "zh-CN": x.zh} {
			d.Locale = locale
			r, err := texts.Render(d.EndsAt, d)
			require.NoError(t, err)
			require.Equal(t, want, r.Params["amount"], "%d %s in %s", x.minor, x.currency, locale)
			require.Equal(t, x.plain, r.Params["currency"])
		}
	}
}

func TestParams(t *testing.T) {
	t.Parallel()
	d := text.Data{
		Kind: coupon.NoticeExpiring, Offset: "-1d", Items: 1200, Totals: []coupon.Amount{{Minor: 100, Currency: "CNY"}, {Minor: 100, Currency: "USD"}},
		EndsAt: at(t, "2026-11-01T00:00:00+08:00"), Zone: zone(t, "Asia/Shanghai"), Locale: "zh-Hans",
	}
	r, err := newTexts(t).Render(at(t, "2026-10-30T00:00:00+08:00"), d)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"count": "1200", "day": "明天", "date": "2026-10-31", "time": "24:00", "amount": "¥1.00、US$1.00", "currency": "CNY,USD",
		"ends_at": "2026-11-01T00:00:00+08:00",
	}, r.Params)
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		locale string
		prefer []string
		want   string
	}{
		{"en", nil, "en"},
		{"en", []string{"zh-CN"}, "zh-CN"},
		{"en", []string{"zh"}, "zh-CN"},
		{"en", []string{"zh-Hans-SG"}, "zh-CN"},
		{"en", []string{"en-GB", "zh"}, "en"},
		{"en", []string{"fr", "zh"}, "zh-CN"},
		{"en", []string{"fr"}, "en"},
		{"zh-CN", []string{"fr"}, "zh-CN"},
		{"zh-CN", []string{"en-AU"}, "en"},
		{"zh-CN", []string{"???", ""}, "zh-CN"},
	} {
		texts, err := text.New(x.locale)
		require.NoError(t, err)
		require.Equal(t, x.want, texts.Match(x.prefer...), "%v", x)
		require.Equal(t, x.locale, texts.Locales()[0])
	}
	require.Equal(t, []string{"en", "zh-CN"}, text.Locales())
	_, err := text.New("fr")
	require.EqualError(t, err, `locale: must be of [en zh-CN], got "fr"`)
}

const words = `{{define "when"}}w{{end}}{{define "day"}}d{{end}}{{define "clock"}}c{{end}}{{define "moment"}}m{{end}}{{define "until"}}u{{end}}` +
	`{{define "money"}}{{.Number}}{{end}}{{define "plus"}}+{{end}}{{define "coupon"}}x{{end}}{{define "value"}}v{{end}}{{define "end"}}e{{end}}` +
	`{{define "more"}}{{.More}}{{end}}{{define "zone"}}z{{end}}`

func TestLocalesOfOnesOwn(t *testing.T) {
	t.Parallel()
	const good = `{{define "title"}}t{{end}}{{define "lead"}}l{{end}}{{define "text"}}{{.Items}} {{plural .Items "one" "one" "few" "few" "many" "many" "other" "other"}} {{.Amount}}{{end}}`
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	texts, err := text.Read(fstest.MapFS{
		"locales/en/words.tmpl": file(words), "locales/de/words.tmpl": file(words), "locales/ru/words.tmpl": file(words), "locales/ar/words.tmpl": file(words),
		"locales/en/expired.tmpl": file(good), "locales/ru/expired.tmpl": file(good), "locales/ar/expired.tmpl": file(good),
		"locales/en/other.tmpl": file(good), "locales/de/other.tmpl": file(good),
	}, "de")
	require.NoError(t, err)
	d := text.Data{Kind: "expired", Items: 22, EndsAt: at(t, "2026-10-31T10:00:00Z"), Totals: []coupon.Amount{{Minor: 123456, Currency: "EUR"}}}
	all, err := texts.RenderAll(d.EndsAt, d)
	require.NoError(t, err)
	require.Equal(t, "22 few 1 234,56", all["ru"].Text)
	require.NotContains(t, all, "de")
	require.Equal(t, "22 other 1,234.56", texts.Choose(all, "de-AT").Text, "no German text of this kind: the English one")
	require.Equal(t, "22 few 1 234,56", texts.Choose(all, "ru").Text)
	for locale, want := range map[string]string{"de": "en", "ru": "ru", "sw": "en"} {
		d.Locale, d.Page = locale, true
		r, err := texts.Render(d.EndsAt, d)
		require.NoError(t, err)
		require.Equal(t, want, r.Locale)
		require.Contains(t, r.HTML, `<html lang="`+want+`" dir="ltr">`)
	}
	d.Locale = "ar"
	r, err := texts.Render(d.EndsAt, d)
	require.NoError(t, err)
	require.Contains(t, r.HTML, `<html lang="ar" dir="rtl">`)
	require.Equal(t, "22 many ١٬٢٣٤٫٥٦", r.Text.Text)
	d.Kind, d.Locale = "other", "de"
	r, err = texts.Render(d.EndsAt, d)
	require.NoError(t, err)
	require.Equal(t, "22 other 1.234,56", r.Text.Text)

	without := strings.Replace(words, `{{define "until"}}u{{end}}`, "", 1)
	for name, files := range map[string]fstest.MapFS{
		"no template in en":      {"locales/ru/words.tmpl": file(words), "locales/ru/expired.tmpl": file(good), "locales/en/words.tmpl": file(words)},
		"no word for":            {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define "lead"}}{{end}}{{define "title"}}{{plural .Items "one" "x"}}{{end}}{{define "text"}}{{end}}`)},
		"needs a word":           {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define "lead"}}{{end}}{{define "title"}}{{plural .Items "one"}}{{end}}{{define "text"}}{{end}}`)},
		"pick: 0 of 1 words":     {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define "title"}}{{pick 0 "a"}}{{end}}{{define "text"}}{{end}}`)},
		"parse template":         {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define`)},
		`"text"`:                 {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define "title"}}{{end}}{{define "lead"}}{{end}}`)},
		`"until"`:                {"locales/en/words.tmpl": file(without), "locales/en/expired.tmpl": file(good)},
		"words.tmpl":             {"locales/en/expired.tmpl": file(good)},
		"parse tag":              {"locales/e_!/expired.tmpl": file(good)},
		"locale en: there is":    {"locales/de/words.tmpl": file(words), "locales/de/expired.tmpl": file(good)},
		"read locales":           {},
		`must be of [ru], got`:   {"locales/ru/words.tmpl": file(words)},
		"can't evaluate field X": {"locales/en/words.tmpl": file(words), "locales/en/expired.tmpl": file(`{{define "title"}}{{.X}}{{end}}`)},
	} {
		preset := "en"
		if name == "locale en: there is" {
			preset = "de"
		}
		_, err := text.Read(files, preset)
		require.ErrorContains(t, err, name)
	}
}

func TestWhatCannotBeRendered(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	now := at(t, "2026-10-31T10:00:00Z")
	_, err := texts.Render(now, text.Data{Kind: "unheard", Items: 1})
	require.ErrorContains(t, err, "unheard")
	_, err = texts.RenderAll(now, text.Data{Kind: "unheard", Items: 1})
	require.ErrorContains(t, err, "unheard")
	_, err = texts.Render(now, text.Data{Kind: coupon.NoticeExpired})
	require.ErrorContains(t, err, "names no coupon")
}

// TestNothingBreaksOut: whatever data holds, a title is a line, a text is a line, and HTML is what the page has.
func TestNothingBreaksOut(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	now := at(t, "2026-10-31T10:00:00Z")
	nasty := rapid.OneOf(rapid.SampledFrom([]string{
		"\r\nBcc: all@example.com", "<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "{{.}}", "\u2028", "\u202e", "\x00", "javascript:alert(1)",
	}), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		d := text.Data{
			Kind:   rapid.SampledFrom([]coupon.NoticeKind{coupon.NoticeExpiring, coupon.NoticeExpired}).Draw(t, "kind"),
			Offset: nasty.Draw(t, "offset"), Items: rapid.IntRange(1, 1_000_000).Draw(t, "items"), Locale: nasty.Draw(t, "locale"),
			Zone:   time.FixedZone(nasty.Draw(t, "zone"), rapid.IntRange(-12*3600, 14*3600).Draw(t, "offset of zone")),
			EndsAt: now.Add(time.Duration(rapid.Int64Range(-1e6, 1e9).Draw(t, "end")) * time.Second), Page: true,
		}
		d.LastEnd = d.EndsAt.Add(time.Duration(rapid.IntRange(0, 100_000).Draw(t, "last")) * time.Second)
		for range rapid.IntRange(0, coupon.MembersShown).Draw(t, "members") {
			d.Members = append(d.Members, coupon.Member{ExpiresAt: d.EndsAt, Value: rapid.Int64().Draw(t, "value"), Currency: nasty.Draw(t, "currency")})
		}
		d.Totals = []coupon.Amount{{Minor: rapid.Int64().Draw(t, "total"), Currency: nasty.Draw(t, "currency")}}
		r, err := texts.Render(now, d)
		require.NoError(t, err)
		for _, s := range []string{r.Text.Title, r.Text.Text} {
			require.NotEmpty(t, s)
			require.NotContains(t, s, "  ")
			require.NotContains(t, s, "<")
			for _, x := range s {
				require.False(t, unicode.IsControl(x) || x == '\u2028' || x == '\u202e', "%q", s)
			}
		}
		for _, s := range r.Params {
			require.False(t, strings.ContainsFunc(s, unicode.IsControl), "%q", s)
		}
		for _, s := range []string{"<script", "<img", "onerror=alert(1)>", "javascript:alert(1)\""} {
			require.NotContains(t, r.HTML, s)
		}
		require.Equal(t, 1, strings.Count(r.HTML, "<html"))
		require.Equal(t, strings.Count(r.HTML, "<td"), strings.Count(r.HTML, "</td>"))
		require.NotContains(t, r.HTML, "http", "nothing is loaded from anywhere")
		all, err := texts.RenderAll(now, d)
		require.NoError(t, err)
		require.Equal(t, r.Text, all[r.Locale])
	})
}

// TestDaysAreTheReaders: whatever zone and instant, "today" and "tomorrow" are those of the reader's calendar, and the date is the last
// day on which the coupon is good.
func TestDaysAreTheReaders(t *testing.T) {
	t.Parallel()
	texts := newTexts(t)
	names := []string{"Asia/Shanghai", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Australia/Lord_Howe", "America/New_York", "Africa/Cairo", "Asia/Kathmandu", "America/St_Johns", "UTC"}
	rapid.Check(t, func(t *rapid.T) {
		z := zone(t, rapid.SampledFrom(names).Draw(t, "zone"))
		ends := time.Unix(rapid.Int64Range(1_700_000_000, 2_000_000_000).Draw(t, "end"), 0).In(z)
		if rapid.Bool().Draw(t, "at midnight") {
			ends = time.Date(ends.Year(), ends.Month(), ends.Day(), 0, 0, 0, 0, z)
		}
		now := ends.Add(-time.Duration(rapid.Int64Range(1, 100*3600).Draw(t, "before")) * time.Second)
		r, err := texts.Render(now, text.Data{Kind: coupon.NoticeExpiring, Offset: "-1d", Items: 1, EndsAt: ends, Zone: z})
		require.NoError(t, err)
		last := ends.Add(-time.Second).In(z)
		require.Equal(t, last.Format(time.DateOnly), r.Params["date"])
		day := func(days int) string { // by counting dates of the calendar
			local := now.In(z)
			return time.Date(local.Year(), local.Month(), local.Day()+days, 12, 0, 0, 0, time.UTC).Format(time.DateOnly)
		}
		switch r.Params["date"] {
		case day(0):
			require.Equal(t, "today", r.Params["day"])
		case day(1):
			require.Equal(t, "tomorrow", r.Params["day"])
		default:
			require.Contains(t, r.Params["day"], last.Format("on 2 January"))
		}
		got, err := time.Parse(time.RFC3339, r.Params["ends_at"])
		require.NoError(t, err)
		require.True(t, got.Equal(ends))
	})
}
