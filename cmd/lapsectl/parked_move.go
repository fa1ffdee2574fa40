package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

// Actions in the operators' log.
const (
	deedReplay  = "parked.replay"
	deedDiscard = "parked.discard"
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

// deed is the record of one page.
func (f *moveFlags) deed(action, place string, items []parkedItem) store.Deed {
	refs := make([]string, 0, min(len(items), deedRefs))
	ids := make([]string, 0, cap(refs))
	for _, p := range items[:min(len(items), deedRefs)] {
		refs, ids = append(refs, p.Ref), append(ids, p.MessageID[:min(len(p.MessageID), 64)])
	}
	return store.Deed{
		Actor: f.Actor, Reason: f.byFlags.Reason, Action: action, Subject: place,
		Detail: map[string]any{"n": len(items), "refs": refs, "message_ids": ids, "origin": f.Origin, "reason_has": f.ReasonHas, "all": f.All},
	}
}

type parkedReplay struct{ moveFlags }

// Run sends what was chosen to where it came from: published anew and confirmed, written down, and then taken out. Whoever
// receives it twice for that knows it.
func (c *parkedReplay) Run(ctx context.Context, s *system) error {
	if err := c.ready(s); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		return a.publishing(ctx, c.DryRun, func(p *broker.Publisher) error {
			lost := 0
			return a.move(ctx, &c.moveFlags, "replayed", func(place string, items []parkedItem) ([]bool, error) {
				if place == placeOutbox {
					return allOf(items), a.db.ReplayParked(ctx, rowsOf(items), c.deed(deedReplay, place, items))
				}
				done, sent := make([]bool, len(items)), make([]parkedItem, 0, len(items))
				messages := make([]broker.Message, 0, len(items))
				at := make([]int, 0, len(items))
				for i, p := range items {
					m, ok := a.home(p)
					if !ok {
						lost++
						s.note("%s: it is not known where it came from; it stays", p.Ref)
						continue
					}
					messages, at = append(messages, m), append(at, i)
				}
				if len(messages) == 0 {
					return done, nil
				}
				var failed error
				for k, err := range p.Publish(ctx, messages) {
					if err != nil {
						failed = errors.Join(failed, fmt.Errorf("%s: %w", items[at[k]].Ref, err))
						continue
					}
					done[at[k]] = true
					sent = append(sent, items[at[k]])
				}
				if len(sent) > 0 {
					if err := a.db.RecordDeed(ctx, c.deed(deedReplay, place, sent)); err != nil {
						return nil, err // it comes again
					}
				}
				if failed != nil {
					s.note("some could not be sent and stay: %v", failed)
				}
				return done, nil
			})
		})
	})
}

type parkedDiscard struct{ moveFlags }

// Run deletes what was chosen, after that was written down.
func (c *parkedDiscard) Run(ctx context.Context, s *system) error {
	if err := c.ready(s); err != nil {
		return err
	}
	return s.withAside(ctx, func(a *aside) error {
		return a.move(ctx, &c.moveFlags, "discarded", func(place string, items []parkedItem) ([]bool, error) {
			d := c.deed(deedDiscard, place, items)
			if place == placeOutbox {
				return allOf(items), a.db.DiscardParked(ctx, rowsOf(items), d)
			}
			return allOf(items), a.db.RecordDeed(ctx, d)
		})
	})
}

// move does a deed to what is chosen and says how much that was.
func (a *aside) move(ctx context.Context, f *moveFlags, done string, do func(place string, items []parkedItem) ([]bool, error)) error {
	chosen, moved := 0, 0
	seen, err := a.pages(ctx, &f.parkedFilter, func(place string, items []parkedItem) ([]bool, error) {
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
	publisher := a.client.NewPublisher()
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

// home is the message that brings p back to the queue that it came from: through the exchange of that queue where there is
// one, so that it keeps its key, else straight to the queue; a trigger of the ladder to the due queues. It begins its
// attempts anew.
func (a *aside) home(p parkedItem) (broker.Message, bool) {
	d := p.delivery
	plan := a.ladder.Plan()
	_, err := ladder.ParseKey(d.Key)
	onLadder := err == nil
	queue := slices.IndexFunc(plan.Queues, func(q ladder.Queue) bool {
		return q.Name == p.Origin && (q.Role == ladder.RoleIntake || q.Role == ladder.RoleNotice)
	})
	switch {
	case queue >= 0 && slices.ContainsFunc(plan.Exchanges, func(e ladder.Exchange) bool { return e.Name == p.Origin }):
		return d.Revived(p.Origin, d.Key), true
	case queue >= 0:
		return d.Revived("", p.Origin), true
	case onLadder:
		if t, err := event.DecodeTrigger(d.Body); err == nil && t.Attempt > 0 {
			t.Attempt = 0
			d.Body = a.codec.Trigger(t)
		}
		return d.Revived(a.ladder.Due(), d.Key), true
	default:
		return broker.Message{}, false
	}
}

func allOf(items []parkedItem) []bool {
	all := make([]bool, len(items))
	for i := range all {
		all[i] = true
	}
	return all
}

func rowsOf(items []parkedItem) []uint64 {
	ids := make([]uint64, len(items))
	for i := range items {
		ids[i] = items[i].row
	}
	return ids
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
		for _, action := range []string{deedReplay, deedDiscard} {
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
