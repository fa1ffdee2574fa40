package verify

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/lapsehq/lapse/pkg/rig"
)

// Result is what a verification found. All of them write this as JSON; docs/verify.md documents it.
type Result struct {
	Verify  string       `json:"verify"` // which verification
	Seed    uint64       `json:"seed"`
	Commit  string       `json:"commit"` // that the binaries were built from
	Servers rig.Versions `json:"servers"`
	Passed  bool         `json:"passed"` // it ran to its end, and every check is ok
	Checks  []Check      `json:"checks"`
	Errors  []string     `json:"errors,omitempty"` // sections that could not run, and why
}

// Check is one number held against one bound.
type Check struct {
	Name  string  `json:"name"` // section.what
	Value float64 `json:"value"`
	Bound float64 `json:"bound"`
	Op    Op      `json:"op"` // how value must stand to bound
	OK    bool    `json:"ok"`
}

// Op compares a value with a bound.
type Op string

// The comparisons.
const (
	Equal   Op = "=="
	AtMost  Op = "<="
	AtLeast Op = ">="
	Below   Op = "<"
)

// Holds reports whether value op bound.
func (o Op) Holds(value, bound float64) bool {
	switch o {
	case Equal:
		return value == bound
	case AtMost:
		return value <= bound
	case AtLeast:
		return value >= bound
	case Below:
		return value < bound
	default:
		return false
	}
}

// String is the check without its verdict: "section.what 3 == 3".
func (c Check) String() string {
	return fmt.Sprintf("%s %s %s %s", c.Name, plain(c.Value), c.Op, plain(c.Bound))
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }

// tally collects a section's checks.
type tally struct {
	section string
	view    View
	checks  []Check
}

type number interface{ ~int | ~int64 | ~float64 }

// want adds a check.
func want[V, B number](t *tally, name string, value V, op Op, bound B) {
	c := Check{Name: t.section + "." + name, Value: float64(value), Bound: float64(bound), Op: op}
	c.OK = op.Holds(c.Value, c.Bound)
	t.checks = append(t.checks, c)
	t.view.Check(c)
}

// told adds a number that is reported and may be anything.
func told(t *tally, name string, value int) { want(t, name, value, AtLeast, 0) }

func (r *Result) judge() {
	r.Passed = len(r.Errors) == 0 && len(r.Checks) > 0
	for _, c := range r.Checks {
		r.Passed = r.Passed && c.OK
	}
	r.Commit = cmp.Or(r.Commit, "unknown")
}
