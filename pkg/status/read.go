package status

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/store"
)

const (
	brokerWithin = 5 * time.Second // how long the broker may take to answer
	readWithin   = 10 * time.Second
	silentAfter  = 3 * pulse.Every  // a process that has told nothing for as long is not counted as alive
	goneAfter    = 15 * time.Minute // and after this it is not shown any more

	// Counted is how many rows of one kind are counted at most.
	Counted = 100_000
	// MostOverdue is how many overdue coupons are counted at most.
	MostOverdue = 10_000
)

// MechanismSweep is the delay mechanism by which nothing waits anywhere.
const MechanismSweep = "sweep"

// Config is what has to be known of an installation.
type Config struct {
	Installation string
	Mechanism    string // of delay
	Sweep        expiry.SweepConfig
	Horizon      time.Duration // as configured; 0: unlimited
}

// Read reads everything; queues gives the broker's part, see Queues.
func Read(ctx context.Context, db *store.Store, c Config, queues func(context.Context) Broker) (Status, error) {
	counted := make(chan Broker, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, brokerWithin)
		defer cancel()
		counted <- queues(ctx)
	}()
	read, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	x, err := rows(read, db, c)
	x.Broker = <-counted // it has a limit of its own
	if err != nil {
		return x, err
	}
	x.judge(c)
	return x, nil
}

// rows reads what the database tells.
func rows(ctx context.Context, db *store.Store, c Config) (Status, error) {
	x := Status{Installation: c.Installation, Mechanism: c.Mechanism}
	sweep := c.Sweep
	if c.Mechanism == MechanismSweep {
		sweep = sweep.Alone()
	}
	grace := max(sweep.Grace, time.Second)
	for _, read := range []func() error{
		func() error {
			now, err := db.Now(ctx)
			x.at, x.Now = now, Instant(now)
			return err
		},
		func() error {
			rs, err := db.Pulses(ctx)
			x.heard(rs)
			return err
		},
		func() error {
			n, oldest, err := db.Overdue(ctx, grace)
			x.Overdue = Overdue{Coupons: n, OldestSeconds: oldest.Seconds()}
			return err
		},
		func() error {
			for i, lane := range []int{coupon.LaneTrigger, coupon.LaneEvent} {
				l, err := db.OutboxStats(ctx, lane, Counted)
				if err != nil {
					return err
				}
				x.Outbox = append(x.Outbox, Lane{Lane: [...]string{"trigger", "event"}[i], Rows: int64(l.Rows), OldestMS: l.Oldest.Milliseconds()})
			}
			return nil
		},
		func() (err error) {
			x.ParkedRows, err = db.ParkedRows(ctx, Counted)
			return err
		},
		func() error {
			l, err := db.Locks(ctx, grace, Counted)
			x.Locks = Locks{Locked: l.Locked, RunOut: l.RunOut, OldestSeconds: l.Oldest.Seconds()}
			return err
		},
		func() error {
			p, err := db.Plan(ctx)
			x.Planner = plannerOf(p)
			return err
		},
		func() error {
			rs, err := db.ClockReports(ctx)
			x.Clock = clockOf(rs)
			return err
		},
		func() (err error) {
			x.Paused, err = Pauses(ctx, db)
			return err
		},
		func() error {
			d, err := db.DrainRate(ctx)
			x.DrainPerSecond = d.PerSecond()
			return err
		},
	} {
		if err := read(); err != nil {
			return x, err
		}
	}
	return x, nil
}

