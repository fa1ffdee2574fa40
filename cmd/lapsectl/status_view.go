package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// statusJSON is the state of an installation as --json prints it.
type statusJSON struct {
	at time.Time

	Now            string          `json:"now"` // of the database
	Installation   string          `json:"installation"`
	Mechanism      string          `json:"mechanism"`
	Healthy        bool            `json:"healthy"`
	Attention      []string        `json:"attention"` // what needs it, for a person
	Fleet          []podJSON       `json:"fleet"`
	Broker         brokerJSON      `json:"broker"`
	Rates          ratesJSON       `json:"rates_per_second"` // over fifteen seconds
	DrainPerSecond float64         `json:"drain_per_second"` // what the fleet can do; 0: not known yet
	Stages         []stageJSON     `json:"stages"`           // over fifteen seconds
	Bottleneck     *bottleneckJSON `json:"bottleneck"`
	Lateness       latenessJSON    `json:"lateness"` // over a minute
	Overdue        overdueJSON     `json:"overdue"`
	Outbox         []laneJSON      `json:"outbox"`
	ParkedRows     int64           `json:"outbox_parked"`
	Locks          locksJSON       `json:"locks"`
	Sweep          sweepStateJSON  `json:"sweep"`
	Planner        plannerJSON     `json:"planner"`
	Clock          clocksJSON      `json:"clock"`
	Paused         []pauseJSON     `json:"paused"` // by operators
	Limits         []string        `json:"limits_exceeded"`
}

type podJSON struct {
	Pod      string `json:"pod"`
	Role     string `json:"role"`
	Version  string `json:"version"`
	Started  string `json:"started_at"`
	SilentMS int64  `json:"silent_ms"`
	Alive    bool   `json:"alive"`
}

type brokerJSON struct {
	Reachable bool             `json:"reachable"`
	Error     string           `json:"error,omitempty"`
	Waiting   int              `json:"waiting"` // in the ladder
	Missing   int              `json:"missing"` // queues
	Queues    []queueCountJSON `json:"queues"`
}

type queueCountJSON struct {
	Role     string `json:"role"`
	Queue    string `json:"queue"`
	Messages int    `json:"messages"`
}

type ratesJSON struct {
	Issued    float64 `json:"issued"`
	Expired   float64 `json:"expired"`
	Published float64 `json:"published"`
	Notices   float64 `json:"notices"`
}

type stageJSON struct {
	Stage    string  `json:"stage"`
	Party    string  `json:"party"` // broker, database, provider; empty: it contains others
	Count    int64   `json:"count"`
	Failed   int64   `json:"failed"`
	MeanMS   float64 `json:"mean_ms"`
	MaxMS    float64 `json:"max_ms"`
	CalmMS   float64 `json:"calm_ms"`
	Slowness float64 `json:"slowness"` // mean over calm
}

type bottleneckJSON struct {
	Party    string  `json:"party"`
	Stage    string  `json:"stage"`
	Slowness float64 `json:"slowness"`
}

// reason is what made it the bottleneck.
func (b *bottleneckJSON) reason() string {
	if b.Slowness >= failingFrom {
		return b.Stage + " fails more often than not"
	}
	return fmt.Sprintf("%s takes %.0f times as long as when all is calm", b.Stage, b.Slowness)
}

const failingFrom = 1000

type latenessJSON struct {
	Expired int64   `json:"expired"`
	P50MS   float64 `json:"p50_ms"` // at most
	P99MS   float64 `json:"p99_ms"`
}

