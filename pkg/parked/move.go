package parked

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

// Actions in the operators' log.
const (
	DeedReplay  = "parked.replay"
	DeedDiscard = "parked.discard"
)

// Move is a replay or a discard of what the filter chooses: by whom and why.
type Move struct {
	Filter
	All    bool // it was asked for without choosing
	Actor  string
	Reason string
	Note   func(format string, args ...any) // told of what stays; may be nil
}

func (m *Move) note(format string, args ...any) {
	if m.Note != nil {
		m.Note(format, args...)
	}
}

// deed is the record of one page.
func (m *Move) deed(action, place string, items []Item) store.Deed {
	refs := make([]string, 0, min(len(items), deedRefs))
	ids := make([]string, 0, cap(refs))
	for _, p := range items[:min(len(items), deedRefs)] {
		refs, ids = append(refs, p.Ref), append(ids, p.MessageID[:min(len(p.MessageID), 64)])
	}
	return store.Deed{
		Actor: m.Actor, Reason: m.Reason, Action: action, Subject: place,
		Detail: map[string]any{"n": len(items), "refs": refs, "message_ids": ids, "origin": m.Origin, "reason_has": m.ReasonHas, "all": m.All},
	}
}

// Publisher sends and waits for the confirms.
type Publisher interface {
	Publish(ctx context.Context, ms []broker.Message) []error
}

// Replay gives what Pages is to do to send the chosen things to where they came from: published anew and confirmed, written down,
// and then taken out. Whoever receives it twice for that knows it.
func (d *Desk) Replay(ctx context.Context, to Publisher, m Move) func(place string, items []Item) ([]bool, error) {
	return func(place string, items []Item) ([]bool, error) {
		if place == Outbox {
			return all(items), d.DB.ReplayParked(ctx, rowsOf(items), m.deed(DeedReplay, place, items)) //nolint:wrapcheck // says what it does
		}
		done, sent := make([]bool, len(items)), make([]Item, 0, len(items))
		messages := make([]broker.Message, 0, len(items))
		at := make([]int, 0, len(items))
		for i, p := range items {
			home, ok := d.home(p)
			if !ok {
				m.note("%s: it is not known where it came from; it stays", p.Ref)
				continue
			}
			messages, at = append(messages, home), append(at, i)
		}
		if len(messages) == 0 {
			return done, nil
		}
		var failed error
		for k, err := range to.Publish(ctx, messages) {
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", items[at[k]].Ref, err))
				continue
			}
			done[at[k]] = true
			sent = append(sent, items[at[k]])
		}
		if len(sent) > 0 {
			if err := d.DB.RecordDeed(ctx, m.deed(DeedReplay, place, sent)); err != nil {
				return nil, err //nolint:wrapcheck // says what it does; it comes again
			}
		}
		if failed != nil {
			m.note("some could not be sent and stay: %v", failed)
		}
		return done, nil
	}
}

// Discard gives what Pages is to do to delete the chosen things, after that was written down.
func (d *Desk) Discard(ctx context.Context, m Move) func(place string, items []Item) ([]bool, error) {
	return func(place string, items []Item) ([]bool, error) {
		deed := m.deed(DeedDiscard, place, items)
		if place == Outbox {
			return all(items), d.DB.DiscardParked(ctx, rowsOf(items), deed) //nolint:wrapcheck // says what it does
		}
		return all(items), d.DB.RecordDeed(ctx, deed) //nolint:wrapcheck // says what it does
	}
}

// home is the message that brings p back to the queue that it came from: through the exchange of that queue where there is
// one, so that it keeps its key, else by the queue's name; a trigger of the ladder to the due queues. It begins its
// attempts anew.
func (d *Desk) home(p Item) (broker.Message, bool) {
	m := p.Delivery
	plan := d.Ladder.Plan()
	_, err := ladder.ParseKey(m.Key)
	onLadder := err == nil
	queue := slices.IndexFunc(plan.Queues, func(q ladder.Queue) bool {
		return q.Name == p.Origin && (q.Role == ladder.RoleIntake || q.Role == ladder.RoleNotice)
	})
	switch {
	case queue >= 0 && slices.ContainsFunc(plan.Exchanges, func(e ladder.Exchange) bool { return e.Name == p.Origin }):
		return m.Revived(p.Origin, m.Key), true
	case queue >= 0:
		return m.Revived(d.Ladder.Replay(), p.Origin), true
	case onLadder:
		if t, err := event.DecodeTrigger(m.Body); err == nil && t.Attempt > 0 {
			t.Attempt = 0
			m.Body = d.Codec.Trigger(t)
		}
		return m.Revived(d.Ladder.Due(), m.Key), true
	default:
		return broker.Message{}, false
	}
}

func all(items []Item) []bool {
	all := make([]bool, len(items))
	for i := range all {
		all[i] = true
	}
	return all
}

func rowsOf(items []Item) []uint64 {
	ids := make([]uint64, len(items))
	for i := range items {
		ids[i] = items[i].Row
	}
	return ids
}
