package report

import (
	"slices"
	"time"
)

// Result is a whole comparison. docs/compare.md says what each field of the JSON means.
type Result struct {
	Began      time.Time   `json:"began"`
	TookS      float64     `json:"took_s"`
	Commit     string      `json:"commit"` // that the binaries were built from
	Seed       uint64      `json:"seed"`
	Coupons    int         `json:"coupons"` // that end in one instant
	Steady     int         `json:"steady"`  // that end one after the other, before that
	SteadyForS float64     `json:"steady_for_s"`
	Rounds     int         `json:"rounds"`
	Machine    Machine     `json:"machine"`
	Servers    Servers     `json:"servers"`
	Passed     bool        `json:"passed"` // everything ran, and nothing is amiss
	Errors     []string    `json:"errors"` // runs that did not come to their end, and why
	Mechanisms []Mechanism `json:"mechanisms"`
	Runs       []Run       `json:"runs"`
}

// Machine is what everything ran on, servers and workers together.
type Machine struct {
	CPU       string `json:"cpu"`
	Cores     int    `json:"cores"`
	MemoryMiB int    `json:"memory_mib"`
	System    string `json:"system"`
}

// Servers is what they say they are. Redis is empty if no mechanism needed one.
type Servers struct {
	Broker   string `json:"broker"`
	Database string `json:"database"`
	Redis    string `json:"redis,omitempty"`
}

// Tally is what must be zero, but for Again and Swept.
type Tally struct {
	Early   int `json:"early"`   // unusable, or called expired, before the end
	Lost    int `json:"lost"`    // not expired, or no event told of it
	Doubled int `json:"doubled"` // more than one transition, or events with different ids
	Again   int `json:"again"`   // events that came more than once under one id: allowed after a kill
}

// Lateness from the due instant, in milliseconds.
type Lateness struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// Part of a run: coupons that ended together, or one after the other.
type Part struct {
	Coupons int       `json:"coupons"`
	Late    Lateness  `json:"late_ms"` // until the transition is committed, by the database's clock
	TookS   float64   `json:"took_s"`  // from the first due instant to the last event
	PerS    float64   `json:"per_s"`
	Swept   int       `json:"swept"`    // found by the sweep, not by the mechanism
	CurveMS []float64 `json:"curve_ms"` // of the events' lateness: the quantiles 0, 0.01 … 1
}

// Kill is what became of a spike in whose middle the workers were killed.
type Kill struct {
	Part
	AtS       float64 `json:"at_s"`       // after the due instant
	Left      int     `json:"left"`       // coupons that no event had told of by then
	RecoveryS float64 `json:"recovery_s"` // from the kill to the last event
}

// Cost of one party: all workers together, or a server. Stages are of the spike, for 100 000 coupons.
type Cost struct {
	AcceptCPU  float64 `json:"accept_cpu_s"` // seconds of CPU, from the first grant until everything is where it waits
	DueCPU     float64 `json:"due_cpu_s"`    // from the due instant until everything is done
	WaitCores  float64 `json:"wait_cores"`   // cores that are busy while everything waits
	WaitingMiB float64 `json:"waiting_mib"`  // memory that came with what waits
	PeakMiB    float64 `json:"peak_mib"`     // the most that was resident, as it was
	GrownMiB   float64 `json:"grown_mib"`    // the most above what it was before the first grant
}

// CPU is what a party needs for 100 000 coupons, but for the waiting.
func (c Cost) CPU() float64 { return c.AcceptCPU + c.DueCPU }

// Run is one mechanism in one round.
type Run struct {
	Round     int    `json:"round"`
	Mechanism string `json:"mechanism"`
	Tally
	AcceptPerS float64         `json:"accept_per_s"` // coupons of the spike, from the first grant until all are where they wait
	Steady     Part            `json:"steady"`
	Spike      Part            `json:"spike"`
	Kill       Kill            `json:"kill"`
	Costs      map[string]Cost `json:"costs"` // by party; what could not be measured is not there
	Amiss      []string        `json:"amiss"` // what the audit says
}

// Mechanism is what all rounds of one come to: sums of what must be zero, medians of everything else.
type Mechanism struct {
	Name   string `json:"name"`
	Rounds int    `json:"rounds"` // that came to their end
	Tally
	AcceptPerS float64         `json:"accept_per_s"`
	Steady     Part            `json:"steady"`
	Spike      Part            `json:"spike"`
	Kill       Kill            `json:"kill"`
	Costs      map[string]Cost `json:"costs"`
}

