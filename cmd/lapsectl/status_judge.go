package main

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/config"
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
func (x *statusJSON) judge(cfg settings) {
	x.Attention = []string{}
	add := func(format string, args ...any) { x.Attention = append(x.Attention, fmt.Sprintf(format, args...)) }
	x.judgeFleet(add)
	if x.Clock.Stopped > 0 {
		add("%d of %d processes expire nothing, since the database's clock jumped ahead (lapsectl clock status)", x.Clock.Stopped, x.Clock.Processes)
	}
	for _, p := range x.Paused {
		add("%s is paused since %s by %s: %s (lapsectl resume)", p.what(), p.Since, p.Actor, p.Reason)
	}
	switch {
	case !x.Broker.Reachable:
		add("the broker cannot be reached: %s", x.Broker.Error)
	case x.Broker.Missing > 0 && x.Mechanism != config.MechanismSweep:
		add("%d queues are missing in the broker (lapsectl topology verify)", x.Broker.Missing)
	}
	if b := x.Bottleneck; b != nil {
		add("the %s is the bottleneck: %s", b.Party, b.reason())
	}
	if x.Overdue.Coupons > 0 {
		add("%s coupons are overdue, the oldest by %s", capped(x.Overdue.Coupons, 10_000), seconds64(x.Overdue.OldestSeconds))
	}
	if x.Lateness.P99MS > worstP99MS {
		add("coupons expire late: 99 of 100 within %s", seconds64(x.Lateness.P99MS/1000))
	}
	if x.Sweep.Recovered > 0 && x.Mechanism != config.MechanismSweep {
		add("the sweep settled %d coupons that the %s did not bring", x.Sweep.Recovered, x.Mechanism)
	}
	if x.Sweep.Skipped > 0 {
		add("the sweep went past %d rows that cannot be changed (see the expirer's log)", x.Sweep.Skipped)
	}
	for _, l := range x.Outbox {
		if l.OldestMS > oldestOutbox.Milliseconds() {
			add("the oldest %s of the outbox has waited for %s", l.Lane, seconds64(float64(l.OldestMS)/1000))
		}
	}
	if x.Locks.RunOut > 0 {
		add("%s locks have run out and were not freed, the oldest %s ago", capped(x.Locks.RunOut, statusCount), seconds64(x.Locks.OldestSeconds))
	}
	switch p := x.Planner; {
	case p.HorizonSeconds > 0 && p.LagSeconds > worstPlanLag.Seconds():
		add("the planner is %s behind", seconds64(p.LagSeconds))
	case p.HorizonSeconds > 0 && cfg.Ladder.Horizon == 0:
		add("this configuration says horizon unlimited, the planner works with %s", seconds64(p.HorizonSeconds))
	}
	for _, r := range x.Planner.Reminders {
		if r.LagSeconds > worstPlanLag.Seconds() {
			add("the planner is %s behind with reminders at %s", seconds64(r.LagSeconds), r.Offset)
		}
	}
	x.judgeAside(add)
	x.limits(add)
	x.Healthy = len(x.Attention) == 0
}

func (x *statusJSON) judgeFleet(add func(string, ...any)) {
	alive := map[string]int{}
	for _, p := range x.Fleet {
		if p.Alive {
			alive[p.Role]++
		}
	}
	if len(alive) == 0 {
		add("no worker runs")
		return
	}
	for _, role := range []string{"publisher", "expirer", "notifier"} {
		if alive[role] == 0 {
			add("no %s runs", role)
		}
	}
}

func (x *statusJSON) judgeAside(add func(string, ...any)) {
	for _, q := range x.Broker.Queues {
		if q.Messages == 0 {
			continue
		}
		switch ladder.Role(q.Role) {
		case ladder.RoleParked:
			add("%d messages are parked (lapsectl parked list)", q.Messages)
		case ladder.RoleUnroutable:
			add("%d messages found no route (lapsectl topology verify)", q.Messages)
		case ladder.RoleWait, ladder.RoleDue, ladder.RoleIntake, ladder.RoleNotice:
		default:
		}
	}
	if x.ParkedRows > 0 {
		add("%s outbox rows are parked (lapsectl parked list)", capped(x.ParkedRows, statusCount))
	}
}

// limits names what is beyond what was planned for.
func (x *statusJSON) limits(add func(string, ...any)) {
	x.Limits = []string{}
	limit := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		x.Limits = append(x.Limits, text)
		add("limit exceeded: %s", text)
	}
	if x.Broker.Waiting > mostWaiting && x.Planner.HorizonSeconds == 0 {
		limit("%s triggers wait in the broker, which is meant for %s without a horizon (ladder.horizon)", grouped(x.Broker.Waiting), grouped(mostWaiting))
	}
	for _, l := range x.Outbox {
		if l.Rows >= statusCount {
			limit("%s rows or more in the outbox, lane %s", grouped(statusCount), l.Lane)
		}
	}
	due := 0
	for _, q := range x.Broker.Queues {
		if q.Role == string(ladder.RoleDue) {
			due += q.Messages
		}
	}
	if x.DrainPerSecond > 0 && float64(due)/x.DrainPerSecond > mostDrain {
		limit("%s triggers are due, which is %s of work", grouped(due), seconds64(float64(due)/x.DrainPerSecond))
	}
}

func capped(n, limit int64) string {
	if n >= limit {
		return grouped(int(limit)) + " or more"
	}
	return grouped(int(n))
}
