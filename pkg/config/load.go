package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"

	"github.com/lapsehq/lapse/pkg/secret"
)

const (
	envPrefix  = "LAPSE__"
	warnPrefix = "LAPSE_"
	maxFile    = 1 << 20 // bytes of a configuration file
)

// Sources is what a configuration is made of, besides the defaults.
type Sources struct {
	File    string   // name of the file, for faults; empty if there is none
	YAML    []byte   // its content
	Environ []string // "NAME=value"
}

// ReadSources reads the file, unless its name is empty.
func ReadSources(file string, environ []string) (Sources, error) {
	s := Sources{File: file, Environ: environ}
	if file == "" {
		return s, nil
	}
	content, err := readBounded(file, maxFile)
	if err != nil {
		return s, fmt.Errorf("reading the configuration: %w", err)
	}
	s.YAML = content

	return s, nil
}

// hider is a root some of whose keys are derived from others: path → the path that is set instead.
type hider interface{ Hidden() map[string]string }

// deriver is a root that fills in derived keys, before validation.
type deriver interface{ Derive() }

// Load returns the configuration and warnings to log. T is a struct; defaults says what holds where no source says anything.
// The error is an *Error with every fault.
func Load[T any](defaults T, src Sources) (T, []string, error) {
	cfg := defaults
	root := reflect.ValueOf(&cfg).Elem()
	hidden := map[string]string{}
	if h, ok := any(&cfg).(hider); ok {
		hidden = h.Hidden()
	}
	l := &loader{schema: newSchema(root.Type(), hidden), k: koanf.New("."), sources: map[string]string{}}
	l.file(src)
	warnings := l.environment(src.Environ)
	l.decode(root)
	if d, ok := any(&cfg).(deriver); ok {
		d.Derive()
	}
	for _, f := range validate(root) {
		if shown, ok := hidden[f.Path]; ok {
			f.Path = shown
		}
		if l.blamed(f.Path) {
			continue // it could not be read: what stands there is not what was meant
		}
		f.Source = l.source(f.Path)
		l.faults = append(l.faults, f)
	}
	if len(l.faults) > 0 {
		return cfg, warnings, &Error{Faults: l.faults}
	}

	return cfg, warnings, nil
}

type loader struct {
	schema  *schema
	k       *koanf.Koanf
	sources map[string]string // path → where its value came from
	faults  []Fault
}

func (l *loader) fault(path, source, format string, args ...any) {
	l.faults = append(l.faults, Fault{Path: path, Reason: fmt.Sprintf(format, args...), Source: source})
}

// source is where the value came from that the path is, or is in: paths of faults go into lists and maps.
func (l *loader) source(path string) string {
	for path != "" {
		if source, ok := l.sources[path]; ok {
			return source
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}

	return ""
}

func (l *loader) blamed(path string) bool {
	return slices.ContainsFunc(l.faults, func(f Fault) bool {
		return f.Path == path || strings.HasPrefix(f.Path, path+"[") || strings.HasPrefix(f.Path, path+".")
	})
}

// put adds one layer's values.
func (l *loader) put(values map[string]any, source func(path string) string) {
	for _, path := range sortedKeys(values) {
		l.sources[path] = source(path)
		k := l.schema.keys[path]
		other := path + fileSuffix
		if k.secret != "" {
			other = k.secret
		} else if k.typ != secretType {
			continue
		}
		if _, both := values[other]; both {
			if k.secret != "" { // once
				l.fault(path, source(path), "and %s are both set", other)
			}

			continue
		}
		l.k.Delete(other) // the higher layer wins, in whichever form
	}
	// Load of a confmap cannot fail: there is nothing to read or parse.
	if err := l.k.Load(confmap.Provider(values, "."), nil); err != nil {
		l.fault("", "", "%v", err)
	}
}

func (l *loader) file(src Sources) {
	if len(bytes.TrimSpace(src.YAML)) == 0 {
		return
	}
	if !utf8.Valid(src.YAML) {
		l.fault("", src.File, "the file is not UTF-8")

		return
	}
	dec := yaml.NewDecoder(bytes.NewReader(src.YAML))
	var tree map[string]any
	if err := dec.Decode(&tree); err != nil && !errors.Is(err, io.EOF) {
		l.fault("", src.File, "%s", strings.TrimPrefix(err.Error(), "yaml: "))

		return
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		l.fault("", src.File, "the file has more than one document")

		return
	}
	values := map[string]any{}
	l.walk(tree, "", src.File, values)
	l.put(values, func(string) string { return src.File })
}

// walk collects the values of known keys.
func (l *loader) walk(tree map[string]any, prefix, source string, values map[string]any) {
	for _, name := range sortedKeys(tree) {
		path, value := join(prefix, name), tree[name]
		_, isKey := l.schema.keys[path]
		below, isMap := value.(map[string]any)
		switch {
		case strings.Contains(name, "."):
			l.fault(path, source, "is one name with a dot in it; write the sections one below the other")
		case isKey:
			values[path] = value
		case !l.schema.sections[path]:
			l.faults = append(l.faults, l.schema.unknown(path, source))
		case isMap:
			l.walk(below, path, source, values)
		case value != nil: // an empty section is a section without settings
			l.fault(path, source, "is a section, not a value")
		}
	}
}

// environment adds the variables and returns the warnings.
func (l *loader) environment(environ []string) []string {
	var warnings []string
	values, names := map[string]any{}, map[string]string{}
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours {
			if strings.HasPrefix(name, warnPrefix) {
				warnings = append(warnings, name+" is not read: settings have the form LAPSE__SECTION__KEY")
			}

			continue
		}
		path := strings.ReplaceAll(strings.ToLower(rest), "__", ".")
		switch _, known := l.schema.keys[path]; {
		case rest != strings.ToUpper(rest):
			l.fault(path, name, "is not a setting: names of variables are in capitals")
		case l.schema.sections[path]:
			l.fault(path, name, "is a section, not a value")
		case !known:
			l.faults = append(l.faults, l.schema.unknown(path, name))
		default:
			values[path], names[path] = value, name
		}
	}
	l.put(values, func(path string) string { return names[path] })

	return warnings
}

// decode sets the fields.
func (l *loader) decode(root reflect.Value) {
	for _, path := range l.schema.order {
		if !l.k.Exists(path) {
			continue
		}
		k, source := l.schema.keys[path], l.sources[path]
		if k.secret != "" {
			l.readSecret(root, k, source)

			continue
		}
		name := path[strings.LastIndexByte(path, '.')+1:]
		for _, err := range flatten(decode(root.FieldByIndex(k.index), l.k.Get(path), name)) {
			at := path
			if b, ok := errors.AsType[*belowError](err); ok {
				at, err = path+b.path, b.err
			}
			l.fault(at, source, "%v", err)
		}
	}
}

// readSecret sets a secret to the content of the file that its twin names.
func (l *loader) readSecret(root reflect.Value, k key, source string) {
	file, ok := l.k.Get(k.path).(string)
	if !ok || file == "" {
		l.fault(k.path, source, "must be the name of a file")

		return
	}
	text, err := secret.ReadFile(file)
	if err != nil {
		l.fault(k.path, source, "%v", err)

		return
	}
	root.FieldByIndex(l.schema.keys[k.secret].index).Set(reflect.ValueOf(text))
}

// readBounded reads a file that must not be larger than limit bytes.
func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(content)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", file, limit)
	}

	return content, nil
}
