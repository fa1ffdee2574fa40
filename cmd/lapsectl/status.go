package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/config"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/store"
)

type statusCommand struct {
	Watch bool          `short:"w" help:"Show it again and again, until Ctrl-C."`
	Every time.Duration `default:"2s" help:"How often --watch looks."`
	JSON  bool          `name:"json" help:"Print JSON; with --watch one document a line."`
}

// Help says what is looked at and what the exit codes mean.
func (c *statusCommand) Help() string {
	return `One screen of the whole installation, read from the database and the broker alone: workers tell of themselves in the database each five
seconds. Exit code 0: healthy; 1: something needs attention, and is named; 2: it cannot be told.`
}

const (
	statusBroker = 5 * time.Second // how long the broker may take to answer
	statusReads  = 10 * time.Second
	statusCount  = 100_000          // rows of one kind counted at most
	silentAfter  = 3 * pulse.Every  // a process that has told nothing for as long is not counted as alive
	goneAfter    = 15 * time.Minute // and after this it is not shown any more
	fastestWatch = time.Second
	slowestWatch = time.Hour
)

// Run shows the state of everything.
func (c *statusCommand) Run(ctx context.Context, s *system) error {
	if c.Every < fastestWatch || c.Every > slowestWatch {
		return fmt.Errorf("--every: must be between %s and %s, got %s", fastestWatch, slowestWatch, c.Every)
	}
	cfg, err := s.settings(keyInstallation)
	if err != nil {
		return err
	}
	return s.withStore(ctx, func(db *store.Store) error {
		for {
			x, err := s.status(ctx, db, cfg)
			if c.Watch && ctx.Err() != nil {
				return nil // Ctrl-C ends the watch
			}
			if err != nil {
				return err
			}
			if err := c.show(s, x); err != nil {
				return err
			}
			if !c.Watch {
				if x.Healthy {
					return nil
				}
				return errMiss
			}
			again := time.NewTimer(c.Every)
			select {
			case <-ctx.Done():
				again.Stop()
				return nil
			case <-again.C:
			}
		}
	})
}

func (c *statusCommand) show(s *system, x statusJSON) error {
	if c.JSON && c.Watch {
		return s.printLine(x)
	}
	if c.JSON {
		return s.printJSON(x)
	}
	terminal := s.terminal()
	text := x.text(terminal && !s.plain())
	if c.Watch {
		if terminal {
			text = "\x1b[H\x1b[2J" + text
		} else {
			text += "\n"
		}
	}
	return s.print(text)
}

// plain says that colours are not wanted.
func (s *system) plain() bool {
	v, ok := s.lookup("NO_COLOR")
	return ok && v != ""
}

// status reads everything.
func (s *system) status(ctx context.Context, db *store.Store, cfg settings) (statusJSON, error) {
	queues := make(chan brokerJSON, 1)
	go func() { queues <- s.queues(ctx, cfg) }()
	read, cancel := context.WithTimeout(ctx, statusReads)
	defer cancel()
	x, err := statusRows(read, db, cfg)
	x.Broker = <-queues // it has a limit of its own
	if err != nil {
		return x, err
	}
	x.judge(cfg)
	return x, nil
}

