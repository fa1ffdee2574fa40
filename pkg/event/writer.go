package event

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const (
	seconds      = "2006-01-02T15:04:05Z"
	milliseconds = "2006-01-02T15:04:05.000Z"
)

// envelope holds the CloudEvents attributes that differ between events; empty
// ones are left out, as the specification wants it.
type envelope struct {
	typ, id, subject string
	at               time.Time
	user             string // partitionkey
	trace            string // traceparent
}

// writer builds an event's JSON: reflection would cost several times as much
// on the hottest path of the database's transactions. Tests prove it against
// encoding/json.
type writer struct {
	b []byte
}

// begin writes the envelope up to the opening brace of its data.
func (c *Codec) begin(e envelope) *writer {
	w := &writer{b: make([]byte, 0, 768)}
	w.raw(`{"specversion":"1.0"`)
	w.field("id", e.id)
	w.field("source", c.source)
	w.field("type", e.typ)
	if e.subject != "" {
		w.field("subject", e.subject)
	}
	w.instant("time", e.at, milliseconds)
	w.raw(`,"datacontenttype":"application/json"`)
	if e.user != "" {
		w.field("partitionkey", e.user)
	}
	if validTrace(e.trace) {
		w.field("traceparent", e.trace)
	}
	w.raw(`,"data":{`)
	return w
}

// close ends data and envelope.
func (w *writer) close() []byte { return append(w.b, `}}`...) }

func (w *writer) raw(s string) { w.b = append(w.b, s...) }

func (w *writer) name(name string) {
	if last := w.b[len(w.b)-1]; last != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, name...) // a literal of ours: nothing to escape
	w.b = append(w.b, '"', ':')
}

func (w *writer) field(name, value string) {
	w.name(name)
	w.b = appendString(w.b, value)
}

// optional writes null for what is not there.
func (w *writer) optional(name, value string) {
	if value == "" {
		w.name(name)
		w.raw("null")
		return
	}
	w.field(name, value)
}

func (w *writer) number(name string, value int64) {
	w.name(name)
	w.b = strconv.AppendInt(w.b, value, 10)
}

func (w *writer) instant(name string, at time.Time, layout string) {
	w.name(name)
	w.b = appendInstant(w.b, at, layout)
}

// expiresAt writes a coupon's end.
func (w *writer) expiresAt(at time.Time) { w.end("expires_at", at) }

// end writes whole seconds, null for never.
func (w *writer) end(name string, at time.Time) {
	if coupon.IsNever(at) {
		w.name(name)
		w.raw("null")
		return
	}
	w.instant(name, coupon.CeilSecond(at), seconds)
}

func (w *writer) money(terms coupon.Terms) *writer {
	w.number("value", terms.Value)
	w.field("currency", terms.Currency)
	return w
}

func appendInstant(b []byte, at time.Time, layout string) []byte {
	b = append(b, '"')
	b = at.UTC().AppendFormat(b, layout)
	return append(b, '"')
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Like encoding/json (without HTML
// escapes) it replaces invalid UTF-8 and escapes U+2028 and U+2029.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && size == 1:
				b = append(append(b, s[start:i]...), `\ufffd`...)
			case r == '\u2028' || r == '\u2029':
				b = append(append(b, s[start:i]...), '\\', 'u', '2', '0', '2', hexDigits[r&0xF])
			default:
				i += size
				continue
			}
			i += size
			start = i
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
		}
		i++
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// cut shortens s to at most limit bytes, between characters.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
