package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The limits of what is read.
const (
	MaxBody   = 1 << 20 // bytes of an incoming event
	MaxGrants = 1000    // grants of one event
	MaxID     = 128     // bytes of keys and ids
)

// What callers tell apart in a decoder's error.
var (
	// ErrMalformed: it is not what the contract says. Sending it again cannot help.
	ErrMalformed = errors.New("malformed")
	// ErrTooLarge: it is above a limit.
	ErrTooLarge = errors.New("too large")
	// ErrUnknownVersion: a major version that this release does not know; a newer one may.
	ErrUnknownVersion = errors.New("unknown version")
	// ErrUnknownType: an event of another type.
	ErrUnknownType = errors.New("unknown type")
)

// FieldError tells which field was refused, what it held, and why.
type FieldError struct {
	Field  string // a path such as grants[3].user_id
	Value  string // as received, shortened; empty if absent
	Reason string
	Kind   error // one of the package's errors
}

// Error is "field: reason, got value".
func (e *FieldError) Error() string {
	if e.Value == "" {
		return e.Field + ": " + e.Reason
	}
	return e.Field + ": " + e.Reason + ", got " + e.Value
}

// Unwrap is the kind of the error.
func (e *FieldError) Unwrap() error { return e.Kind }

const occursTwice = "occurs twice"

// object is a JSON object taken apart one level deep. It collects what is
// wrong with its fields, so that a sender hears of everything at once.
type object struct {
	path   string // ends in a dot unless empty
	raw    []byte
	fields map[string][]byte
	errs   []error
}

// document checks that a whole body is one JSON object within the limits.
func document(body []byte, limit int) (*object, error) {
	switch {
	case len(body) > limit:
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(body), limit)
	case len(body) == 0:
		return nil, fmt.Errorf("%w: the body is empty", ErrMalformed)
	case !utf8.Valid(body):
		return nil, fmt.Errorf("%w: the body is not UTF-8", ErrMalformed)
	case !json.Valid(body):
		return nil, fmt.Errorf("%w: %w", ErrMalformed, syntaxError(body))
	}
	return newObject("", bytes.TrimSpace(body))
}

func syntaxError(body []byte) error {
	var v any
	err := json.Unmarshal(body, &v)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("byte %d: %w", syntax.Offset, err)
	}
	return errors.New("no valid JSON")
}

