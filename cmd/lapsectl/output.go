package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	eastasian "golang.org/x/text/width"
)

// table is text in columns, without colours.
type table [][]string

func (t table) String() string {
	var widths []int
	for _, row := range t {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], cellWidth(shown(cell)))
		}
	}
	var b strings.Builder
	for _, row := range t {
		var line strings.Builder
		for i, cell := range row {
			cell = shown(cell)
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-cellWidth(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// cellWidth is how wide a terminal draws text: Chinese characters take two places.
func cellWidth(text string) int {
	n := 0
	for _, r := range text {
		n++
		if k := eastasian.LookupRune(r).Kind(); k == eastasian.EastAsianWide || k == eastasian.EastAsianFullwidth {
			n++
		}
	}
	return n
}

// shown is text that a terminal takes for nothing but text.
func shown(text string) string {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// printJSON writes one document.
func (s *system) printJSON(v any) error {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return s.print(string(body) + "\n")
}

// writeJSON writes one document where --json says: to a file, to standard output for -, nowhere if it was not given.
func (s *system) writeJSON(file string, v any) error {
	switch file {
	case "":
		return nil
	case "-":
		return s.printJSON(v)
	}
	body, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(body, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return nil
}

// instant is RFC 3339 in UTC with milliseconds; empty for the zero time.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// parseID reads an id as it is written everywhere: decimal digits, from 1 on.
func parseID(field, text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil || text[0] == '0' || text[0] == '+' {
		return 0, fmt.Errorf("%s: must be an id, a whole number from 1 on, got %q", field, text)
	}
	return id, nil
}
