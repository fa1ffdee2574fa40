package linear

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// What a history can be found to be.
var (
	ErrNotLinear = errors.New("no order of the calls explains the answers")
	ErrTooLong   = errors.New("no order of the calls was found in time")
)

// Check looks for an order of the calls that explains every answer, for at most limit.
func (p *Pair) Check(history []Event, limit time.Duration) error {
	s, calls := newSearch(p, history)
	result := porcupine.CheckOperationsTimeout(s.model(), calls, limit)
	switch result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("%s: %w", p.Name, ErrNotLinear)
	case porcupine.Unknown:
		return fmt.Errorf("%s, %s: %w", p.Name, limit, ErrTooLong)
	default:
		return fmt.Errorf("%s: porcupine said %q", p.Name, result)
	}
}

// Draw searches again and writes what was found as a page of HTML: calls over time, and how far each order got. It gives the file's name.
func (p *Pair) Draw(history []Event, limit time.Duration) (string, error) {
	s, calls := newSearch(p, history)
	_, info := porcupine.CheckOperationsVerbose(s.model(), calls, limit)
	var cutOff []porcupine.Annotation
	for _, e := range history {
		if e.Answer == nil {
			cutOff = append(cutOff, porcupine.Annotation{
				ClientId: e.Client, Start: int64(e.Sent.Sub(begun(history))), End: int64(e.Got.Sub(begun(history))), Description: e.Call.String() + ": cut off",
			})
		}
	}
	info.AddAnnotations(cutOff)
	file, err := os.CreateTemp("", "lapse-"+p.Name+"-*.html")
	if err != nil {
		return "", fmt.Errorf("a file for the history: %w", err)
	}
	err = porcupine.Visualize(s.model(), info, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("drawing the history of %s: %w", p.Name, err)
	}
	return file.Name(), nil
}

// search looks for an order of the calls that were answered. Those that were not may have been done anywhere in it from when they were sent, or
// not at all: which of them have been is part of a world, so that they do not multiply the orders.
type search struct {
	pair *Pair
	lost []asked
}

// newSearch sorts a history into the calls with an answer and those without.
func newSearch(p *Pair, history []Event) (*search, []porcupine.Operation) {
	s := &search{pair: p}
	var calls []porcupine.Operation
	for _, e := range history {
		c := asked{Call: e.Call, sent: e.Sent, got: e.Got, from: instant(e.Sent).Add(-slack), to: instant(e.Got).Add(slack)}
		switch {
		case e.Answer != nil:
			calls = append(calls, porcupine.Operation{
				ClientId: e.Client, Input: c, Call: int64(e.Sent.Sub(begun(history))), Output: e.Answer, Return: int64(e.Got.Sub(begun(history))),
			})
		case e.Call.Verb != Show:
			c.to = instant(slices.MaxFunc(history, func(a, b Event) int { return a.Got.Compare(b.Got) }).Got).Add(slack)
			s.lost = append(s.lost, c)
		}
	}
	return s, calls
}

// begun is when the first call was sent.
func begun(history []Event) time.Time {
	return slices.MinFunc(history, func(a, b Event) int { return a.Sent.Compare(b.Sent) }).Sent
}

// instant is the database's idea of it: UTC, whole milliseconds.
func instant(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }

// step is that of an answered call, with lost ones that may have been done right before it. One that was sent after the call had ended was done
// after it.
func (s *search) step(w world, c asked, got *Answer) []world {
	for i := range s.lost {
		if w.lost>>i&1 == 1 && c.got.Before(s.lost[i].sent) {
			return nil
		}
	}
	var out []world
	for before := (worlds{w}); len(before) > 0; before = s.further(before, c) {
		for i := range before {
			out = append(out, s.pair.step(before[i], c, got)...)
		}
	}
	return out
}

// further gives the worlds in which one more of the lost calls was done, before a call with an answer, and to some effect.
func (s *search) further(before worlds, c asked) (more worlds) {
	for i, l := range s.lost {
		if c.got.Before(l.sent) {
			continue
		}
		if l.to.After(c.to) {
			l.to = c.to // decided later it may as well be done before a later call
		}
		for n := range before {
			if before[n].lost>>i&1 == 1 {
				continue
			}
			for _, next := range s.pair.step(before[n], l, nil) {
				next.lost |= 1 << i
				if !before[n].admits(&next) {
					more = more.join(next)
				}
			}
		}
	}
	return more
}

// worlds are all that a pair may be like at one point of an order: the state of the search.
type worlds []world

// join adds a world, unless one that is there admits all that it does; what the new one admits goes. Everything else being the same, an earlier clock admits more, and so does
// a lost call that may still be done, or not.
func (ws worlds) join(w world) worlds {
	for i := range ws {
		if ws[i].admits(&w) {
			return ws
		}
	}
	return append(slices.DeleteFunc(ws, func(other world) bool { return w.admits(&other) }), w)
}

func (w *world) admits(other *world) bool {
	if w.lost&^other.lost != 0 {
		return false
	}
	for i := range w.lives {
		one, two := &w.lives[i], &other.lives[i]
		if one.clock.After(two.clock) || one.row != two.row || one.past != two.past {
			return false
		}
	}
	return w.keys == other.keys
}

func (ws worlds) equal(others worlds) bool {
	if len(ws) != len(others) {
		return false
	}
	for _, w := range ws {
		if !slices.Contains(others, w) {
			return false
		}
	}
	return true
}

func (s *search) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return worlds{s.pair.begin()} },
		Step: func(state, input, output any) (bool, any) {
			ws, isState := state.(worlds)
			c, isCall := input.(asked)
			got, isAnswer := output.(*Answer)
			if !isState || !isCall || !isAnswer {
				return false, state
			}
			var out worlds
			for _, w := range ws {
				for _, next := range s.step(w, c, got) {
					out = out.join(next)
				}
			}
			return len(out) > 0, out
		},
		Equal: func(a, b any) bool {
			one, isState := a.(worlds)
			other, isToo := b.(worlds)
			return isState && isToo && one.equal(other)
		},
		DescribeOperation: func(input, output any) string {
			return fmt.Sprintf("%s: %s", input, output)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}
