package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/parked"
	"github.com/lapsehq/lapse/pkg/store"
)

// moveFlags are those of replay and discard.
type moveFlags struct {
	parkedFilter
	byFlags
	All    bool `help:"All of it, without --ref, --origin or --reason-has."`
	DryRun bool `help:"Say what would be done, and do nothing."`
}

func (f *moveFlags) ready(s *system) error {
	errs := []error{f.parkedFilter.check(), f.byFlags.check(s)}
	if !f.narrow() && !f.All {
		errs = append(errs, errors.New("say what: --ref, --origin, --reason-has, or --all"))
	}
	return errors.Join(errs...)
}

func (f *moveFlags) move(s *system) parked.Move {
	return parked.Move{Filter: f.filter(), All: f.All, Actor: f.Actor, Reason: f.byFlags.Reason, Note: s.note}
}

type parkedReplay struct{ moveFlags }

// Run sends what was chosen to where it came from.
func (c *parkedReplay) Run(ctx context.Context, s *system) error {
	if err := c.ready(s); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		return a.publishing(ctx, c.DryRun, func(p *broker.Publisher) error {
			return a.move(ctx, &c.moveFlags, "replayed", a.Replay(ctx, p, c.moveFlags.move(s)))
		})
	})
}

type parkedDiscard struct{ moveFlags }

// Run deletes what was chosen.
func (c *parkedDiscard) Run(ctx context.Context, s *system) error {
	if err := c.ready(s); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		return a.move(ctx, &c.moveFlags, "discarded", a.Discard(ctx, c.moveFlags.move(s)))
	})
}

// move does a deed to what is chosen and says how much that was.
func (a *aside) move(ctx context.Context, f *moveFlags, done string, do func(place string, items []parkedItem) ([]bool, error)) error {
	chosen, moved := 0, 0
	filter := f.filter()
	seen, err := a.Pages(ctx, &filter, func(place string, items []parkedItem) ([]bool, error) {
		chosen += len(items)
		if f.DryRun {
			return nil, nil
		}
		gone, err := do(place, items)
		for _, g := range gone {
			if g && err == nil {
				moved++
			}
		}
		return gone, err
	})
	if f.DryRun {
		done = "would be " + done
		moved = chosen
	}
	if perr := a.s.print(fmt.Sprintf("%d of %d %s\n", moved, seen, done)); err == nil {
		err = perr
	}
	switch {
	case err != nil:
		return err
	case chosen == 0:
		return a.s.miss("nothing was chosen")
	case moved < chosen:
		return a.s.miss("%d stay", chosen-moved)
	default:
		return nil
	}
}

// publishing runs a publisher for f; nothing is sent in a dry run.
func (a *aside) publishing(ctx context.Context, dry bool, f func(*broker.Publisher) error) error {
	publisher := a.Client.NewPublisher()
	if dry {
		return f(publisher)
	}
	reach, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- publisher.Run(running) }()
	err := publisher.WaitReady(reach)
	if err == nil {
		err = f(publisher)
	}
	stop()
	return errors.Join(err, <-ended)
}

type parkedLog struct {
	Limit int  `default:"20" help:"Show so many of each, newest first."`
	JSON  bool `name:"json" help:"Print JSON."`
}

// parkedDeed is a deed as --json prints it.
type parkedDeed struct {
	At     string          `json:"at"`
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	Action string          `json:"action"`
	Place  string          `json:"place"`
	Detail json.RawMessage `json:"detail"`
}

// Run shows the deeds, newest first.
func (c *parkedLog) Run(ctx context.Context, s *system) error {
	if c.Limit < 1 || c.Limit > 1000 {
		return fmt.Errorf("--limit: must be between 1 and 1000, got %d", c.Limit)
	}
	return s.withStore(ctx, func(db *store.Store) error {
		out := []parkedDeed{}
		for _, action := range []string{parked.DeedReplay, parked.DeedDiscard} {
			deeds, err := db.Deeds(ctx, action, 0, c.Limit)
			if err != nil {
				return err //nolint:wrapcheck // named by the store
			}
			for _, d := range deeds {
				detail, _ := d.Detail.(json.RawMessage)
				out = append(out, parkedDeed{instant(d.At), d.Actor, d.Reason, d.Action, d.Subject, detail})
			}
		}
		slices.SortStableFunc(out, func(a, b parkedDeed) int { return strings.Compare(b.At, a.At) })
		if c.JSON {
			return s.printJSON(out)
		}
		t := table{{"TIME", "BY", "ACTION", "PLACE", "N", "REASON"}}
		for _, d := range out {
			var detail struct {
				N int `json:"n"`
			}
			_ = json.Unmarshal(d.Detail, &detail) // without it the number is 0
			t = append(t, []string{d.At, d.Actor, d.Action, d.Place, fmt.Sprint(detail.N), d.Reason})
		}
		return s.print(t.String())
	})
}