// Parties whose cost is counted.
func Parties() []string { return []string{"workers", "broker", "redis", "database"} }

// Names of the mechanisms, in the order of a report.
func Names() []string { return []string{"ladder", "zset", "wheel", "sweep"} }

// Settle makes the medians of the runs, and the verdict.
func (r *Result) Settle() {
	r.Mechanisms, r.Passed = []Mechanism{}, len(r.Errors) == 0 && len(r.Runs) > 0
	for _, name := range Names() {
		var runs []Run
		for _, run := range r.Runs {
			if run.Mechanism == name {
				runs = append(runs, run)
			}
		}
		if len(runs) > 0 {
			r.Mechanisms = append(r.Mechanisms, settle(name, runs))
		}
	}
	for _, run := range r.Runs {
		r.Passed = r.Passed && len(run.Amiss) == 0 && run.Early+run.Lost+run.Doubled == 0
	}
}

func settle(name string, runs []Run) Mechanism {
	m := Mechanism{Name: name, Rounds: len(runs), Costs: make(map[string]Cost)}
	for _, run := range runs {
		m.Early += run.Early
		m.Lost += run.Lost
		m.Doubled += run.Doubled
		m.Again += run.Again
	}
	m.AcceptPerS = over(runs, func(r *Run) float64 { return r.AcceptPerS })
	m.Steady = part(runs, func(r *Run) *Part { return &r.Steady })
	m.Spike = part(runs, func(r *Run) *Part { return &r.Spike })
	m.Kill.Part = part(runs, func(r *Run) *Part { return &r.Kill.Part })
	m.Kill.AtS = over(runs, func(r *Run) float64 { return r.Kill.AtS })
	m.Kill.Left = int(over(runs, func(r *Run) float64 { return float64(r.Kill.Left) }))
	m.Kill.RecoveryS = over(runs, func(r *Run) float64 { return r.Kill.RecoveryS })
	for _, party := range Parties() {
		var costs []Cost
		for i := range runs {
			if c, ok := runs[i].Costs[party]; ok {
				costs = append(costs, c)
			}
		}
		if len(costs) == 0 {
			continue
		}
		m.Costs[party] = Cost{
			AcceptCPU:  over(costs, func(c *Cost) float64 { return c.AcceptCPU }),
			DueCPU:     over(costs, func(c *Cost) float64 { return c.DueCPU }),
			WaitCores:  over(costs, func(c *Cost) float64 { return c.WaitCores }),
			WaitingMiB: over(costs, func(c *Cost) float64 { return c.WaitingMiB }),
			PeakMiB:    over(costs, func(c *Cost) float64 { return c.PeakMiB }),
			GrownMiB:   over(costs, func(c *Cost) float64 { return c.GrownMiB }),
		}
	}
	return m
}

// part is the median of the parts, each figure and each point of the curve by itself; what the sweep found is a sum.
func part(runs []Run, of func(*Run) *Part) Part {
	figure := func(f func(*Part) float64) float64 { return over(runs, func(r *Run) float64 { return f(of(r)) }) }
	p := Part{
		Coupons: of(&runs[0]).Coupons,
		TookS:   figure(func(p *Part) float64 { return p.TookS }),
		PerS:    figure(func(p *Part) float64 { return p.PerS }),
		Late: Lateness{
			P50:  figure(func(p *Part) float64 { return p.Late.P50 }),
			P99:  figure(func(p *Part) float64 { return p.Late.P99 }),
			P999: figure(func(p *Part) float64 { return p.Late.P999 }),
			Max:  figure(func(p *Part) float64 { return p.Late.Max }),
		},
		CurveMS: []float64{},
	}
	for i := range runs {
		p.Swept += of(&runs[i]).Swept
	}
	if slices.ContainsFunc(runs, func(r Run) bool { return len(of(&r).CurveMS) != curvePoints }) {
		return p // one of them heard nothing
	}
	for i := range curvePoints {
		p.CurveMS = append(p.CurveMS, figure(func(p *Part) float64 { return p.CurveMS[i] }))
	}
	return p
}

func over[T any](all []T, of func(*T) float64) float64 {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	return Median(values)
}
