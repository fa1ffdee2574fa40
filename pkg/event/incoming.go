package event

import (
	"slices"
	"strings"
)

// incoming is the envelope of an event that was received.
type incoming struct {
	typ    string
	id     string
	source string
	trace  string
	data   *object
}

// open reads the envelope of a CloudEvent that must have one of the given types.
func open(o *object, want ...string) (incoming, error) {
	if version := o.text("specversion", true, MaxID); version != "1.0" && len(o.errs) == 0 {
		o.failAs(ErrUnknownVersion, "specversion", "must be 1.0")
	}
	if err := o.err(); err != nil {
		return incoming{}, err
	}
	typ := o.text("type", true, MaxID)
	if len(o.errs) == 0 && !slices.Contains(want, typ) {
		o.failAs(unknown(typ, want), "type", "must be "+strings.Join(want, ", "))
		return incoming{}, o.err()
	}
	in := incoming{
		typ:    typ,
		id:     o.text("id", true, maxEventID),
		source: o.text("source", true, MaxID*2),
	}
	// A bad traceparent is ignored, whatever it is.
	if raw, ok := o.get("traceparent"); ok && raw[0] == '"' {
		if trace := unquote(raw); validTrace(trace) {
			in.trace = trace
		}
	}
	if media := mediaType(o.text("datacontenttype", false, MaxID)); media != "" && media != "application/json" && !strings.HasSuffix(media, "+json") {
		o.fail("datacontenttype", "must be application/json")
	}
	raw, ok := o.get("data")
	if _, binary := o.get("data_base64"); binary {
		o.fail("data_base64", "is not read, send data")
	} else if !ok {
		o.fail("data", "is required")
	}
	if err := o.err(); err != nil {
		return incoming{}, err
	}
	data, err := newObject("data.", raw)
	if err != nil {
		return incoming{}, err
	}
	in.data = data
	return in, nil
}

const (
	// maxIncomingID leaves room for the id of a refusal, which contains it, in
	// the outbox's 200 bytes.
	maxIncomingID = 120
	// maxEventID is the longest id of ours: that of a refusal.
	maxEventID = 64 + 1 + maxIncomingID + len(":refused")
)

// unknown tells another version of a wanted type from another type.
func unknown(typ string, want []string) error {
	if got, versioned := splitVersion(typ); versioned {
		for _, w := range want {
			if name, _ := splitVersion(w); name == got {
				return ErrUnknownVersion
			}
		}
	}
	return ErrUnknownType
}

// splitVersion takes ".v<digits>" off a type.
func splitVersion(typ string) (name string, ok bool) {
	i := strings.LastIndex(typ, ".v")
	if i < 0 || len(typ) == i+2 || strings.Trim(typ[i+2:], "0123456789") != "" {
		return typ, false
	}
	return typ[:i], true
}

// mediaType is a content type without parameters, in lower case.
func mediaType(contentType string) string {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}
