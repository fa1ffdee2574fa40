package report

import (
	"fmt"
	"strconv"
	"strings"
)

// section of the table: what was looked at, and a row for each figure.
type section struct {
	Title string
	Rows  []row
}

// row of figures, one for each mechanism.
type row struct {
	Label string
	Cells []string
}

// Absent stands for what was not measured.
const Absent = "–"

func sections(r *Result) []section {
	of := func(label string, cell func(m *Mechanism) string) row {
		w := row{Label: label}
		for i := range r.Mechanisms {
			w.Cells = append(w.Cells, cell(&r.Mechanisms[i]))
		}
		return w
	}
	count := func(label string, n func(m *Mechanism) int) row {
		return of(label, func(m *Mechanism) string { return grouped(n(m)) })
	}
	late := func(p func(m *Mechanism) *Part) []row {
		return []row{
			of("p50", func(m *Mechanism) string { return span(p(m).Late.P50) }),
			of("p99", func(m *Mechanism) string { return span(p(m).Late.P99) }),
			of("p99.9", func(m *Mechanism) string { return span(p(m).Late.P999) }),
			of("latest", func(m *Mechanism) string { return span(p(m).Late.Max) }),
		}
	}
	all := []section{
		{"What must be 0", []row{
			count("early", func(m *Mechanism) int { return m.Early }),
			count("lost", func(m *Mechanism) int { return m.Lost }),
			count("twice", func(m *Mechanism) int { return m.Doubled }),
		}},
		{
			fmt.Sprintf("%s coupons in each of %.0f seconds", grouped(perSecond(r.Steady, r.SteadyForS)), r.SteadyForS),
			late(func(m *Mechanism) *Part { return &m.Steady }),
		},
		{fmt.Sprintf("%s coupons in one instant", grouped(r.Coupons)), append([]row{
			of("coupons a second", func(m *Mechanism) string { return grouped(int(m.Spike.PerS)) }),
			of("to the last event", func(m *Mechanism) string { return span(m.Spike.TookS * 1000) }),
		}, late(func(m *Mechanism) *Part { return &m.Spike })...)},
		{"The same, publisher and expirer killed (-9) in the middle", []row{
			count("not told of by then", func(m *Mechanism) int { return m.Kill.Left }),
			of("nothing is late after", func(m *Mechanism) string { return span(m.Kill.RecoveryS * 1000) }),
			of("found by the sweep", func(m *Mechanism) string {
				if m.Name == "sweep" {
					return "all"
				}
				return grouped(m.Kill.Swept)
			}),
			count("events heard again", func(m *Mechanism) int { return m.Again }),
		}},
		{"Granted and waiting", []row{of("coupons a second", func(m *Mechanism) string { return grouped(int(m.AcceptPerS)) })}},
	}
	return append(all, costs(r)...)
}

func costs(r *Result) []section {
	of := func(title string, cell func(c Cost) string, sum bool, value func(c Cost) float64) section {
		s := section{Title: title}
		for _, party := range Parties() {
			w, there := row{Label: party}, false
			for i := range r.Mechanisms {
				c, ok := r.Mechanisms[i].Costs[party]
				there = there || ok
				if ok {
					w.Cells = append(w.Cells, cell(c))
				} else {
					w.Cells = append(w.Cells, Absent)
				}
			}
			if there {
				s.Rows = append(s.Rows, w)
			}
		}
		if !sum || len(s.Rows) == 0 {
			return s
		}
		total := row{Label: "together"}
		for i := range r.Mechanisms {
			v := 0.0
			for _, c := range r.Mechanisms[i].Costs {
				v += value(c)
			}
			total.Cells = append(total.Cells, decimal(v))
		}
		s.Rows = append(s.Rows, total)
		return s
	}
	accept, due, wait := func(c Cost) float64 { return c.AcceptCPU }, func(c Cost) float64 { return c.DueCPU }, func(c Cost) float64 { return c.WaitCores }
	show := func(f func(Cost) float64) func(Cost) string { return func(c Cost) string { return decimal(f(c)) } }
	var shown []section
	for _, s := range []section{
		of("CPU seconds for 100 000 coupons, granted until they wait", show(accept), true, accept),
		of("CPU seconds for 100 000 coupons, due until all is done", show(due), true, due),
		of("Cores busy while they wait", show(wait), true, wait),
		of("Memory at its peak, MiB (grown since the first grant)", func(c Cost) string {
			return fmt.Sprintf("%.0f (+%.0f)", c.PeakMiB, c.GrownMiB)
		}, false, nil),
	} {
		if len(s.Rows) > 0 {
			shown = append(shown, s)
		}
	}
	return shown
}

// Table for a terminal.
func Table(r *Result) string {
	const indent = "  "
	all := sections(r)
	first, column := 0, 0
	for _, s := range all {
		for _, w := range s.Rows {
			first = max(first, width(indent+w.Label))
			for _, c := range w.Cells {
				column = max(column, width(c))
			}
		}
	}
	for _, m := range r.Mechanisms {
		column = max(column, width(m.Name))
	}
	var b strings.Builder
	line := func(label string, cells []string) {
		text := label + strings.Repeat(" ", max(0, first-width(label)))
		for _, c := range cells {
			text += strings.Repeat(" ", column+3-width(c)) + c
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	var names []string
	for _, m := range r.Mechanisms {
		names = append(names, m.Name)
	}
	line("", names)
	for _, s := range all {
		b.WriteString(s.Title + "\n")
		for _, w := range s.Rows {
			line(indent+w.Label, w.Cells)
		}
	}
	b.WriteString("\n" + Verdict(r) + "\n")
	return b.String()
}

// Verdict in one line, and a line for each thing that is amiss.
func Verdict(r *Result) string {
	word := "PASS"
	if !r.Passed {
		word = "FAIL"
	}
	text := fmt.Sprintf("%s: medians of %d rounds; %s; seed %d; commit %s", word, r.Rounds, servers(r), r.Seed, r.Commit)
	for _, a := range amiss(r) {
		text += "\n  " + a
	}
	return text
}

func servers(r *Result) string {
	list := []string{r.Servers.Broker, r.Servers.Database}
	if r.Servers.Redis != "" {
		list = append(list, r.Servers.Redis)
	}
	return strings.Join(list, ", ")
}

func amiss(r *Result) []string {
	all := append([]string{}, r.Errors...)
	for _, run := range r.Runs {
		for _, a := range run.Amiss {
			all = append(all, fmt.Sprintf("%s, round %d: %s", run.Mechanism, run.Round, a))
		}
	}
	return all
}

func perSecond(n int, seconds float64) int {
	if seconds == 0 {
		return n
	}
	return int(float64(n) / seconds)
}

// span of time, given in milliseconds.
func span(ms float64) string {
	const second = 1000
	if ms < second {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/second)
}

func decimal(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// grouped writes 10000 as 10 000.
func grouped(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + " " + text[at:]
	}
	return text
}

func width(s string) int { return len([]rune(s)) }
