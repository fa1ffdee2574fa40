package text

import (
	"fmt"
	"slices"
	"strings"
	"text/template"
	"time"
	"unicode"

	"golang.org/x/text/message"
	"golang.org/x/text/number"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// fewMost is how many coupons a text names.
const fewMost = 3

// view is what the template of a kind may use.
type view struct {
	Items   int    // at least 1
	Count   string // the same, as the locale writes it
	Same    bool   // all end at one instant
	OneDay  bool   // all end on one day of the reader's
	First   said   // the earliest end
	Last    said   // the latest
	Amount  string // what all are worth together; empty if it is not known
	Few     []row  // those that end first
	FewMore string // how many more there are; empty if none
	Rows    []row  // as many as are known, for the e-mail
	More    string // how many more; empty if none
}

// said is a moment in the locale's words; each is written when a template asks for it.
type said struct {
	moment moment
	writer *writer
}

// When is the word for a title: tomorrow.
func (s said) When() string { return s.writer.write("when", s.moment) }

// Day is the day in full.
func (s said) Day() string { return s.writer.write("day", s.moment) }

// Clock is the time of day.
func (s said) Clock() string { return s.writer.write("clock", s.moment) }

// Moment is day and time.
func (s said) Moment() string { return s.writer.write("moment", s.moment) }

// Until is day and time for a table.
func (s said) Until() string { return s.writer.write("until", s.moment) }

// row is a coupon.
type row struct {
	Amount string
	End    said
	Last   bool // of the few
}

// writer renders the parts of one notice in one locale. Its first error is kept.
type writer struct {
	locale  *locale
	set     *template.Template
	printer *message.Printer
	point   string
	now     time.Time
	zone    *time.Location
	minutes bool
	err     error
}

func newWriter(l *locale, now time.Time, d *Data) (*writer, error) {
	set := l.kinds[d.Kind]
	if set == nil {
		return nil, fmt.Errorf("no template for kind %q", d.Kind)
	}
	w := &writer{locale: l, set: set, printer: message.NewPrinter(l.tag), now: now, zone: d.Zone}
	w.point = decimalPoint(w.printer)
	// Minutes are said of one end: of several each has its time.
	if o, err := coupon.ParseOffset(d.Offset); err == nil && d.Kind == coupon.NoticeExpiring {
		w.minutes = !o.IsDay() && d.EndsAt.Equal(d.LastEnd)
	}
	return w, nil
}

// write executes one template. What comes out is a line of text, whatever went in.
func (w *writer) write(name string, data any) string {
	var b strings.Builder
	if err := w.set.ExecuteTemplate(&b, name, data); err != nil && w.err == nil {
		w.err = err
	}
	return line(b.String())
}

// line is text without control characters, and with single spaces.
func line(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		// Cf holds marks that turn the direction of what follows, and soft hyphens; joiners of scripts and emoji stay.
		return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200c' && r != '\u200d'
	}), " ")
}

func (w *writer) said(ends time.Time, minutes bool) said {
	return said{moment: momentOf(w.now, ends, w.zone, minutes), writer: w}
}

// amount is empty for nothing.
func (w *writer) amount(a coupon.Amount) string {
	if a.Minor == 0 {
		return ""
	}
	return w.write("money", sumOf(w.printer, w.point, a))
}

func (w *writer) amounts(totals []coupon.Amount) string {
	parts := make([]string, 0, len(totals))
	for _, a := range totals {
		if text := w.amount(a); text != "" {
			parts = append(parts, text)
		}
	}
	var b strings.Builder
	if err := w.set.ExecuteTemplate(&b, "plus", nil); err != nil && w.err == nil {
		w.err = err
	}
	return strings.Join(parts, b.String())
}

// count is empty for none.
func (w *writer) count(n int) string {
	if n <= 0 {
		return ""
	}
	return w.printer.Sprint(number.Decimal(n))
}

func (w *writer) rows(members []coupon.Member) []row {
	out := make([]row, len(members))
	for i, m := range members {
		out[i] = row{Amount: w.amount(coupon.Amount{Minor: m.Value, Currency: m.Currency}), End: w.said(m.ExpiresAt, false)}
		if out[i].Amount == "" {
			out[i].Amount = w.write("coupon", nil)
		}
	}
	return out
}

// view has as many rows as an e-mail shows, or those of a text alone.
func (w *writer) view(d *Data, whole bool) view {
	members := d.Members[:min(len(d.Members), d.Items)]
	few := min(len(members), fewMost)
	if !whole {
		members = members[:few]
	}
	v := view{
		Items: d.Items, Count: w.count(d.Items), Same: d.EndsAt.Equal(d.LastEnd),
		OneDay: coupon.LastDay(d.EndsAt, d.Zone).Equal(coupon.LastDay(d.LastEnd, d.Zone)),
		First:  w.said(d.EndsAt, w.minutes), Last: w.said(d.LastEnd, false),
		Amount: w.amounts(d.Totals), Rows: w.rows(members), FewMore: w.count(d.Items - few), More: w.count(d.Items - len(members)),
	}
	if v.Few = slices.Clone(v.Rows[:few]); few > 0 {
		v.Few[few-1].Last = true
	}
	return v
}
