package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// splitCSV takes a line apart (RFC 4180). A field does not go on in the next line: none of the columns can hold a
// line's end.
func splitCSV(line string) (cells []string, reason string) {
	for {
		var text string
		if !strings.HasPrefix(line, `"`) {
			text, line = line, ""
			if i := strings.IndexByte(text, ','); i >= 0 {
				text, line = text[:i], text[i:]
			}
			if strings.Contains(text, `"`) {
				return nil, `has a quote inside a field that does not begin with one`
			}
		} else {
			end := 1
			for {
				i := strings.IndexByte(line[end:], '"')
				if i < 0 {
					return nil, "has a quoted field without an end"
				}
				end += i + 1
				if end == len(line) || line[end] != '"' {
					break
				}
				end++
			}
			text, line = strings.ReplaceAll(line[1:end-1], `""`, `"`), line[end:]
			if line != "" && line[0] != ',' {
				return nil, "has text behind a quoted field"
			}
		}
		cells = append(cells, text)
		if line == "" {
			return cells, ""
		}
		line = line[1:]
	}
}

// jsonRecord reads a JSON object of one line. Names are exact, and none may occur twice.
func jsonRecord(line []byte, number int64) (rec record, faults []fault, reason string) {
	const malformed = "must be a JSON object on one line"
	dec := json.NewDecoder(bytes.NewReader(line))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return rec, nil, malformed
	}
	seen := make(map[string]bool, columnCount)
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		var raw json.RawMessage
		if err != nil || !ok || dec.Decode(&raw) != nil {
			return rec, nil, malformed
		}
		bad := func(reason string) {
			faults = append(faults, fault{Line: number, Field: clipped(name), Value: clipped(string(raw)), Reason: reason})
		}
		column := slices.Index(columnNames[:], name)
		if column < 0 {
			bad("is not a column; the columns are " + strings.Join(columnNames[:], ", "))
			continue
		}
		if seen[name] {
			bad("is there twice")
			continue
		}
		seen[name] = true
		switch c := &rec[column]; {
		case raw[0] == 'n':
			c.never = column == colEnd
		case raw[0] == '"':
			if err := json.Unmarshal(raw, &c.text); err != nil {
				return rec, nil, malformed
			}
		case column == colTemplate && raw[0] >= '0' && raw[0] <= '9':
			c.text, c.number = string(raw), true
		default:
			bad("must be a string")
			c.text = ""
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return rec, nil, malformed
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return rec, nil, malformed
	}
	return rec, faults, ""
}