// statusRows reads what the database tells.
func statusRows(ctx context.Context, db *store.Store, cfg settings) (statusJSON, error) {
	x := statusJSON{Installation: cfg.Installation, Mechanism: cfg.Delay.Mechanism}
	sweep := cfg.Expiry.Sweep
	if cfg.Delay.Mechanism == config.MechanismSweep {
		sweep = sweep.Alone()
	}
	grace := max(sweep.Grace, time.Second)
	for _, read := range []func() error{
		func() error {
			now, err := db.Now(ctx)
			x.at, x.Now = now, instant(now)
			return err
		},
		func() error {
			rs, err := db.Pulses(ctx)
			x.heard(rs)
			return err
		},
		func() error {
			n, oldest, err := db.Overdue(ctx, grace)
			x.Overdue = overdueJSON{Coupons: n, OldestSeconds: oldest.Seconds()}
			return err
		},
		func() error {
			for i, lane := range []int{coupon.LaneTrigger, coupon.LaneEvent} {
				l, err := db.OutboxStats(ctx, lane, statusCount)
				if err != nil {
					return err
				}
				x.Outbox = append(x.Outbox, laneJSON{Lane: [...]string{"trigger", "event"}[i], Rows: int64(l.Rows), OldestMS: l.Oldest.Milliseconds()})
			}
			return nil
		},
		func() (err error) {
			x.ParkedRows, err = db.ParkedRows(ctx, statusCount)
			return err
		},
		func() error {
			l, err := db.Locks(ctx, grace, statusCount)
			x.Locks = locksJSON{Locked: l.Locked, RunOut: l.RunOut, OldestSeconds: l.Oldest.Seconds()}
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
			x.Paused, err = pausesOf(ctx, db)
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
func (x *statusJSON) heard(rs []pulse.Report) {
	var alive []pulse.Report
	x.Fleet, x.Sweep.Modes = []podJSON{}, []string{}
	for _, r := range rs {
		age := x.at.Sub(r.Seen)
		if age > goneAfter {
			continue
		}
		p := podJSON{Pod: r.Pod, Role: r.Role, Version: r.Version, Started: instant(r.Started), SilentMS: age.Milliseconds(), Alive: age <= silentAfter}
		x.Fleet = append(x.Fleet, p)
		if !p.Alive {
			continue
		}
		alive = append(alive, r)
		if r.Mode != "" && !slices.Contains(x.Sweep.Modes, r.Mode) {
			x.Sweep.Modes = append(x.Sweep.Modes, r.Mode)
		}
	}
	slices.SortStableFunc(x.Fleet, func(a, b podJSON) int { return strings.Compare(a.Role, b.Role) })
	timings, counts, late := pulse.Merge(alive)
	rate := func(what string) float64 { return float64(counts[what]) / pulse.Window.Seconds() }
	x.Rates = ratesJSON{
		Issued: rate(pulse.CountIssued), Expired: rate(pulse.CountExpired), Published: rate(pulse.CountPublished), Notices: rate(pulse.CountNotices),
	}
	x.Sweep.Recovered, x.Sweep.Skipped = counts[pulse.CountRecovered], counts[pulse.CountSkipped]
	for _, s := range pulse.Stages() {
		t := timings[s]
		x.Stages = append(x.Stages, stageJSON{
			Stage: string(s), Party: string(s.Party()), Count: t.Count, Failed: t.Failed, MeanMS: millis(t.Mean), MaxMS: millis(t.Max),
			CalmMS: millis(t.Calm), Slowness: t.Slowness(),
		})
	}
	if v := pulse.Judge(timings); v.Party != pulse.Nobody {
		x.Bottleneck = &bottleneckJSON{Party: string(v.Party), Stage: string(v.Stage), Slowness: v.Slowness}
	}
	x.Lateness = latenessJSON{Expired: late.Count(), P50MS: millis(late.AtMost(0.5)), P99MS: millis(late.AtMost(0.99))}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func clockOf(rs []coupon.ClockReport) clocksJSON {
	c := clocksJSON{Processes: len(rs)}
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

// queues counts what is in the broker.
func (s *system) queues(ctx context.Context, cfg settings) brokerJSON {
	x := brokerJSON{Queues: []queueCountJSON{}}
	if cfg.Broker.URL.Reveal() == "" {
		x.Error = "broker.url is not configured"
		return x
	}
	ctx, cancel := context.WithTimeout(ctx, statusBroker)
	defer cancel()
	client, l, err := s.broker(cfg, func(*ladder.Ladder) ladder.Plan { return ladder.Plan{} })
	if err != nil {
		x.Error = err.Error()
		return x
	}
	plan := l.Plan()
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
			x.Queues = append(x.Queues, queueCountJSON{Role: string(q.Role), Queue: q.Name, Messages: n})
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
