package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

type clockCommand struct {
	Status clockStatus `cmd:"" help:"Show what each process sees of the database's clock. Exit code 1 if some expire nothing for it."`
	Accept clockAccept `cmd:"" help:"Say that the database's clock is right as it reads now: processes that stopped for it go on."`
}

type clockStatus struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// clockJSON is the state of the clocks as --json prints it.
type clockJSON struct {
	Now       string          `json:"now"` // of the database
	Accepted  *acceptedJSON   `json:"accepted"`
	Processes []clockProcJSON `json:"processes"`
	Stopped   int             `json:"stopped"`
}

type acceptedJSON struct {
	At     string `json:"at"`
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
}

type clockProcJSON struct {
	Pod      string  `json:"pod"`
	Role     string  `json:"role"`
	OffsetMS int64   `json:"offset_ms"`
	JumpMS   int64   `json:"jump_ms"`
	Anchored *string `json:"anchored_at"`
	Tripped  bool    `json:"tripped"`
	Since    *string `json:"since"`
	Reported string  `json:"reported_at"`
}

// Run shows the clocks.
func (c *clockStatus) Run(ctx context.Context, s *system) error {
	return s.withStore(ctx, func(db *store.Store) error {
		x, err := clocksOf(ctx, db)
		if err != nil {
			return err
		}
		if c.JSON {
			err = s.printJSON(x)
		} else {
			err = s.print(x.text())
		}
		switch {
		case err != nil:
			return err
		case x.Stopped > 0:
			return s.miss("%d of %d processes expire nothing, since the database's clock jumped ahead; if it is right: lapsectl clock accept --reason …",
				x.Stopped, len(x.Processes))
		default:
			return nil
		}
	})
}

func clocksOf(ctx context.Context, db *store.Store) (clockJSON, error) {
	now, accepted, err := db.ReadClock(ctx)
	if err != nil {
		return clockJSON{}, err //nolint:wrapcheck // says what it does
	}
	reports, err := db.ClockReports(ctx)
	if err != nil {
		return clockJSON{}, err //nolint:wrapcheck // says what it does
	}
	x := clockJSON{Now: instant(now), Processes: make([]clockProcJSON, 0, len(reports))}
	if !accepted.IsZero() {
		x.Accepted = &acceptedJSON{At: instant(accepted)}
		deeds, err := db.Deeds(ctx, store.DeedClockAccept, 0, 1)
		if err != nil {
			return clockJSON{}, err //nolint:wrapcheck // says what it does
		}
		for _, d := range deeds {
			x.Accepted.Actor, x.Accepted.Reason = d.Actor, d.Reason
		}
	}
	for _, r := range reports {
		p := clockProcJSON{
			Pod: r.Pod, Role: r.Role, OffsetMS: r.Offset.Milliseconds(), JumpMS: r.Jump.Milliseconds(),
			Tripped: r.Tripped, Anchored: instantOrNil(r.Anchored), Since: instantOrNil(r.Since), Reported: instant(r.At),
		}
		if r.Tripped {
			x.Stopped++
		}
		x.Processes = append(x.Processes, p)
	}
	return x, nil
}

func instantOrNil(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	text := instant(t)
	return &text
}

func (x clockJSON) text() string {
	head := table{{"database", x.Now}}
	if x.Accepted != nil {
		head = append(head, []string{"accepted", fmt.Sprintf("%s by %s: %s", x.Accepted.At, x.Accepted.Actor, x.Accepted.Reason)})
	}
	rows := table{{"PROCESS", "ROLE", "OFFSET", "JUMP", "STATE"}}
	for _, p := range x.Processes {
		state := "believes it"
		switch {
		case p.Tripped && p.Since != nil:
			state = "expires nothing since " + *p.Since
		case p.Tripped:
			state = "expires nothing"
		case p.Anchored == nil:
			state = "has not read it yet"
		}
		rows = append(rows, []string{p.Pod, p.Role, ahead(p.OffsetMS), ahead(p.JumpMS), state})
	}
	return head.String() + "\n" + rows.String()
}

// ahead is how far the database's clock is ahead.
func ahead(ms int64) string {
	text := (time.Duration(ms) * time.Millisecond).String()
	if ms >= 0 {
		text = "+" + text
	}
	return text
}

type clockAccept struct {
	byFlags
	Within time.Duration `default:"10s" help:"How long to wait for the processes to go on."`
}

const (
	clockPoll    = 200 * time.Millisecond
	clockLongest = time.Minute
)

// Run accepts the database's clock and waits until every process that had stopped goes on.
func (c *clockAccept) Run(ctx context.Context, s *system) error {
	if err := c.check(s); err != nil {
		return err
	}
	if c.Within < 0 || c.Within > clockLongest {
		return fmt.Errorf("--within: must be between 0s and %s, got %s", clockLongest, c.Within)
	}
	return s.withStore(ctx, func(db *store.Store) error {
		before, err := clocksOf(ctx, db)
		if err != nil {
			return err
		}
		if before.Stopped == 0 {
			return s.miss("no process has stopped for the database's clock; there is nothing to accept")
		}
		at, err := db.AcceptClock(ctx, c.Actor, c.Reason, map[string]any{"stopped": before.Stopped, "processes": len(before.Processes)})
		if err != nil {
			return err //nolint:wrapcheck // says what it does
		}
		if err := s.print(fmt.Sprintf("accepted: the database's clock is right at %s\n", instant(at))); err != nil {
			return err
		}
		left, err := waitClocks(ctx, db, c.Within)
		switch {
		case err != nil:
			return err
		case len(left) > 0:
			return s.miss("still stopped: %s; look again (lapsectl clock status): its clock may have stepped since, which needs another acceptance",
				strings.Join(left, ", "))
		default:
			return s.print(fmt.Sprintf("%d processes go on\n", before.Stopped))
		}
	})
}

// waitClocks gives the pods that are still stopped after a while.
func waitClocks(ctx context.Context, db *store.Store, within time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, within+openWithin)
	defer cancel()
	poll, end := time.NewTicker(clockPoll), time.NewTimer(within)
	defer poll.Stop()
	defer end.Stop()
	for {
		reports, err := db.ClockReports(ctx)
		if err != nil {
			return nil, err //nolint:wrapcheck // says what it does
		}
		left := stoppedPods(reports)
		if len(left) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-end.C:
			return left, nil
		case <-poll.C:
		}
	}
}

func stoppedPods(reports []coupon.ClockReport) []string {
	var pods []string
	for _, r := range reports {
		if r.Tripped {
			pods = append(pods, r.Pod)
		}
	}
	return pods
}
