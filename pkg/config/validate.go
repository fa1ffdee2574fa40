package config

import (
	"reflect"
	"regexp"
	"strings"
)

type validator interface{ Validate() error }

// validate collects what the sections say of themselves. The topmost section that can judge itself judges all below it; the
// root's own word (how sections fit together) comes last.
func validate(root reflect.Value) []Fault {
	faults := validateBelow(root, "")
	if v, ok := root.Addr().Interface().(validator); ok {
		faults = append(faults, faultsOf("", v.Validate())...)
	}

	return faults
}

func validateBelow(v reflect.Value, path string) []Fault {
	var faults []Fault
	fieldsOf(v.Type(), func(name string, f reflect.StructField, squash bool) {
		if !isSection(f.Type) {
			return
		}
		field, at := v.FieldByIndex(f.Index), path
		if !squash {
			at = join(path, name)
		}
		if v, ok := field.Addr().Interface().(validator); ok && !squash {
			faults = append(faults, faultsOf(at, v.Validate())...)

			return
		}
		faults = append(faults, validateBelow(field, at)...)
	})

	return faults
}

// A name below the first may be that of a map's member, such as a locale.
var namedField = regexp.MustCompile(`^([a-z][a-z0-9_]*(?:\[\d+\])?(?:\.[A-Za-z][A-Za-z0-9_-]*(?:\[\d+\])?)*): (?s:(.*))$`)

// faultsOf takes errors.Join apart and puts the section's path before the field's name that each error begins with.
func faultsOf(section string, err error) []Fault {
	var faults []Fault
	for _, e := range flatten(err) {
		f := Fault{Path: section, Reason: e.Error()}
		if m := namedField.FindStringSubmatch(e.Error()); m != nil {
			f.Path, f.Reason = join(section, m[1]), m[2]
		}
		faults = append(faults, f)
	}

	return faults
}

// flatten takes apart what errors.Join put together, and only that: an error that merely wraps several has words of its own.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var parts []error
	texts := make([]string, 0, 4)
	for _, e := range joined.Unwrap() {
		parts = append(parts, flatten(e)...)
		texts = append(texts, e.Error())
	}
	if strings.Join(texts, "\n") != err.Error() {
		return []error{err}
	}

	return parts
}
