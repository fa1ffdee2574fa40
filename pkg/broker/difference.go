package broker

import (
	"fmt"
	"sort"
)

// difference is an argument that is not as it should be.
type difference struct {
	name       string
	want, have any // nil: not set
}

func (d difference) String() string {
	show := func(v any) string {
		if v == nil {
			return "none"
		}
		if n, ok := integer(v); ok {
			return fmt.Sprint(n)
		}
		return fmt.Sprint(v)
	}
	return fmt.Sprintf("%s: want %s, have %s", d.name, show(d.want), show(d.have))
}

func differences(want, have map[string]any) []difference {
	var out []difference
	for name, v := range want {
		if !same(v, have[name]) {
			out = append(out, difference{name, v, have[name]})
		}
	}
	for name, v := range have {
		if _, ok := want[name]; !ok {
			out = append(out, difference{name, nil, v})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

// same compares a value of ours with one from JSON.
func same(want, have any) bool {
	a, aNumber := integer(want)
	b, bNumber := integer(have)
	if aNumber || bNumber {
		return aNumber && bNumber && a == b
	}
	return want == have
}

func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case float64:
		return int64(v), true
	default:
		return 0, false
	}
}
