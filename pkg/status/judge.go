package status

import (
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/ladder"
)

// What is asked of an installation before it is called healthy.
const (
	mostWaiting  = 2_000_000 // triggers in a broker without a horizon
	mostDrain    = 60.0      // seconds of work in the due queues
	oldestOutbox = time.Minute
	worstP99MS   = 2048 // a bucket's end
	worstPlanLag = 2 * time.Minute
)

// judge says what needs attention, the most pressing first.
func (x *Status) judge(c Config) {
	x.Attention, x.Notes = []string{}, []Note{}
	add := func(code, format string, args ...any) {
		n := Note{Code: code, Values: make([]string, len(args)), Text: fmt.Sprintf(format, args...)}
		for i := range args {
			n.Values[i] = fmt.Sprint(args[i])
		}
		x.Attention, x.Notes = append(x.Attention, n.Text), append(x.Notes, n)
	}
	x.judgeFleet(add)
	if x.Clock.Stopped > 0 {
		add("clock_stopped", "%d of %d processes expire nothing, since the database's clock jumped ahead (lapsectl clock status)", x.Clock.Stopped, x.Clock.Processes)
	}
	for _, p := range x.Paused {
		add("paused", "%s is paused since %s by %s: %s (lapsectl resume)", p, p.Since, p.Actor, p.Reason)
	}
	switch {
	case !x.Broker.Reachable:
		add("broker_away", "the broker cannot be reached: %s", x.Broker.Error)
	case x.Broker.Missing > 0 && x.Mechanism != MechanismSweep:
		add("queues_missing", "%d queues are missing in the broker (lapsectl topology verify)", x.Broker.Missing)
	}
	if b := x.Bottleneck; b != nil {
		add("bottleneck", "the %s is the bottleneck: %s", b.Party, b.Reason())
	}
	if x.Overdue.Coupons > 0 {
		add("overdue", "%s coupons are overdue, the oldest by %s", Capped(x.Overdue.Coupons, 10_000), Seconds(x.Overdue.OldestSeconds))
	}
	if x.Lateness.P99MS > worstP99MS {
		add("late", "coupons expire late: 99 of 100 within %s", Seconds(x.Lateness.P99MS/1000))
	}
	if x.Sweep.Recovered > 0 && x.Mechanism != MechanismSweep {
		add("swept", "the sweep settled %d coupons that the %s did not bring", x.Sweep.Recovered, x.Mechanism)
	}
	if x.Sweep.Skipped > 0 {
		add("sweep_skipped", "the sweep went past %d rows that cannot be changed (see the expirer's log)", x.Sweep.Skipped)
	}
	for _, l := range x.Outbox {
		if l.OldestMS > oldestOutbox.Milliseconds() {
			add("outbox_old", "the oldest %s of the outbox has waited for %s", l.Lane, Seconds(float64(l.OldestMS)/1000))
		}
	}
	if x.Locks.RunOut > 0 {
		add("locks_run_out", "%s locks have run out and were not freed, the oldest %s ago", Capped(x.Locks.RunOut, Counted), Seconds(x.Locks.OldestSeconds))
	}
	switch p := x.Planner; {
	case p.HorizonSeconds > 0 && p.LagSeconds > worstPlanLag.Seconds():
		add("planner_behind", "the planner is %s behind", Seconds(p.LagSeconds))
	case p.HorizonSeconds > 0 && c.Horizon == 0:
		add("horizon_differs", "this configuration says horizon unlimited, the planner works with %s", Seconds(p.HorizonSeconds))
	}
	for _, r := range x.Planner.Reminders {
		if r.LagSeconds > worstPlanLag.Seconds() {
			add("reminders_behind", "the planner is %s behind with reminders at %s", Seconds(r.LagSeconds), r.Offset)
		}
	}
	x.judgeAside(add)
	x.limits(add)
	x.Healthy = len(x.Attention) == 0
}

func (x *Status) judgeFleet(add func(code, format string, args ...any)) {
	alive := map[string]int{}
	for _, p := range x.Fleet {
		if p.Alive {
			alive[p.Role]++
		}
	}
	if len(alive) == 0 {
		add("no_worker", "no worker runs")
		return
	}
	for _, role := range []string{"publisher", "expirer", "notifier"} {
		if alive[role] == 0 {
			add("role_missing", "no %s runs", role)
		}
	}
}

func (x *Status) judgeAside(add func(code, format string, args ...any)) {
	for _, q := range x.Broker.Queues {
		if q.Messages == 0 {
			continue
		}
		switch ladder.Role(q.Role) {
		case ladder.RoleParked:
			add("parked", "%d messages are parked (lapsectl parked list)", q.Messages)
		case ladder.RoleUnroutable:
			add("unroutable", "%d messages found no route (lapsectl topology verify)", q.Messages)
		case ladder.RoleWait, ladder.RoleDue, ladder.RoleIntake, ladder.RoleNotice:
		default:
		}
	}
	if x.ParkedRows > 0 {
		add("outbox_parked", "%s outbox rows are parked (lapsectl parked list)", Capped(x.ParkedRows, Counted))
	}
}

// limits names what is beyond what was planned for.
func (x *Status) limits(add func(code, format string, args ...any)) {
	x.Limits = []string{}
	limit := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		x.Limits = append(x.Limits, text)
		add("limit", "limit exceeded: %s", text)
	}
	if x.Broker.Waiting > mostWaiting && x.Planner.HorizonSeconds == 0 {
		limit("%s triggers wait in the broker, which is meant for %s without a horizon (ladder.horizon)", Grouped(x.Broker.Waiting), Grouped(mostWaiting))
	}
	for _, l := range x.Outbox {
		if l.Rows >= Counted {
			limit("%s rows or more in the outbox, lane %s", Grouped(Counted), l.Lane)
		}
	}
	due := 0
	for _, q := range x.Broker.Queues {
		if q.Role == string(ladder.RoleDue) {
			due += q.Messages
		}
	}
	if x.DrainPerSecond > 0 && float64(due)/x.DrainPerSecond > mostDrain {
		limit("%s triggers are due, which is %s of work", Grouped(due), Seconds(float64(due)/x.DrainPerSecond))
	}
}

// Capped is a count that ends at a limit, for people.
func Capped(n, limit int64) string {
	if n >= limit {
		return Grouped(int(limit)) + " or more"
	}
	return Grouped(int(n))
}

// Grouped is a number for people: 12 345.
func Grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// Seconds is a length of time for people.
func Seconds(s float64) string {
	if s == 0 {
		return "0s"
	}
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}

// Instant is RFC 3339 with milliseconds, in UTC; empty for none.
func Instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func orNil(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := Instant(t)
	return &text
}
