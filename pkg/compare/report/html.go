package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed page.gohtml
var pages embed.FS

// page is what the template is given.
type page struct {
	*Result
	Verdict   string
	When      string
	Amiss     []string
	Sections  []section
	Plots     []plot
	Bars      []bars
	Parties   []string
	Words     []named
	Rows      []runRow
	W, H      float64
	FieldLeft float64
	FieldW    float64
}

type named struct {
	Name string
	Words
}

// runRow is one run in a line.
type runRow struct {
	Mechanism string
	Cells     []string
}

// HTML writes the page.
func HTML(w io.Writer, r *Result) error {
	t, err := template.New("page.gohtml").Funcs(template.FuncMap{"grouped": grouped, "sub": func(a, b float64) float64 { return a - b }}).ParseFS(pages, "page.gohtml")
	if err != nil {
		return fmt.Errorf("the report's page: %w", err)
	}
	p := page{
		Result: r, Verdict: "passed", When: r.Began.UTC().Format(time.DateOnly), Amiss: amiss(r), Sections: sections(r), Plots: plots(r),
		Bars: allBars(r), Parties: parties(r), W: plotWidth, H: plotHeight,
		FieldLeft: marginLeft, FieldW: plotWidth - marginLeft - marginRight,
	}
	if !r.Passed {
		p.Verdict = "failed"
	}
	for _, m := range r.Mechanisms {
		p.Words = append(p.Words, named{m.Name, WordsOf(m.Name)})
	}
	for _, run := range r.Runs {
		p.Rows = append(p.Rows, runRow{run.Mechanism, []string{
			fmt.Sprint(run.Round), fmt.Sprintf("%d / %d / %d", run.Early, run.Lost, run.Doubled), span(run.Steady.Late.P50), span(run.Steady.Late.P99),
			grouped(int(run.Spike.PerS)), span(run.Spike.Late.P99), grouped(run.Kill.Left), span(run.Kill.RecoveryS * 1000), grouped(int(run.AcceptPerS)),
		}})
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("the report's page: %w", err)
	}
	return nil
}

// parties that some mechanism has a cost of.
func parties(r *Result) []string {
	var out []string
	for _, party := range Parties() {
		for _, m := range r.Mechanisms {
			if _, ok := m.Costs[party]; ok {
				out = append(out, party)
				break
			}
		}
	}
	return out
}
