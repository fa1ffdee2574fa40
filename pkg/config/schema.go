package config

import (
	"encoding"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/secret"
)

const fileSuffix = "_file"

//nolint:gochecknoglobals // constants, if types could be
var (
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[secret.String]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// key is one setting.
type key struct {
	path   string
	index  []int // of the field in the root struct
	typ    reflect.Type
	secret string // for the twin that names a file: the path of the secret
}

// schema is every key of a root struct.
type schema struct {
	keys     map[string]key
	order    []string
	sections map[string]bool
}

// fieldsOf yields the keys of one struct type: name, index and whether the field's own keys belong to the struct itself.
func fieldsOf(t reflect.Type, yield func(name string, f reflect.StructField, squash bool)) {
	for f := range t.Fields() {
		tag, ok := f.Tag.Lookup("koanf")
		if !ok || !f.IsExported() {
			continue
		}
		name, opts, _ := strings.Cut(tag, ",")
		squash := slices.Contains(strings.Split(opts, ","), "squash")
		if name == "-" || name == "" && !squash {
			continue
		}
		yield(name, f, squash)
	}
}

// isSection reports whether t is a struct of further keys, not a value written as text.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textType)
}

func newSchema(root reflect.Type, hidden map[string]string) *schema {
	s := &schema{keys: map[string]key{}, sections: map[string]bool{}}
	s.add(root, "", nil, hidden)
	// The twins last: a struct may have a field of that name itself.
	for _, path := range slices.Clone(s.order) {
		twin := path + fileSuffix
		if _, taken := s.keys[twin]; s.keys[path].typ == secretType && !taken {
			s.keys[twin] = key{path: twin, typ: reflect.TypeFor[string](), secret: path}
			s.order = append(s.order, twin)
		}
	}

	return s
}

func (s *schema) add(t reflect.Type, prefix string, index []int, hidden map[string]string) {
	fieldsOf(t, func(name string, f reflect.StructField, squash bool) {
		at := append(slices.Clone(index), f.Index...)
		if squash {
			s.add(f.Type, prefix, at, hidden)

			return
		}
		path := join(prefix, name)
		if _, ok := hidden[path]; ok {
			return
		}
		if isSection(f.Type) {
			s.sections[path] = true
			s.add(f.Type, path, at, hidden)

			return
		}
		s.keys[path] = key{path: path, index: at, typ: f.Type}
		s.order = append(s.order, path)
	})
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}

	return prefix + "." + name
}

// unknown is the fault of a key that nothing takes, with the nearest name that something does.
func (s *schema) unknown(path, source string) Fault {
	reason := "is not a setting"
	if near := s.nearest(path); near != "" {
		reason = fmt.Sprintf("is not a setting; did you mean %s?", near)
	}

	return Fault{Path: path, Reason: reason, Source: source}
}

func (s *schema) nearest(path string) string {
	best, least := "", 3 // at most two letters amiss
	for _, candidate := range slices.Concat(s.order, slices.Sorted(maps.Keys(s.sections))) {
		if d := distance(path, candidate); d < least {
			best, least = candidate, d
		}
	}

	return best
}

// distance counts the letters to insert, delete or replace to make a into b. Long inputs are told apart by length alone.
func distance(a, b string) int {
	if len(a) > len(b)+3 || len(b) > len(a)+3 {
		return 4
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			corner, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, corner+cost)
		}
	}

	return row[len(b)]
}
