// Package secret holds text that must not be shown: passwords, tokens, URLs that carry them.
//
// Invariants:
//   - no verb of fmt, no marshaller (JSON, YAML, text) and no zap field shows the text; only Reveal does
//   - the zero value is the empty secret, shown as empty, so that "not set" can be told from "set"
//   - two secrets are == exactly when their texts, and the files that they were read from, if any, are equal
//   - whoever logs in somewhere asks for the secret as it is now (Current): a password that is changed in its file needs no restart
package secret

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unique"
)

// Redacted is what is shown in place of a secret that is not empty.
const Redacted = "[redacted]"

const maxFile = 64 << 10 // bytes of a file that holds a secret

// ErrRedacted is returned when a value that was redacted on output is read back as a secret.
var ErrRedacted = errors.New("is the text " + Redacted + ", which only stands for a secret: give the secret itself")

// String is a secret text.
//
// The text sits behind a handle: fmt cannot call our methods on unexported fields of other structs and would otherwise
// print their contents.
type String struct {
	handle unique.Handle[string]
	file   unique.Handle[string] // zero: of no file
}

// New returns the secret with this text.
func New(text string) String {
	if text == "" {
		return String{}
	}

	return String{handle: unique.Make(text)}
}

// ReadFile returns the secret that a file holds, without the ends of lines behind it.
func ReadFile(file string) (String, error) {
	f, err := os.Open(file) //nolint:gosec // the operator names the file
	if err != nil {
		return String{}, err //nolint:wrapcheck // names the file
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return String{}, err
	}
	text := strings.TrimRight(string(content), "\r\n")
	switch {
	case len(content) > maxFile:
		return String{}, fmt.Errorf("%s has more than %d bytes", file, maxFile)
	case text == "":
		return String{}, fmt.Errorf("the file %s is empty", file)
	}

	return String{handle: unique.Make(text), file: unique.Make(file)}, nil
}

// Current returns the secret as it is now: one that was read from a file is read again, any other is itself.
func (s String) Current() (String, error) {
	if s.file == (unique.Handle[string]{}) {
		return s, nil
	}
	now, err := ReadFile(s.file.Value())
	if err != nil {
		return s, fmt.Errorf("reading a secret again: %w", err)
	}

	return now, nil
}

// Reveal returns the text. Do not log or print it.
func (s String) Reveal() string {
	if s.Empty() {
		return ""
	}

	return s.handle.Value()
}

// Empty reports whether there is no text.
func (s String) Empty() bool { return s.handle == unique.Handle[string]{} }

// String returns Redacted, or nothing for an empty secret.
func (s String) String() string {
	if s.Empty() {
		return ""
	}

	return Redacted
}

// Format answers every verb of fmt with the redacted form, quoted where the verb quotes.
func (s String) Format(f fmt.State, verb rune) {
	shown := s.String()
	if verb == 'q' || verb == 'v' && f.Flag('#') {
		shown = strconv.Quote(shown)
	}
	// A failing writer is reported by fmt itself.
	_, _ = io.WriteString(f, shown)
}

// MarshalText gives the redacted form; encoding/json, encoding/xml and YAML use it too.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the secret itself. It refuses Redacted, so that a printed configuration is not taken for a real one.
func (s *String) UnmarshalText(text []byte) error {
	if string(text) == Redacted {
		return ErrRedacted
	}
	*s = New(string(text))

	return nil
}