// newObject splits valid JSON that may be an object.
func newObject(path string, raw []byte) (*object, error) {
	if raw[0] != '{' {
		field := strings.TrimSuffix(path, ".")
		if field == "" {
			field = "body"
		}
		return nil, &FieldError{Field: field, Value: shorten(raw), Reason: "must be a JSON object", Kind: ErrMalformed}
	}
	o := &object{path: path, raw: raw, fields: make(map[string][]byte, 8)}
	for i := skipSpace(raw, 1); raw[i] != '}'; {
		end := stringEnd(raw, i)
		name := unquote(raw[i:end])
		i = skipSpace(raw, skipSpace(raw, end)+1) // over the colon
		end = valueEnd(raw, i)
		if _, twice := o.fields[name]; twice {
			return nil, &FieldError{Field: path + cut(name, 64), Reason: occursTwice, Kind: ErrMalformed}
		}
		o.fields[name] = raw[i:end]
		if i = skipSpace(raw, end); raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return o, nil
}

// elements splits valid JSON that is an array, up to limit of them; ok is false
// if there are more.
func elements(raw []byte, limit int) (values [][]byte, ok bool) {
	for i := skipSpace(raw, 1); raw[i] != ']'; {
		if len(values) == limit {
			return nil, false
		}
		end := valueEnd(raw, i)
		values = append(values, raw[i:end])
		if i = skipSpace(raw, end); raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return values, true
}

// The next four walk JSON that is known to be valid.

func skipSpace(b []byte, i int) int {
	for b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r' {
		i++
	}
	return i
}

func stringEnd(b []byte, i int) int {
	for i++; b[i] != '"'; i++ {
		if b[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		for depth := 0; ; {
			switch b[i] {
			case '"':
				i = stringEnd(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
	default:
		for i < len(b) && !bytes.ContainsRune([]byte(",]} \n\t\r"), rune(b[i])) {
			i++
		}
		return i
	}
}

// unquote reads a valid JSON string. A lone surrogate becomes U+FFFD.
func unquote(raw []byte) string {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return string(inner) // cannot be: the whole document was valid
	}
	return s
}

func (o *object) fail(field, reason string) { o.failAs(ErrMalformed, field, reason) }

func (o *object) failAs(kind error, field, reason string) {
	e := &FieldError{Field: o.path + field, Reason: reason, Kind: kind}
	if raw, ok := o.fields[field]; ok {
		e.Value = shorten(raw)
	}
	o.errs = append(o.errs, e)
}

func (o *object) err() error { return errors.Join(o.errs...) }

// get is a field's raw value; null counts as absent.
func (o *object) get(field string) ([]byte, bool) {
	raw, ok := o.fields[field]
	if !ok || raw[0] == 'n' {
		return nil, false
	}
	return raw, true
}

func (o *object) text(field string, required bool, limit int) string {
	raw, ok := o.get(field)
	if !ok {
		if required {
			o.fail(field, "is required")
		}
		return ""
	}
	if raw[0] != '"' {
		o.fail(field, "must be a string")
		return ""
	}
	s := unquote(raw)
	switch {
	case s == "" && required:
		o.fail(field, "must not be empty")
	case len(s) > limit:
		o.failAs(ErrTooLarge, field, fmt.Sprintf("must have at most %d bytes, has %d", limit, len(s)))
	case !printable(s):
		o.fail(field, "must not contain control characters or noncharacters")
	default:
		return s
	}
	return ""
}

// printable refuses what must not be in keys and ids: control characters (NUL
// above all), Unicode noncharacters (CloudEvents forbids both), and U+FFFD,
// which is what became of bytes that were no characters.
func printable(s string) bool {
	for _, r := range s {
		switch {
		case r < 0x20, r >= 0x7F && r <= 0x9F, r == utf8.RuneError,
			r >= 0xFDD0 && r <= 0xFDEF, r&0xFFFE == 0xFFFE:
			return false
		}
	}
	return true
}

const maxExact = 1<<53 - 1 // integers above may have been rounded by the sender

// id reads a decimal string. With numbers, a JSON integer is taken, too, if
// every JSON library represents it exactly.
func (o *object) id(field string, numbers bool) uint64 {
	raw, ok := o.get(field)
	if !ok {
		o.fail(field, "is required")
		return 0
	}
	quoted := raw[0] == '"'
	if !quoted && !numbers {
		o.fail(field, "must be a string of decimal digits")
		return 0
	}
	digits := string(raw)
	if quoted {
		digits = unquote(raw)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil || digits[0] == '0' || digits[0] == '+':
		o.fail(field, "must be a positive decimal integer without leading zeros, in a string")
	case !quoted && n > maxExact:
		o.fail(field, "is not exact as a number above 2^53-1, send a string")
	default:
		return n
	}
	return 0
}

// integer reads a JSON integer.
func (o *object) integer(field string, low, high int64) int64 {
	raw, ok := o.get(field)
	if !ok {
		o.fail(field, "is required")
		return 0
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < low || n > high {
		o.fail(field, fmt.Sprintf("must be an integer between %d and %d", low, high))
		return 0
	}
	return n
}

// instant reads RFC 3339 with a zone; ok is false if there is none or a bad one.
func (o *object) instant(field string, required bool) (at time.Time, ok bool) {
	raw, there := o.get(field)
	if !there {
		if required {
			o.fail(field, "is required")
		}
		return time.Time{}, false
	}
	if raw[0] != '"' || at.UnmarshalText([]byte(unquote(raw))) != nil {
		o.fail(field, "must be an instant in RFC 3339 with a zone")
		return time.Time{}, false
	}
	return at.UTC(), true
}

// shorten renders a raw value for an error.
func shorten(raw []byte) string {
	const limit = 80
	if len(raw) <= limit {
		return string(raw)
	}
	return cut(string(raw), limit) + "…"
}

// validTrace is W3C traceparent, version 00. Anything else is ignored, as that
// specification wants it, rather than refused.
func validTrace(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	for _, part := range []string{s[3:35], s[36:52], s[53:55]} {
		for _, c := range []byte(part) {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}
