package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The drawings' units: small, so that text is readable where a telephone shows them narrow.
const (
	plotWidth, plotHeight                            = 420.0, 260.0
	marginLeft, marginRight, marginTop, marginBottom = 52.0, 14.0, 12.0, 40.0
)

// plot is lines over two axes.
type plot struct {
	ID, Title, Note string
	X, Y            string // what the axes show
	XTicks, YTicks  []tick
	Lines           []line
	Left, Right     float64 // of the field
	Top, Bottom     float64
}

type tick struct {
	At    string
	Label string
}

// line of a mechanism. Mark is where something happened on it: empty points are not drawn.
type line struct {
	Name   string
	Points string
	MarkX  string
	MarkY  string
}

// series is what a line is drawn from.
type series struct {
	name string
	x, y []float64
	mark int // index of the point to mark; -1: none
}

// drawn puts the series into a field whose axes end at xMost and yMost.
func drawn(p plot, all []series, xMost, yMost float64, xLabel, yLabel func(float64) string) plot {
	p.Left, p.Right, p.Top, p.Bottom = marginLeft, plotWidth-marginRight, marginTop, plotHeight-marginBottom
	x := func(v float64) float64 { return p.Left + (p.Right-p.Left)*min(v/xMost, 1.02) } // what is beyond is cut off just outside
	y := func(v float64) float64 { return p.Bottom - (p.Bottom-p.Top)*v/yMost }
	for _, v := range ticks(xMost) {
		p.XTicks = append(p.XTicks, tick{at(x(v)), xLabel(v)})
	}
	for _, v := range ticks(yMost) {
		p.YTicks = append(p.YTicks, tick{at(y(v)), yLabel(v)})
	}
	for _, s := range all {
		l := line{Name: s.name}
		var points []string
		for i := range s.x {
			points = append(points, at(x(s.x[i]))+","+at(y(s.y[i])))
		}
		l.Points = strings.Join(points, " ")
		if s.mark >= 0 && s.mark < len(s.x) {
			l.MarkX, l.MarkY = at(x(s.x[s.mark])), at(y(s.y[s.mark]))
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}

func at(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// ceiling is the least of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten that is not below v.
func ceiling(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8} {
		if v <= step*power*(1+1e-9) {
			return step * power
		}
	}
	return 10 * power
}

// ticks from 0 to most, which is a ceiling: four to six of them.
func ticks(most float64) []float64 {
	var parts int
	switch lead := most / math.Pow(10, math.Floor(math.Log10(most)+1e-9)); {
	case lead < 1.25, lead > 4.5 && lead < 5.5:
		parts = 5
	case lead < 1.75, lead > 2.5 && lead < 3.5, lead > 5.5 && lead < 7:
		parts = 3
	default:
		parts = 4
	}
	var out []float64
	for i := range parts + 1 {
		out = append(out, most*float64(i)/float64(parts))
	}
	return out
}

func number(v float64) string { return strconv.FormatFloat(Round(v, 3), 'f', -1, 64) }

// cumulated is the share of coupons, in percent, by their lateness in milliseconds.
func cumulated(r *Result, of func(*Mechanism) *Part) (all []series, most float64) {
	for i := range r.Mechanisms {
		p := of(&r.Mechanisms[i])
		if len(p.CurveMS) == 0 {
			continue
		}
		s := series{name: r.Mechanisms[i].Name, mark: -1}
		for j, ms := range p.CurveMS {
			s.x, s.y = append(s.x, ms), append(s.y, float64(j))
		}
		all = append(all, s)
		most = max(most, p.CurveMS[len(p.CurveMS)-2])
	}
	return all, most
}

// drained is the coupons that events have told of, by the seconds since they were due.
func drained(r *Result, of func(*Mechanism) *Part, kill bool) (all []series, most float64) {
	for i := range r.Mechanisms {
		m := &r.Mechanisms[i]
		p := of(m)
		if len(p.CurveMS) == 0 {
			continue
		}
		s := series{name: m.Name, x: []float64{0}, y: []float64{0}, mark: -1}
		for j, ms := range p.CurveMS {
			s.x, s.y = append(s.x, ms/1000), append(s.y, float64(p.Coupons*j)/float64(curvePoints-1))
			if kill && s.mark < 0 && ms/1000 >= m.Kill.AtS {
				s.mark = max(0, len(s.x)-2)
			}
		}
		all = append(all, s)
		most = max(most, s.x[len(s.x)-1])
	}
	return all, most
}

func plots(r *Result) []plot {
	percent := func(v float64) string { return number(v) + " %" }
	coupons := func(v float64) string { return grouped(int(v)) }
	var out []plot
	if all, most := cumulated(r, func(m *Mechanism) *Part { return &m.Steady }); len(all) > 0 {
		out = append(out, drawn(plot{
			ID: "steady", Title: "Lateness, second by second", X: "milliseconds after the end", Y: "Share of the events heard",
			Note: "Further left is more punctual. The last hundredth is in the table.",
		}, all, ceiling(most), 100, number, percent))
	}
	for _, d := range []struct {
		plot
		of   func(*Mechanism) *Part
		kill bool
	}{
		{
			plot{ID: "spike", Title: "A spike, drained", Note: "All end in the instant 0. Steeper is faster."},
			func(m *Mechanism) *Part { return &m.Spike }, false,
		},
		{
			plot{ID: "kill", Title: "The same with a kill in the middle", Note: "Publisher and expirer are killed (-9) at the dot, and started again at once."},
			func(m *Mechanism) *Part { return &m.Kill.Part }, true,
		},
	} {
		all, most := drained(r, d.of, d.kill)
		if len(all) == 0 {
			continue
		}
		d.X, d.Y = "seconds after the end", "Events heard"
		out = append(out, drawn(d.plot, all, ceiling(most), ceiling(float64(max(1, r.Coupons))), number, coupons))
	}
	return out
}

// bars are one for each mechanism, made of a part for each party.
type bars struct {
	ID, Title, Note, X string
	XTicks             []tick
	Bars               []bar
	Height             float64
	Left, Right        float64
	Bottom             float64
}

type bar struct {
	Name, Total string
	TextY, Y, H string
	EndX        string
	Pieces      []piece
}

type piece struct{ Party, X, W, Title string }

func barsOf(r *Result, b bars, value func(Cost) float64) (bars, bool) {
	const each, thick, bottom = 36.0, 22.0, 40.0
	b.Left, b.Right = 58, plotWidth-52
	b.Bottom = each*float64(len(r.Mechanisms)) + 8
	b.Height = b.Bottom + bottom
	most := 0.0
	sums := make([]float64, len(r.Mechanisms))
	for i := range r.Mechanisms {
		for _, c := range r.Mechanisms[i].Costs {
			sums[i] += max(0, value(c))
		}
		most = max(most, sums[i])
	}
	if most == 0 {
		return b, false
	}
	most = ceiling(most)
	scale := (b.Right - b.Left) / most
	for _, v := range ticks(most) {
		b.XTicks = append(b.XTicks, tick{at(b.Left + v*scale), number(v)})
	}
	for i := range r.Mechanisms {
		m := &r.Mechanisms[i]
		top := 8 + each*float64(i)
		row := bar{Name: m.Name, Total: decimal(sums[i]), Y: at(top), H: at(thick), TextY: at(top + thick*0.7)}
		x := b.Left
		for _, party := range Parties() {
			c, ok := m.Costs[party]
			if !ok || value(c) <= 0 {
				continue
			}
			w := value(c) * scale
			row.Pieces = append(row.Pieces, piece{party, at(x), at(w), fmt.Sprintf("%s, %s: %s", m.Name, party, decimal(value(c)))})
			x += w
		}
		row.EndX = at(x + 5)
		b.Bars = append(b.Bars, row)
	}
	return b, true
}

func allBars(r *Result) []bars {
	var out []bars
	for _, b := range []struct {
		bars
		value func(Cost) float64
	}{
		{bars{ID: "cpu", Title: "CPU", X: "seconds for 100 000 coupons", Note: "From the grant to the last event, without the waiting between them."}, Cost.CPU},
		{
			bars{ID: "idle", Title: "While they wait", X: "cores busy", Note: "Nothing is due, and everything is where it waits."},
			func(c Cost) float64 { return c.WaitCores },
		},
		{
			bars{ID: "memory", Title: "Memory", X: "MiB above what was resident before the first grant, at its peak", Note: "The database's grows with its buffer pool, whatever the mechanism."},
			func(c Cost) float64 { return c.GrownMiB },
		},
	} {
		if drawn, ok := barsOf(r, b.bars, b.value); ok {
			out = append(out, drawn)
		}
	}
	return out
}
