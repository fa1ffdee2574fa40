package watch

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// Metric is a family that a worker exposes.
type Metric struct {
	Name, Type, Help string
	Labels           []string // without le
	Workers          []string // that have it
}

// Scrape reads what a worker exposes at host:port, of the families whose names begin with lapse_.
func Scrape(ctx context.Context, address string) ([]Metric, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: askLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("scraping: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("scraping: %w", err)
	}
	return parse(string(body)), nil
}

var label = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="`)

// parse reads the text format as client_golang writes it: each family's HELP, TYPE and series follow one another.
func parse(text string) []Metric {
	var out []Metric
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if help, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, says, _ := strings.Cut(help, " ")
			out = append(out, Metric{Name: name, Help: says})
			continue
		}
		if len(out) == 0 {
			continue
		}
		m := &out[len(out)-1]
		if typ, ok := strings.CutPrefix(line, "# TYPE "+m.Name+" "); ok {
			m.Type = typ
			continue
		}
		for _, found := range label.FindAllStringSubmatch(line, -1) {
			if found[1] != "le" && !slices.Contains(m.Labels, found[1]) {
				m.Labels = append(m.Labels, found[1])
			}
		}
	}
	return slices.DeleteFunc(out, func(m Metric) bool { return !strings.HasPrefix(m.Name, "lapse_") })
}

// Merge puts together what several workers expose, sorted by name.
func Merge(byWorker map[string][]Metric) []Metric {
	all := make(map[string]*Metric)
	for worker, metrics := range byWorker {
		for _, m := range metrics {
			at := all[m.Name]
			if at == nil {
				at = &Metric{Name: m.Name, Type: m.Type, Help: m.Help}
				all[m.Name] = at
			}
			at.Workers = append(at.Workers, worker)
			at.Labels = append(at.Labels, m.Labels...)
		}
	}
	var out []Metric
	for _, m := range all {
		slices.Sort(m.Workers)
		slices.Sort(m.Labels)
		m.Labels = slices.Compact(m.Labels)
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

const metricsHead = `# Metrics

Every worker answers ` + "`/metrics`" + ` on its admin port (9101 publisher, 9102 expirer, 9103 notifier). This table is made from what the three real
workers expose (` + "`lapsectl verify deploy --only scrape`" + ` holds it against them); beside it stand the usual ` + "`go_*` and `process_*`" + `. Times
are seconds. No label holds an id of a user or coupon. What is read from the database (outbox, forecast, locks, heartbeat) comes from
every expirer alike: ask with ` + "`max()`" + `. Counters are of one process: ask with ` + "`sum(rate())`" + `. What the mechanisms ` + "`zset` and `wheel`" + ` add
is in [mechanisms.md](mechanisms.md).

What to look at is in the dashboard (` + "`configs/grafana/dashboards/lapse.json`" + `), what to be woken by in the [runbook](runbook/README.md).

| name | type | labels | of | says |
|---|---|---|---|---|
`

// Document writes the metrics as docs/metrics.md has them.
func Document(ms []Metric) string {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, m := range ms {
		labels := "–"
		if len(m.Labels) > 0 {
			labels = strings.Join(m.Labels, ", ")
		}
		_, _ = fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, labels, strings.Join(m.Workers, ", "), m.Help)
	}
	return b.String()
}
