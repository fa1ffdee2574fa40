package main

import (
	"strings"
)

type statement struct {
	line int // of the file, counted from 1
	sql  string
}

// splitMigration takes a goose migration apart as goose does: a statement ends with a semicolon at the end of a line, unless it
// stands between StatementBegin and StatementEnd.
func splitMigration(content string) []statement {
	var (
		out   []statement
		lines []string
		begin int
		whole bool // between StatementBegin and StatementEnd
	)
	flush := func() {
		if sql := strings.TrimSpace(strings.Join(lines, "\n")); sql != "" {
			out = append(out, statement{line: begin, sql: sql})
		}
		lines = nil
	}
	for i, line := range strings.Split(content, "\n") {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "-- +goose StatementBegin"):
			whole = true
		case strings.HasPrefix(text, "-- +goose StatementEnd"):
			whole = false
			flush()
		case strings.HasPrefix(text, "-- +goose"):
			flush()
		case strings.HasPrefix(text, "--") && len(lines) == 0:
		default:
			if len(lines) == 0 {
				begin = i + 1
				if text == "" {
					continue
				}
			}
			lines = append(lines, line)
			if !whole && strings.HasSuffix(text, ";") {
				flush()
			}
		}
	}
	flush()
	return out
}