// heard takes what the processes tell.
func (x *Status) heard(rs []pulse.Report) {
	var alive []pulse.Report
	x.Fleet, x.Sweep.Modes = []Pod{}, []string{}
	for _, r := range rs {
		age := x.at.Sub(r.Seen)
		if age > goneAfter {
			continue
		}
		p := Pod{Pod: r.Pod, Role: r.Role, Version: r.Version, Started: Instant(r.Started), SilentMS: age.Milliseconds(), Alive: age <= silentAfter}
		x.Fleet = append(x.Fleet, p)
		if !p.Alive {
			continue
		}
		alive = append(alive, r)
		if r.Mode != "" && !slices.Contains(x.Sweep.Modes, r.Mode) {
			x.Sweep.Modes = append(x.Sweep.Modes, r.Mode)
		}
	}
	slices.SortStableFunc(x.Fleet, func(a, b Pod) int { return strings.Compare(a.Role, b.Role) })
	timings, counts, late := pulse.Merge(alive)
	rate := func(what string) float64 { return float64(counts[what]) / pulse.Window.Seconds() }
	x.Rates = Rates{
		Issued: rate(pulse.CountIssued), Expired: rate(pulse.CountExpired), Published: rate(pulse.CountPublished), Notices: rate(pulse.CountNotices),
	}
	x.Sweep.Recovered, x.Sweep.Skipped = counts[pulse.CountRecovered], counts[pulse.CountSkipped]
	for _, s := range pulse.Stages() {
		t := timings[s]
		x.Stages = append(x.Stages, Stage{
			Stage: string(s), Party: string(s.Party()), Count: t.Count, Failed: t.Failed, MeanMS: millis(t.Mean), MaxMS: millis(t.Max),
			CalmMS: millis(t.Calm), Slowness: t.Slowness(),
		})
	}
	if v := pulse.Judge(timings); v.Party != pulse.Nobody {
		x.Bottleneck = &Bottleneck{Party: string(v.Party), Stage: string(v.Stage), Slowness: v.Slowness}
	}
	x.Lateness = Lateness{Expired: late.Count(), P50MS: millis(late.AtMost(0.5)), P99MS: millis(late.AtMost(0.99))}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func clockOf(rs []coupon.ClockReport) Clocks {
	c := Clocks{Processes: len(rs)}
	for _, r := range rs {
		if r.Tripped {
			c.Stopped++
		}
		if ms := r.Offset.Milliseconds(); max(ms, -ms) >= max(c.WorstMS, -c.WorstMS) {
			c.WorstMS = ms
		}
	}
	return c
}

func plannerOf(p coupon.PlanState) Planner {
	x := Planner{
		HorizonSeconds: p.Horizon.Seconds(), Frontier: orNil(p.Frontier), Held: p.Held, LagSeconds: p.Lag.Seconds(), Reminders: []RemindLag{},
	}
	for _, r := range p.Reminders {
		x.Reminders = append(x.Reminders, RemindLag{Offset: r.Offset, Frontier: orNil(r.Frontier), LagSeconds: r.Lag.Seconds()})
	}
	return x
}

// Pauses tells what is paused, by whom and why.
func Pauses(ctx context.Context, db *store.Store) ([]Pause, error) {
	ps, err := db.Pauses(ctx)
	if err != nil || len(ps.List()) == 0 {
		return []Pause{}, err //nolint:wrapcheck // says what it does
	}
	const recent = 1000
	deeds, err := db.Deeds(ctx, store.DeedPause, 0, recent)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what it does
	}
	by := map[string]store.Deed{}
	for _, d := range deeds {
		if _, newer := by[d.Subject]; !newer {
			by[d.Subject] = d
		}
	}
	out := make([]Pause, 0, len(ps.List()))
	for _, p := range ps.List() {
		d := by[p.String()]
		out = append(out, Pause{What: string(p.Brake), Scope: string(p.Scope), ID: p.ID, Since: Instant(p.Since), Actor: d.Actor, Reason: d.Reason})
	}
	return out, nil
}

// Unread is a broker of which nothing can be told.
func Unread(reason string) Broker { return Broker{Queues: []Queue{}, Error: reason} }

// Queues counts what is in the broker's queues of the plan.
func Queues(ctx context.Context, client *broker.Client, plan ladder.Plan) Broker {
	x := Broker{Queues: []Queue{}}
	names := make([]string, len(plan.Queues))
	for i, q := range plan.Queues {
		names[i] = q.Name
	}
	depths, err := client.Depths(ctx, names)
	x.Reachable = err == nil || missingAlone(err)
	for _, q := range plan.Queues {
		n, there := depths[q.Name]
		switch {
		case !there:
			x.Missing++
		case q.Role == ladder.RoleWait:
			x.Waiting += n
		default:
			x.Queues = append(x.Queues, Queue{Role: string(q.Role), Queue: q.Name, Messages: n})
		}
	}
	if !x.Reachable {
		x.Missing, x.Error = 0, firstLine(err)
	}
	return x
}

func firstLine(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}

// missingAlone says that the broker answered, and that something of ours is not there.
func missingAlone(err error) bool {
	var gone *broker.MissingError
	return errors.As(err, &gone)
}
