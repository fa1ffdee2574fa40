package watch

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Rule is a rule of a file of rules: an alert, or a recording.
type Rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// ReadRules reads a file of rules.
func ReadRules(file string) ([]Rule, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	var doc struct {
		Groups []struct {
			Rules []Rule `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("rules %s: %w", file, err)
	}
	var rules []Rule
	for _, g := range doc.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules, nil
}

// Query is a query of a dashboard, and the panel that it is for.
type Query struct{ Panel, Expr string }

// ReadDashboard reads the queries of a Grafana dashboard; its own variables stand for a minute.
func ReadDashboard(file string) ([]Query, error) {
	body, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("dashboard: %w", err)
	}
	var doc struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", file, err)
	}
	var out []Query
	for _, p := range doc.Panels {
		for _, t := range p.Targets {
			out = append(out, Query{p.Title, strings.ReplaceAll(t.Expr, "$__rate_interval", "1m")})
		}
	}
	return out, nil
}

// selector is a series in an expression: a name of ours or RabbitMQ's, and what it selects.
var selector = regexp.MustCompile(`\b(?:lapse|rabbitmq)[a-zA-Z0-9_:]*(?:\{(?:[^{}"]|"[^"]*")*\})?`)

// Selectors gives what an expression reads, each once: without ranges, functions and thresholds. An alert fires by what those
// make of it; that there is data behind it shows in these.
func Selectors(expr string) []string {
	found := selector.FindAllString(expr, -1)
	slices.Sort(found)
	return slices.Compact(found)
}
