package text

import (
	"embed"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/text/language"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//go:embed locales
var localeFiles embed.FS

//go:embed email.html.tmpl
var emailPage string

const (
	localeDir = "locales"
	fallback  = "en" // has every kind
)

// Locales lists the locales that there are, in order.
func Locales() []string {
	names, err := localesOf(localeFiles)
	if err != nil {
		return nil // embedded: cannot fail
	}
	return names
}

func localesOf(files fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(files, localeDir)
	if err != nil {
		return nil, fmt.Errorf("read locales: %w", err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// Texts renders notices in every language. Safe for concurrent use.
type Texts struct {
	names   []string // the default first
	locales map[string]*locale
	matcher language.Matcher
	page    *htmltemplate.Template
}

// Data is what a notice is to say.
type Data struct {
	Kind    coupon.NoticeKind
	Offset  string          // of reminders
	Items   int             // coupons, at least 1
	Members []coupon.Member // the first few of them, by their ends
	Totals  []coupon.Amount
	EndsAt  time.Time      // the first end
	LastEnd time.Time      // the last; zero: the same
	Zone    *time.Location // the reader's; nil: UTC
	Locale  string         // that the reader prefers; of Render alone
	Page    bool           // as an e-mail's HTML, too; of Render alone
}

// Rendered is a notice in one language.
type Rendered struct {
	Locale string // of what there is
	Text   coupon.NoticeText
	HTML   string // if Data.Page
	// Params are for the template of a provider: count; day, as in today; date, as 2026-11-01, and time, as 18:00, of the first end,
	// where the end of a day is 24:00; amount, with symbols; currency, with commas if there are several; ends_at, RFC 3339.
	Params map[string]string
}

// New reads the embedded templates; preset is the locale of readers who ask for none that there is. Every template is tried.
func New(preset string) (*Texts, error) { return Read(localeFiles, preset) }

// Read is New with other templates: those below locales.
func Read(files fs.FS, preset string) (*Texts, error) {
	names, err := localesOf(files)
	if err != nil {
		return nil, err
	}
	page, err := htmltemplate.New("email").Option("missingkey=error").Parse(emailPage)
	if err != nil {
		return nil, fmt.Errorf("parse page: %w", err)
	}
	t := &Texts{names: names, locales: make(map[string]*locale), page: page}
	for _, name := range names {
		if t.locales[name], err = readLocale(files, name); err != nil {
			return nil, fmt.Errorf("locale %s: %w", name, err)
		}
	}
	at := slices.Index(names, preset)
	if at < 0 {
		return nil, fmt.Errorf("locale: must be of %v, got %q", names, preset)
	}
	t.names = slices.Insert(slices.Delete(slices.Clone(names), at, at+1), 0, preset)
	tags := make([]language.Tag, len(t.names))
	for i, name := range t.names {
		tags[i] = t.locales[name].tag
	}
	t.matcher = language.NewMatcher(tags)
	return t, t.try()
}

// kinds lists those that any locale has.
func (t *Texts) kinds() []coupon.NoticeKind {
	all := make(map[coupon.NoticeKind]bool)
	for _, l := range t.locales {
		for kind := range l.kinds {
			all[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Locales lists them, the default first.
func (t *Texts) Locales() []string { return slices.Clone(t.names) }

// Match gives the locale for a reader who prefers these tags, best first; tags that cannot be read are passed over.
func (t *Texts) Match(prefer ...string) string {
	tags := make([]language.Tag, 0, len(prefer))
	for _, p := range prefer {
		if tag, err := language.Parse(p); err == nil {
			tags = append(tags, tag)
		}
	}
	_, i, confidence := t.matcher.Match(tags...)
	if confidence == language.No {
		i = 0
	}
	return t.names[i]
}

// Choose gives the text for such a reader out of rendered ones: of the matching locale, else of the fallback.
func (t *Texts) Choose(texts map[string]coupon.NoticeText, prefer ...string) coupon.NoticeText {
	if text, ok := texts[t.Match(prefer...)]; ok {
		return text
	}
	return texts[fallback]
}

// Render gives the notice in the locale for d.Locale, as it is to be read at now.
func (t *Texts) Render(now time.Time, d Data) (Rendered, error) {
	l := t.locales[t.Match(d.Locale)]
	if l.kinds[d.Kind] == nil {
		l = t.locales[fallback]
	}
	return t.render(l, now, d, true)
}

// RenderAll gives title and text by locale. A locale without this kind is left out: its readers get the fallback.
func (t *Texts) RenderAll(now time.Time, d Data) (map[string]coupon.NoticeText, error) {
	out := make(map[string]coupon.NoticeText, len(t.names))
	for _, name := range t.names {
		if t.locales[name].kinds[d.Kind] == nil && name != fallback {
			continue
		}
		r, err := t.render(t.locales[name], now, d, false)
		if err != nil {
			return nil, err
		}
		out[name] = r.Text
	}
	return out, nil
}

// page is what the page of an e-mail may use.
type page struct {
	Lang, Direction, Start, Finish      string
	Title, Lead, Value, End, More, Zone string
	Rows                                []row
}

func (t *Texts) render(l *locale, now time.Time, d Data, whole bool) (Rendered, error) {
	if d.Items < 1 {
		return Rendered{}, fmt.Errorf("render notice of kind %s: names no coupon", d.Kind)
	}
	if d.Zone == nil {
		d.Zone = time.UTC
	}
	if d.LastEnd.Before(d.EndsAt) {
		d.LastEnd = d.EndsAt
	}
	w, err := newWriter(l, now, &d)
	if err != nil {
		return Rendered{}, fmt.Errorf("render notice in %s: %w", l.name, err)
	}
	v := w.view(&d, whole && d.Page)
	r := Rendered{Locale: l.name, Text: coupon.NoticeText{Title: w.write("title", v), Text: w.write("text", v)}}
	if whole {
		r.Params = params(&d, &v, momentOf(now, d.EndsAt, d.Zone, false))
	}
	if whole && d.Page {
		r.HTML = t.html(w, &d, &v, r.Text.Title)
	}
	if w.err != nil {
		return Rendered{}, fmt.Errorf("render notice of kind %s in %s: %w", d.Kind, l.name, w.err)
	}
	return r, nil
}

func (t *Texts) html(w *writer, d *Data, v *view, title string) string {
	p := page{
		Lang: w.locale.tag.String(), Title: title, Lead: w.write("lead", v), Value: w.write("value", nil), End: w.write("end", nil),
		Zone: w.write("zone", map[string]string{"Name": d.Zone.String(), "Offset": "UTC" + d.EndsAt.In(d.Zone).Format("-07:00")}),
		Rows: v.Rows,
	}
	p.Direction, p.Start, p.Finish = w.locale.direction()
	if v.More != "" && len(v.Rows) > 0 {
		p.More = w.write("more", v)
	}
	var b strings.Builder
	if err := t.page.Execute(&b, p); err != nil && w.err == nil {
		w.err = err
	}
	return b.String()
}

func params(d *Data, v *view, first moment) map[string]string {
	codes := make([]string, 0, len(d.Totals))
	for _, a := range d.Totals {
		if isCode(a.Currency) {
			codes = append(codes, a.Currency)
		}
	}
	return map[string]string{
		"count": strconv.Itoa(d.Items), "day": v.First.When(), "date": first.date(), "time": first.clockText(),
		"amount": v.Amount, "currency": strings.Join(codes, ","), "ends_at": d.EndsAt.In(d.Zone).Format(time.RFC3339),
	}
}

// try renders every kind in every locale, with numbers of every plural category; a kind that the fallback lacks is an error.
func (t *Texts) try() error {
	if t.locales[fallback] == nil {
		return fmt.Errorf("locale %s: there is none", fallback)
	}
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	var errs []error
	for _, kind := range t.kinds() {
		if t.locales[fallback].kinds[kind] == nil {
			errs = append(errs, fmt.Errorf("kind %s: no template in %s", kind, fallback))
		}
		for _, name := range t.names {
			if l := t.locales[name]; l.kinds[kind] != nil {
				errs = append(errs, t.tryKind(l, now, kind))
			}
		}
	}
	return errors.Join(errs...)
}

func (t *Texts) tryKind(l *locale, now time.Time, kind coupon.NoticeKind) error {
	var ds []Data
	for _, items := range []int{1, 2, 5, 11, 21, 1000} {
		ds = append(ds, Data{Offset: "-1d", Items: items, EndsAt: now.Add(36 * time.Hour)})
	}
	for _, first := range []time.Duration{-48 * time.Hour, -24 * time.Hour, time.Minute, 30 * time.Minute, 12 * time.Hour, 36 * time.Hour, 3000 * time.Hour} {
		for _, length := range []time.Duration{0, time.Minute, 100 * time.Hour} {
			ds = append(ds, Data{Offset: "-30m", Items: 3, EndsAt: now.Add(first), LastEnd: now.Add(first + length)})
		}
	}
	for _, d := range ds {
		d.Kind, d.Page, d.Totals = kind, true, []coupon.Amount{{Minor: 100, Currency: "CNY"}, {Minor: 5, Currency: "KWD"}}
		for i := range min(d.Items, fewMost+1) {
			d.Members = append(d.Members, coupon.Member{ExpiresAt: d.EndsAt, Value: int64(i) * 100, Currency: "CHF"})
		}
		if _, err := t.render(l, now, d, true); err != nil {
			return err
		}
	}
	return nil
}
