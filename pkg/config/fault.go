package config

import (
	"fmt"
	"strings"
)

// Fault is one thing wrong with a configuration.
type Fault struct {
	Path   string // of the key, "broker.url"; empty if it concerns the whole
	Reason string // without the value of a secret
	Source string // the file or the variable that the value came from; empty for a default
}

func (f Fault) String() string {
	out := f.Reason
	if f.Path != "" {
		out = f.Path + ": " + out
	}
	if f.Source != "" {
		out += " (" + f.Source + ")"
	}

	return out
}

// Error is everything wrong with a configuration.
type Error struct{ Faults []Fault }

func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Faults)+1)
	head := "1 fault in the configuration:"
	if len(e.Faults) != 1 {
		head = fmt.Sprintf("%d faults in the configuration:", len(e.Faults))
	}
	lines = append(lines, head)
	for _, f := range e.Faults {
		lines = append(lines, "  "+f.String())
	}

	return strings.Join(lines, "\n")
}
