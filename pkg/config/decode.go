package config

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// zeroWords are the words for zero of keys whose zero means something else than none.
var zeroWords = map[string]string{"horizon": "unlimited"} //nolint:gochecknoglobals // a constant table

// decode sets dst from a value as YAML or the environment gave it. name is the last part of the path. Errors do not repeat
// the path, but begin with the part below it, if any.
func decode(dst reflect.Value, raw any, name string) error {
	if raw == nil {
		return errors.New("has no value; leave the key out to keep the default")
	}
	if u, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, ok := raw.(string)
		if !ok {
			return errors.New("must be text, in quotes")
		}

		return u.UnmarshalText([]byte(text))
	}
	if dst.Type() == durationType {
		d, err := parseDuration(raw, zeroWords[name])
		if err == nil {
			dst.SetInt(int64(d))
		}

		return err
	}
	switch dst.Kind() {
	case reflect.String:
		text, ok := raw.(string)
		if !ok {
			return fmt.Errorf("must be text, in quotes if it looks like something else, got %v", raw)
		}
		dst.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(fmt.Sprint(raw))
		if err != nil {
			return fmt.Errorf("must be true or false, got %q", fmt.Sprint(raw))
		}
		dst.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(fmt.Sprint(raw), 10, 64)
		if err != nil || dst.OverflowInt(n) {
			return fmt.Errorf("must be a whole number, got %q", fmt.Sprint(raw))
		}
		dst.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(fmt.Sprint(raw), 10, 64)
		if err != nil || dst.OverflowUint(n) {
			return fmt.Errorf("must be a whole number from 0, got %q", fmt.Sprint(raw))
		}
		dst.SetUint(n)
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(fmt.Sprint(raw), 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return fmt.Errorf("must be a number, got %q", fmt.Sprint(raw))
		}
		dst.SetFloat(x)
	case reflect.Slice:
		return decodeList(dst, raw, name)
	case reflect.Map:
		return decodeMap(dst, raw, name)
	case reflect.Struct:
		return decodeStruct(dst, raw)
	default:
		return fmt.Errorf("cannot be configured: it is a %s", dst.Type())
	}

	return nil
}

func decodeList(dst reflect.Value, raw any, name string) error {
	if text, ok := raw.(string); ok {
		if isSection(dst.Type().Elem()) {
			if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
				return fmt.Errorf("must be a list as YAML: %w", err)
			}
		} else {
			raw = splitList(text)
		}
	}
	items, ok := raw.([]any)
	if !ok {
		return errors.New("must be a list")
	}
	list := reflect.MakeSlice(dst.Type(), len(items), len(items))
	var errs []error
	for i, item := range items {
		if err := decode(list.Index(i), item, name); err != nil {
			errs = append(errs, below(fmt.Sprintf("[%d]", i), err))
		}
	}
	if len(errs) == 0 {
		dst.Set(list)
	}

	return errors.Join(errs...)
}

// splitList takes a list apart at its commas; spaces around members do not count, and an empty text is an empty list.
func splitList(text string) []any {
	items := []any{}
	if strings.TrimSpace(text) == "" {
		return items
	}
	for item := range strings.SplitSeq(text, ",") {
		items = append(items, strings.TrimSpace(item))
	}

	return items
}

// decodeMap adds to the defaults: members that are not named keep theirs, and so do the settings of a member that names only some.
func decodeMap(dst reflect.Value, raw any, name string) error {
	if text, ok := raw.(string); ok {
		if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
			return fmt.Errorf("must be a map as YAML: %w", err)
		}
	}
	items, ok := raw.(map[string]any)
	if !ok || dst.Type().Key().Kind() != reflect.String {
		return errors.New("must be a map with names as keys")
	}
	out := reflect.MakeMapWithSize(dst.Type(), len(items))
	for _, k := range dst.MapKeys() { // of the defaults
		out.SetMapIndex(k, dst.MapIndex(k))
	}
	var errs []error
	for _, k := range sortedKeys(items) {
		label, item := reflect.ValueOf(k).Convert(dst.Type().Key()), reflect.New(dst.Type().Elem()).Elem()
		if preset := out.MapIndex(label); preset.IsValid() {
			item.Set(preset)
		}
		if err := decode(item, items[k], name); err != nil {
			errs = append(errs, below("."+k, err))

			continue
		}
		out.SetMapIndex(label, item)
	}
	if len(errs) == 0 {
		dst.Set(out)
	}

	return errors.Join(errs...)
}

// decodeStruct decodes a member of a list or map. Those of a list begin from zero values: a list replaces its default whole.
func decodeStruct(dst reflect.Value, raw any) error {
	items, ok := raw.(map[string]any)
	if !ok {
		return errors.New("must be a map of settings")
	}
	known := map[string]bool{}
	var errs []error
	fieldsOf(dst.Type(), func(name string, f reflect.StructField, _ bool) {
		known[name] = true
		item, ok := items[name]
		if !ok {
			return
		}
		if err := decode(dst.FieldByIndex(f.Index), item, name); err != nil {
			errs = append(errs, below("."+name, err))
		}
	})
	for _, k := range sortedKeys(items) {
		if !known[k] {
			errs = append(errs, below("."+k, errors.New("is not a setting")))
		}
	}

	return errors.Join(errs...)
}

// belowError is an error of something below the path at hand.
type belowError struct {
	path string
	err  error
}

func (e *belowError) Error() string { return e.path + ": " + e.err.Error() }
func (e *belowError) Unwrap() error { return e.err }

func below(path string, err error) error {
	var errs []error
	for _, e := range flatten(err) {
		if b, ok := errors.AsType[*belowError](e); ok {
			errs = append(errs, &belowError{path: path + b.path, err: b.err})
		} else {
			errs = append(errs, &belowError{path: path, err: e})
		}
	}

	return errors.Join(errs...)
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)

	return keys
}

const day = 24 * time.Hour

// parseDuration takes Go's form with an optional number of days in front, and zeroWord, if there is one.
func parseDuration(raw any, zeroWord string) (time.Duration, error) {
	text := strings.TrimSpace(fmt.Sprint(raw))
	if zeroWord != "" && text == zeroWord {
		return 0, nil
	}
	form := `a duration such as 500ms, 30s, 1h30m or 30d`
	if zeroWord != "" {
		form += ", or " + zeroWord
	}
	bad := fmt.Errorf("must be %s, got %q", form, text)
	rest := text
	var days time.Duration
	if head, tail, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(head, 10, 31)
		if err != nil || n > uint64(math.MaxInt64/day)-1 {
			return 0, bad
		}
		days, rest = time.Duration(n)*day, tail
		if rest == "" {
			return days, nil
		}
		if rest[0] == '-' || rest[0] == '+' {
			return 0, bad
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d > math.MaxInt64-days {
		return 0, bad
	}

	return days + d, nil
}

// formatDuration is the shortest form that parseDuration takes back.
func formatDuration(d time.Duration) string {
	if d > 0 && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	out := d.String()
	if strings.HasSuffix(out, "m0s") {
		out = strings.TrimSuffix(out, "0s")
	}
	if strings.HasSuffix(out, "h0m") {
		out = strings.TrimSuffix(out, "0m")
	}

	return out
}
