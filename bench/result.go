package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Result is a file of results: what docs/benchmarks.json holds.
type Result struct {
	At        time.Time          `json:"at"`
	Full      bool               `json:"full"` // measured at the full sizes
	Machine   Machine            `json:"machine"`
	Versions  map[string]string  `json:"versions"`
	Settings  map[string]string  `json:"settings"` // of the servers, as far as they matter
	Runs      int                `json:"runs"`     // of each subject; the figures are medians
	Ratios    map[string]float64 `json:"ratios"`
	Targets   []Target           `json:"targets"`
	Scenarios []Scenario         `json:"scenarios"`
}

// Scenario is what one found.
type Scenario struct {
	Name     string    `json:"name"`
	What     string    `json:"what"`
	At       time.Time `json:"at"`
	Commit   string    `json:"commit"`
	Size     int       `json:"size"` // what -size was
	Subjects []Subject `json:"subjects"`
}

// Subject is what was found of one.
type Subject struct {
	Name   string    `json:"name"`
	What   string    `json:"what"`
	Median metrics   `json:"median"`
	Runs   []metrics `json:"runs"`
	Error  string    `json:"error,omitempty"` // why it did not run to its end
}

// Target is a figure that is held against a bound.
type Target struct {
	Name    string  `json:"name"`
	Value   float64 `json:"value"`
	Op      string  `json:"op"`
	Bound   float64 `json:"bound"`
	Reached bool    `json:"reached"`
}

// String has the metrics in the order of their names.
func (m metrics) String() string {
	parts := make([]string, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, name+"="+figure(m[name]))
	}
	return strings.Join(parts, " ")
}

// figure writes a number as precisely as a person wants it.
func figure(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 1000 || v <= -1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// countsAll are metrics whose worst run counts: a loss is not made good by two runs without any.
func countsAll(name string) bool {
	switch name {
	case "lost", "doubled", "early", "errors", "not_expired":
		return true
	default:
		return strings.HasPrefix(name, "rss_")
	}
}

// medians of the runs, name by name.
func medians(runs []metrics) metrics {
	out := make(metrics)
	for _, run := range runs {
		for name := range run {
			if _, known := out[name]; known {
				continue
			}
			var vs []float64
			for _, r := range runs {
				if v, ok := r[name]; ok {
					vs = append(vs, v)
				}
			}
			slices.Sort(vs)
			out[name] = (vs[(len(vs)-1)/2] + vs[len(vs)/2]) / 2
			if countsAll(name) {
				out[name] = vs[len(vs)-1]
			}
		}
	}
	return out
}

// of gives a median.
func (r *Result) of(scenario, subject, metric string) (float64, bool) {
	for _, sc := range r.Scenarios {
		if sc.Name != scenario {
			continue
		}
		for _, s := range sc.Subjects {
			if s.Name == subject && s.Error == "" {
				v, ok := s.Median[metric]
				return v, ok
			}
		}
	}
	return 0, false
}

// put takes a scenario in, in place of an earlier one of its name.
func (r *Result) put(s Scenario) {
	at := slices.IndexFunc(r.Scenarios, func(o Scenario) bool { return o.Name == s.Name })
	if at < 0 {
		r.Scenarios = append(r.Scenarios, s)
	} else {
		r.Scenarios[at] = s
	}
	order := scenarioNames()
	slices.SortStableFunc(r.Scenarios, func(a, b Scenario) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
}

// fails names what did not run to its end.
func (r *Result) fails() error {
	var errs []error
	for _, sc := range r.Scenarios {
		for _, s := range sc.Subjects {
			if s.Error != "" {
				errs = append(errs, fmt.Errorf("%s %s: %s", sc.Name, s.Name, s.Error))
			}
		}
	}
	return errors.Join(errs...)
}

const (
	jsonFile     = "benchmarks.json"
	markdownFile = "benchmarks.md"
)

// readResult reads what an earlier run left in a directory; nothing is an empty one.
func readResult(dir string) (Result, error) {
	var r Result
	body, err := os.ReadFile(filepath.Join(dir, jsonFile))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		return r, fmt.Errorf("reading earlier results: %w", err)
	}
	return r, nil
}

// write puts both files into a directory.
func (r *Result) write(dir string) error {
	body, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, jsonFile), append(body, '\n'), 0o644)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, markdownFile), []byte(r.markdown()), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}
