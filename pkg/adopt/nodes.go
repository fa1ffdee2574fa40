package adopt

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// nodes reads a YAML document and gathers every fault.
type nodes struct {
	errs []error
	told map[string]bool // paths that something was said of
}

func (r *nodes) fault(path string, n *yaml.Node, format string, args ...any) {
	if r.told == nil {
		r.told = map[string]bool{}
	}
	r.told[path] = true
	text := fmt.Sprintf(format, args...)
	if n != nil {
		text += fmt.Sprintf(" (line %d)", n.Line)
	}
	if path != "" {
		text = path + ": " + text
	}
	r.errs = append(r.errs, fmt.Errorf("%s", text))
}

func under(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// any reads a mapping with keys of the author's.
func (r *nodes) any(path string, n *yaml.Node, read func(path, key string, n *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fault(path, n, "must have keys with values")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := under(path, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode:
			r.fault(path, key, "must have words for keys")
		case seen[key.Value]:
			r.fault(at, key, "is given twice")
		default:
			seen[key.Value] = true
			read(at, key.Value, n.Content[i+1])
		}
	}
}

// each reads a mapping of which all keys are known.
func (r *nodes) each(path string, n *yaml.Node, keys map[string]func(path string, n *yaml.Node)) {
	r.any(path, n, func(at, key string, n *yaml.Node) {
		read, ok := keys[key]
		if !ok {
			known := make([]string, 0, len(keys))
			for k := range keys {
				known = append(known, k)
			}
			slices.Sort(known)
			r.fault(at, n, "is unknown; there are %s", strings.Join(known, ", "))
			return
		}
		read(at, n)
	})
}

func (r *nodes) text(path string, n *yaml.Node, into *string) {
	if n.Kind != yaml.ScalarNode {
		r.fault(path, n, "must be a text")
		return
	}
	if n.Tag != "!!null" {
		*into = n.Value
	}
}

func (r *nodes) duration(path string, n *yaml.Node, into *time.Duration) {
	var text string
	r.text(path, n, &text)
	d, err := time.ParseDuration(text)
	if err != nil {
		r.fault(path, n, "must be a duration such as 30m, got %q", text)
		return
	}
	*into = d
}

func (r *nodes) number(path string, n *yaml.Node, into *int, low, high int) {
	var text string
	r.text(path, n, &text)
	v, err := strconv.Atoi(text)
	if err != nil || v < low || v > high {
		r.fault(path, n, "must be between %d and %d, got %q", low, high, text)
		return
	}
	*into = v
}

func (r *nodes) list(path string, n *yaml.Node, into *[]string) {
	if n.Kind != yaml.SequenceNode {
		r.fault(path, n, "must be a list")
		return
	}
	for i, item := range n.Content {
		var text string
		r.text(fmt.Sprintf("%s[%d]", path, i), item, &text)
		*into = append(*into, text)
	}
}
