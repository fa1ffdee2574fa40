package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"go.yaml.in/yaml/v3"
)

// Options say what to watch.
type Options struct {
	Configs  string              // the directory of prometheus.yml and rules/
	Dir      string              // for data and logs; of our own
	Targets  map[string][]string // host:port by job; a job without any is left out
	VHost    string              // that RabbitMQ is asked about; empty: as shipped
	Prefix   string              // of the queues that are watched; empty: all of the vhost
	Interval time.Duration       // of scraping and of evaluating
	// Hurry makes alerts fire soon, so that they can be provoked: a condition must hold for as long, instead of what the rules say, and
	// what they look back over for up to ten minutes is cut to ten times that. 0: all is as shipped.
	Hurry time.Duration
}

// configure writes configuration and rules: those that are shipped, but for where the targets are and how long things take.
func (o Options) configure() (string, error) {
	var doc map[string]any
	if err := readYAML(filepath.Join(o.Configs, "prometheus.yml"), &doc); err != nil {
		return "", err
	}
	every := o.Interval.String()
	doc["global"] = map[string]any{"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
	delete(doc, "alerting")
	jobs, _ := doc["scrape_configs"].([]any)
	var watched []any
	for _, j := range jobs {
		job, ok := j.(map[string]any)
		if !ok {
			return "", errors.New("prometheus.yml: scrape_configs: must be a list of maps")
		}
		targets := o.Targets[fmt.Sprint(job["job_name"])]
		if len(targets) == 0 {
			continue
		}
		delete(job, "dns_sd_configs")
		job["static_configs"] = []any{map[string]any{"targets": targets}}
		if params, ok := job["params"].(map[string]any); ok && o.VHost != "" {
			params["vhost"] = []any{o.VHost}
		}
		if o.Prefix != "" {
			job["metric_relabel_configs"] = []any{map[string]any{
				"source_labels": []any{"queue"}, "regex": "|" + regexp.QuoteMeta(o.Prefix) + "[.].*", "action": "keep",
			}}
		}
		watched = append(watched, job)
	}
	doc["scrape_configs"] = watched
	files, err := filepath.Glob(filepath.Join(o.Configs, "rules", "*.yaml"))
	if err != nil || len(files) == 0 {
		return "", errors.Join(errors.New("no rules"), err)
	}
	var rules []any
	for i, file := range files {
		to := filepath.Join(o.Dir, fmt.Sprintf("rules-%d.yaml", i))
		if err := o.copyRules(file, to); err != nil {
			return "", err
		}
		rules = append(rules, to)
	}
	doc["rule_files"] = rules
	to := filepath.Join(o.Dir, "prometheus.yml")
	return to, writeYAML(to, doc)
}

var shortRange = regexp.MustCompile(`\[(?:[1-9]|10)m\]`)

// copyRules copies a file of rules, with Hurry.
func (o Options) copyRules(from, to string) error {
	var doc map[string]any
	if err := readYAML(from, &doc); err != nil {
		return err
	}
	groups, _ := doc["groups"].([]any)
	for _, g := range groups {
		group, _ := g.(map[string]any)
		rules, _ := group["rules"].([]any)
		for _, r := range rules {
			rule, ok := r.(map[string]any)
			if !ok || o.Hurry == 0 {
				continue
			}
			if rule["for"] != nil {
				rule["for"] = o.Hurry.String()
			}
			rule["expr"] = shortRange.ReplaceAllString(fmt.Sprint(rule["expr"]), "["+(10*o.Hurry).String()+"]")
		}
	}
	return writeYAML(to, doc)
}

func readYAML(file string, into any) error {
	body, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", filepath.Base(file), err)
	}
	return nil
}

func writeYAML(file string, doc any) error {
	body, err := yaml.Marshal(doc)
	if err == nil {
		err = os.WriteFile(file, body, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(file), err)
	}
	return nil
}
