package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// strictJSON reads what encoding/json reads, but no bytes that are no UTF-8, no name that comes twice, none in another case,
// and no null where it means nothing: all would be mended in silence. Unknown names are refused by the schema.
func strictJSON() huma.Format {
	return huma.Format{
		Marshal: func(w io.Writer, v any) error {
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			return enc.Encode(v)
		},
		Unmarshal: func(data []byte, v any) error {
			if whole, ok := v.(*any); ok {
				return unmarshalAny(data, whole)
			}
			return json.Unmarshal(data, v)
		},
	}
}

func unmarshalAny(data []byte, v *any) error {
	if !utf8.Valid(data) {
		return errors.New("must be UTF-8")
	}
	if n := pieces(data); n > maxPieces {
		return fmt.Errorf("must be made of at most %d values, has %d", maxPieces, n)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("must be JSON: %w", err)
	}
	return once(json.NewDecoder(bytes.NewReader(data)))
}

// maxPieces is more than any request needs: a cart of 256 items with 256 scopes each has some 67 000 values, a thousand
// grants have 8 000. Each may become a fault that is told, of several hundred bytes: a body of a mebibyte would take
// seconds and hundreds of megabytes.
const maxPieces = 100_000

// pieces counts the values of a document, about: commas and opening brackets outside of strings. It need not be valid.
func pieces(data []byte) int {
	n := 1
	for i, inString := 0, false; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case !inString && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}

// nullable is the one name of a request whose null means something: it never ends. huma takes null for any optional value.
const nullable = "expires_at"

// once refuses a name that comes twice in an object, is written otherwise than ours, or has a null that means nothing. The
// document is valid.
func once(dec *json.Decoder) error {
	dec.UseNumber()
	var names []map[string]bool // of each open object; nil for an array
	name := ""                  // the last
	for key := false; ; {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("must be JSON: %w", err)
		}
		inObject := len(names) > 0 && names[len(names)-1] != nil
		switch t := tok.(type) {
		case json.Delim:
			switch t {
			case '{':
				names = append(names, map[string]bool{})
				key = true
				continue
			case '[':
				names = append(names, nil)
				key = false
				continue
			default:
				names = names[:len(names)-1]
			}
		case string:
			if inObject && key {
				seen := names[len(names)-1]
				if strings.Trim(t, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
					// Ours have these letters alone; others would be taken for them whatever their case.
					return fmt.Errorf("the name %q is not known", clip(t))
				}
				if seen[t] {
					return fmt.Errorf("the name %q comes twice in an object", clip(t))
				}
				seen[t] = true
				name, key = t, false
				continue
			}
		case nil:
			if inObject && name != nullable {
				return fmt.Errorf("%s must not be null: leave it out", name)
			}
		}
		key = len(names) > 0 && names[len(names)-1] != nil
	}
}

// Instant is an optional point in time that knows absent from null: null is never.
type Instant struct {
	Given bool
	At    time.Time // coupon.Never for null
}

// UnmarshalJSON takes RFC 3339 with a zone, or null.
func (i *Instant) UnmarshalJSON(b []byte) error {
	i.Given = true
	if string(b) == "null" {
		i.At = coupon.Never
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return errors.New("must be an instant in RFC 3339 with a zone, or null for never")
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() < 1970 || coupon.IsNever(coupon.CeilSecond(at)) {
		return fmt.Errorf("must be an instant in RFC 3339 with a zone, from 1970 on and before 9999-12-31, or null for never, got %q", clip(text))
	}
	i.At = at.UTC()
	return nil
}

// Schema describes it.
func (Instant) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time", Nullable: true, Description: "RFC 3339 with a zone; null is never"}
}

// instant of an answer: nil, which is null, if there is none or it never comes.
func instant(t time.Time) *time.Time {
	if t.IsZero() || coupon.IsNever(t) {
		return nil
	}
	t = t.UTC()
	return &t
}

// formatID writes an id as all of the API does: JSON's numbers are not exact for all of them.
func formatID(id uint64) string { return strconv.FormatUint(id, 10) }

// parseID reads an id. location names it in the problem: path.coupon_id.
func parseID(location, text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || formatID(id) != text || id == 0 {
		return 0, badRequest(location, text, "must be a positive decimal integer without leading zeros, in a string")
	}
	return id, nil
}

// text checks an id or name of somebody else's: bytes are what the database counts.
func text(location, value string, required bool) *Fault {
	switch {
	case value == "" && required:
		return &Fault{Location: location, Message: "must not be empty"}
	case len(value) > coupon.MaxText:
		return &Fault{Location: location, Message: fmt.Sprintf("must have at most %d bytes", coupon.MaxText), Value: clip(value)}
	case !printable(value):
		return &Fault{Location: location, Message: "must not contain control characters or noncharacters", Value: clip(value)}
	}
	return nil
}

// texts collects faults.
func texts(faults ...*Fault) error {
	var found []Fault
	for _, f := range faults {
		if f != nil {
			found = append(found, *f)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return badRequests(found)
}
