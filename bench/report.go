package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// markdown is the report that people read.
func (r *Result) markdown() string {
	var w strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&w, format, args...) }
	p("# Benchmarks\n\n")
	p("Written by `make bench`; the same figures are in `%s`. Everything ran on one machine, servers, subjects and measuring together:\n", jsonFile)
	p("%s, %d cores, %.0f GiB, %s, %s, on %s. ", r.Machine.CPU, r.Machine.Cores, float64(r.Machine.MemoryMiB)/1024, r.Machine.System, r.Machine.Go, r.At.Format("2 January 2006"))
	p("Figures are medians (runs, alternating: %d); of what was lost, doubled, early or wrong, and of memory, the worst run. ", r.Runs)
	p("Absolute figures move from machine to machine: compare ratios.\n\n")
	if !r.Full {
		p("**These are not the full sizes**: the names of the ratios keep theirs, and the figures mean little.\n\n")
	}
	var parts []string
	for _, m := range []map[string]string{r.Versions, r.Settings} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			parts = append(parts, name+": "+m[name])
		}
	}
	p("%s.\n\n", strings.Join(parts, "; "))
	r.markdownTargets(p)
	r.markdownRatios(p)
	for _, sc := range r.Scenarios {
		sc.markdown(p)
	}
	p("%s", howMeasured)
	return w.String()
}

func (r *Result) markdownTargets(p func(string, ...any)) {
	short := 0
	for _, t := range r.Targets {
		if !t.Reached {
			short++
		}
	}
	p("## Targets\n\n")
	if short > 0 {
		p("%d of %d fall short.\n\n", short, len(r.Targets))
	}
	p("| what | figure | target | |\n|---|---:|---:|---|\n")
	for _, t := range r.Targets {
		verdict := "reached"
		if !t.Reached {
			verdict = "**falls short**"
		}
		p("| %s | %s | %s %s | %s |\n", t.Name, figure(t.Value), t.Op, figure(t.Bound), verdict)
	}
	p("\n")
}

func (r *Result) markdownRatios(p func(string, ...any)) {
	p("## Ratios\n\n`cliff_…` is the spike: `lapse` is publisher and expirer, which do what the rivals do; `cliff_all_…` is the whole fleet.\n\n")
	p("| ratio | |\n|---|---:|\n")
	for _, x := range ratios() {
		if v, ok := r.Ratios[x.name]; ok {
			p("| %s | %s |\n", x.name, figure(v))
		}
	}
	p("\n")
}

// shown are the columns of a scenario's table, in this order; the others are in the JSON.
func shown() []string {
	return []string{
		"coupons", "per_s", "took_s", "p50_ms", "p99_ms", "p999_ms", "event_p99_ms", "pair_p50_ms", "pair_p99_ms", "pairs", "max_rate_per_s",
		"cpu_percent", "statements_per_s", "named_statements_per_s", "pending", "rows", "table_mib", "errors", "lost", "doubled", "early", "not_expired",
		"rss_publisher_mib", "rss_expirer_mib", "rss_notifier_mib",
	}
}

func (s *Scenario) markdown(p func(string, ...any)) {
	p("## %s\n\n%s (size %d, commit %s, %s).\n\n", s.Name, sentence(s.What), s.Size, s.Commit, s.At.Format("2006-01-02 15:04 UTC"))
	var columns []string
	for _, name := range shown() {
		if slices.ContainsFunc(s.Subjects, func(x Subject) bool { _, ok := x.Median[name]; return ok }) {
			columns = append(columns, name)
		}
	}
	p("| |%s\n|---|%s\n", cells(columns, func(c string) string { return strings.ReplaceAll(c, "_", " ") }), strings.Repeat("---:|", len(columns)))
	for _, x := range s.Subjects {
		p("| %s |%s\n", x.Name, cells(columns, func(c string) string {
			v, ok := x.Median[c]
			if !ok {
				return ""
			}
			return figure(v)
		}))
	}
	p("\n")
	for _, x := range s.Subjects {
		p("- `%s`: %s", x.Name, x.What)
		if x.Error != "" {
			p(" — **did not run to its end**: %s", strings.ReplaceAll(x.Error, "\n", " "))
		}
		p("\n")
	}
	p("\n")
}

func cells(columns []string, cell func(string) string) string {
	var w strings.Builder
	for _, c := range columns {
		w.WriteString(" " + cell(c) + " |")
	}
	return w.String()
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

const howMeasured = `## How it is measured

- The fleet is the real binaries as processes, with their default settings, a database and a prefix of their own on the stack. Coupons are
  planted as rows (with the history of their grants), their triggers are sent into the ladder as the relay sends them, and both are done before
  the instant in which they end.
- A spike's rate is the number of coupons divided by the time from that instant to the last ` + "`coupon.expired`" + ` event. The events are heard by a
  consumer of its own on a transient queue; beside it they go into the durable queues of the ledger and the notices, and of the rivals into
  one durable queue. ` + "`lost`" + ` are coupons without an event when nothing had come for 15 s, ` + "`doubled`" + ` further events or transitions of the same coupon, and
  ` + "`early`" + ` transitions before the end, by the database's clock. p50 and p99 are of the transitions' lateness, ` + "`event_p99_ms`" + ` of the events'.
- Rivals use the same table with the same indexes on the same servers, and do what the fleet does: in one transaction the state, a history row
  and an outbox row of the same event; a relay publishes the outbox with confirms, 1 000 at a time. They are measured in the measuring process.
  What a rival loses when it is killed is not measured here: the ZSET poller loses what it has removed and not yet done, the queue
  with TTLs what the broker's classic queues lose in dead-lettering; asynq and cron do their work again.
- The ZSET poller and the queue with TTLs take a tenth and a fifth of the coupons of a full spike, because they would drain for minutes:
  their rate does not depend on how many there are.
- ` + "`bare_broker`" + ` and ` + "`bare_database`" + ` have the machine to themselves; the serial limit is 1/(1/broker + 1/database), what is possible
  if they took turns on the same cores.
- What is planted in bulk stays out of the binary log. Between runs tables and queues are emptied and the workers are started anew.
`
