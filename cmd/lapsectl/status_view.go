package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/status"
)

// statusJSON is the state of an installation as --json prints it.
type statusJSON = status.Status

// statusScreen shows it to people.
type statusScreen struct{ *statusJSON }

// printLine writes one document in one line.
func (s *system) printLine(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return s.print(string(body) + "\n")
}

// text is one screen.
func (x statusScreen) text(colour bool) string {
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

func (x statusScreen) summary() table {
	bottleneck := "none"
	if x.Bottleneck != nil {
		bottleneck = x.Bottleneck.Party + ": " + x.Bottleneck.Reason()
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

func (x statusScreen) roles() string {
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

func (x statusScreen) queues() string {
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

func (x statusScreen) outbox() string {
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

func (x statusScreen) sweep() string {
	mode := "not known"
	if len(x.Sweep.Modes) > 0 {
		mode = strings.Join(x.Sweep.Modes, ", ")
	}
	return fmt.Sprintf("%s, recovered %d, passed over %d", mode, x.Sweep.Recovered, x.Sweep.Skipped)
}

func (x statusScreen) reminders() string {
	if len(x.Planner.Reminders) == 0 {
		return "none"
	}
	parts := make([]string, len(x.Planner.Reminders))
	for i, r := range x.Planner.Reminders {
		parts[i] = r.Offset + " lag " + seconds64(r.LagSeconds)
	}
	return strings.Join(parts, ", ")
}

func (x statusScreen) planner() string {
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

func capped(n, limit int64) string { return status.Capped(n, limit) }