type overdueJSON struct {
	Coupons       int64   `json:"coupons"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

type laneJSON struct {
	Lane     string `json:"lane"`
	Rows     int64  `json:"rows"`
	OldestMS int64  `json:"oldest_ms"`
}

type locksJSON struct {
	Locked        int64   `json:"locked"`
	RunOut        int64   `json:"run_out"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

type sweepStateJSON struct {
	Modes     []string `json:"modes"`
	Recovered int64    `json:"recovered"` // over fifteen seconds
	Skipped   int64    `json:"skipped"`
}

type plannerJSON struct {
	HorizonSeconds float64 `json:"horizon_seconds"` // 0: unlimited
	Frontier       *string `json:"frontier"`
	Held           bool    `json:"held"`
	LagSeconds     float64 `json:"lag_seconds"`

	Reminders []remindLagJSON `json:"reminders"`
}

type remindLagJSON struct {
	Offset     string  `json:"offset"`
	Frontier   *string `json:"frontier"` // null: its plan has not begun
	LagSeconds float64 `json:"lag_seconds"`
}

func plannerOf(p coupon.PlanState) plannerJSON {
	x := plannerJSON{
		HorizonSeconds: p.Horizon.Seconds(), Frontier: instantOrNil(p.Frontier), Held: p.Held, LagSeconds: p.Lag.Seconds(), Reminders: []remindLagJSON{},
	}
	for _, r := range p.Reminders {
		x.Reminders = append(x.Reminders, remindLagJSON{Offset: r.Offset, Frontier: instantOrNil(r.Frontier), LagSeconds: r.Lag.Seconds()})
	}
	return x
}

type clocksJSON struct {
	Processes int   `json:"processes"`
	Stopped   int   `json:"stopped"`
	WorstMS   int64 `json:"worst_offset_ms"`
}

// printLine writes one document in one line.
func (s *system) printLine(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return s.print(string(body) + "\n")
}

// text is one screen.
func (x *statusJSON) text(colour bool) string {
	paint := func(code, text string) string {
		if !colour {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	verdict := paint("32", "healthy")
	if !x.Healthy {
		verdict = paint("1;31", "needs attention")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s\n", x.Installation, x.Now, verdict)
	for _, a := range x.Attention {
		b.WriteString("  " + paint("31", "! ") + shown(a) + "\n")
	}
	b.WriteString("\n" + x.summary().String())
	stages := table{{"STAGE", "OF", "RUNS", "MEAN", "LONGEST", "CALM", "SLOWNESS"}}
	for _, s := range x.Stages {
		if s.Count == 0 {
			stages = append(stages, []string{s.Stage, s.Party, "0"})
			continue
		}
		runs := grouped(int(s.Count))
		if s.Failed > 0 {
			runs += fmt.Sprintf(" (%d failed)", s.Failed)
		}
		stages = append(stages, []string{s.Stage, s.Party, runs, ms(s.MeanMS), ms(s.MaxMS), ms(s.CalmMS), fmt.Sprintf("%.1f", s.Slowness)})
	}
	b.WriteString("\n" + stages.String())
	if len(x.Fleet) > 0 {
		fleet := table{{"PROCESS", "ROLE", "VERSION", "STARTED", ""}}
		for _, p := range x.Fleet {
			silent := ""
			if !p.Alive {
				silent = "silent for " + seconds64(float64(p.SilentMS/1000))
			}
			fleet = append(fleet, []string{p.Pod, p.Role, p.Version, p.Started, silent})
		}
		b.WriteString("\n" + fleet.String())
	}
	return b.String()
}

func ms(v float64) string {
	return time.Duration(v * float64(time.Millisecond)).Round(10 * time.Microsecond).String()
}

func (x *statusJSON) summary() table {
	bottleneck := "none"
	if x.Bottleneck != nil {
		bottleneck = x.Bottleneck.Party + ": " + x.Bottleneck.reason()
	}
	lateness := "nothing expired in the last minute"
	if x.Lateness.Expired > 0 {
		lateness = fmt.Sprintf("half within %s, 99 %% within %s (%s in a minute)", ms(x.Lateness.P50MS), ms(x.Lateness.P99MS), grouped(int(x.Lateness.Expired)))
	}
	overdue := "none"
	if x.Overdue.Coupons > 0 {
		overdue = fmt.Sprintf("%s, the oldest by %s", capped(x.Overdue.Coupons, 10_000), seconds64(x.Overdue.OldestSeconds))
	}
	return table{
		{"fleet", x.roles()},
		{"queues", x.queues()},
		{"rates", fmt.Sprintf("%.1f issued/s, %.1f expired/s, %.1f published/s, %.1f notices/s", x.Rates.Issued, x.Rates.Expired, x.Rates.Published, x.Rates.Notices)},
		{"bottleneck", bottleneck},
		{"lateness", lateness},
		{"overdue", overdue},
		{"outbox", x.outbox()},
		{"locks", fmt.Sprintf("%s, run out %s", capped(x.Locks.Locked, statusCount), capped(x.Locks.RunOut, statusCount))},
		{"paused", x.paused()},
		{"sweep", x.sweep()},
		{"planner", x.planner()},
		{"reminders", x.reminders()},
		{"clock", fmt.Sprintf("%d processes, worst offset %s, %d stopped", x.Clock.Processes, ahead(x.Clock.WorstMS), x.Clock.Stopped)},
	}
}

func (x *statusJSON) roles() string {
	alive := map[string]int{}
	for _, p := range x.Fleet {
		if p.Alive {
			alive[p.Role]++
		}
	}
	if len(alive) == 0 {
		return "no worker runs"
	}
	var parts []string
	for _, role := range []string{"publisher", "expirer", "notifier"} {
		parts = append(parts, fmt.Sprintf("%s %d", role, alive[role]))
	}
	return strings.Join(parts, ", ")
}

func (x *statusJSON) queues() string {
	if !x.Broker.Reachable {
		return "broker cannot be reached"
	}
	sums := map[string]int{}
	var roles []string
	for _, q := range x.Broker.Queues {
		if !slices.Contains(roles, q.Role) {
			roles = append(roles, q.Role)
		}
		sums[q.Role] += q.Messages
	}
	parts := []string{"waiting " + grouped(x.Broker.Waiting)}
	for _, role := range roles {
		parts = append(parts, role+" "+grouped(sums[role]))
	}
	return strings.Join(parts, ", ")
}

func (x *statusJSON) outbox() string {
	var parts []string
	for _, l := range x.Outbox {
		text := fmt.Sprintf("%s %s", l.Lane, capped(l.Rows, statusCount))
		if l.Rows > 0 {
			text += " (oldest " + seconds64(float64(l.OldestMS)/1000) + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, "parked "+capped(x.ParkedRows, statusCount)), ", ")
}

func (x *statusJSON) sweep() string {
	mode := "not known"
	if len(x.Sweep.Modes) > 0 {
		mode = strings.Join(x.Sweep.Modes, ", ")
	}
	return fmt.Sprintf("%s, recovered %d, passed over %d", mode, x.Sweep.Recovered, x.Sweep.Skipped)
}

func (x *statusJSON) reminders() string {
	if len(x.Planner.Reminders) == 0 {
		return "none"
	}
	parts := make([]string, len(x.Planner.Reminders))
	for i, r := range x.Planner.Reminders {
		parts[i] = r.Offset + " lag " + seconds64(r.LagSeconds)
	}
	return strings.Join(parts, ", ")
}

func (x *statusJSON) planner() string {
	p := x.Planner
	if p.HorizonSeconds == 0 && p.Frontier == nil {
		return "horizon unlimited"
	}
	text := "horizon unlimited"
	if p.HorizonSeconds > 0 {
		text = "horizon " + seconds64(p.HorizonSeconds)
	}
	if p.Frontier != nil {
		text += ", frontier " + *p.Frontier
	}
	return text + ", lag " + seconds64(p.LagSeconds)
}
