package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/lapsehq/lapse/pkg/adopt"
)

// tolds keeps the rows that were not taken over: the first of them, and all in a file if one was named.
type tolds struct {
	file  string
	out   *os.File
	first []adopt.Told
	err   error
}

func (t *tolds) add(rows []adopt.Told) {
	for i := range rows {
		if len(t.first) < toldMost {
			t.first = append(t.first, rows[i])
		}
	}
	if t.file == "" || len(rows) == 0 || t.err != nil {
		return
	}
	t.err = appendLines(&t.out, t.file, rows)
}

func (t *tolds) close() error {
	err := t.err
	if t.out != nil {
		err = errors.Join(err, t.out.Close())
	}
	if err != nil {
		return fmt.Errorf("--refused: %w", err)
	}
	return nil
}

// appendLines writes values as JSON lines behind what is in the file, which it opens if it is not open.
func appendLines[T any](file **os.File, name string, values []T) error {
	if *file == nil {
		out, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err //nolint:wrapcheck // names the file
		}
		*file = out
	}
	lines := json.NewEncoder(*file)
	for i := range values {
		if err := lines.Encode(values[i]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
