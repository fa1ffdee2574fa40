package linear

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// What a history can be found to be.
var (
	ErrNotLinear = errors.New("no order of the calls explains the answers") //nolint:gochecknoglobals // a constant error
	ErrTooLong   = errors.New("no order of the calls was found in time")    //nolint:gochecknoglobals // likewise
)

// Check looks for an order of the calls that explains every answer, for at most limit.
func (p *Pair) Check(history []Event, limit time.Duration) error {
	result, _ := p.search(history, limit)
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
	_, info := p.search(history, limit)
	file, err := os.CreateTemp("", "lapse-"+p.Name+"-*.html")
	if err != nil {
		return "", fmt.Errorf("a file for the history: %w", err)
	}
	err = porcupine.Visualize(p.model(), info, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("drawing the history of %s: %w", p.Name, err)
	}
	return file.Name(), nil
}

func (p *Pair) search(history []Event, limit time.Duration) (porcupine.CheckResult, porcupine.LinearizationInfo) {
	return porcupine.CheckOperationsVerbose(p.model(), operations(history), limit)
}

// operations are the events as Porcupine takes them. A call without an answer may be done until the end, and returns after it.
func operations(history []Event) []porcupine.Operation {
	if len(history) == 0 {
		return nil
	}
	got := func(a, b Event) int { return a.Got.Compare(b.Got) }
	first := slices.MinFunc(history, func(a, b Event) int { return a.Sent.Compare(b.Sent) }).Sent
	last := slices.MaxFunc(history, got).Got
	out := make([]porcupine.Operation, len(history))
	for i, e := range history {
		c := asked{Call: e.Call, from: instant(e.Sent).Add(-slack), to: instant(e.Got).Add(slack)}
		out[i] = porcupine.Operation{ClientId: e.Client, Call: int64(e.Sent.Sub(first)), Output: e.Answer, Return: int64(e.Got.Sub(first))}
		if e.Answer == nil {
			c.to = instant(last).Add(slack)
			out[i].Return = math.MaxInt64
		}
		out[i].Input = c
	}
	return out
}

// instant is the database's idea of it: UTC, whole milliseconds.
func instant(at time.Time) time.Time { return at.UTC().Truncate(time.Millisecond) }

// worlds are all that a pair may be like at one point of an order: the state of the search.
type worlds []world

// join adds a world, unless one that is there admits all that it does. An earlier clock admits more, everything else being the same.
func (ws worlds) join(w world) worlds {
	for i := range ws {
		switch {
		case ws[i].admits(&w):
			return ws
		case w.admits(&ws[i]):
			ws[i] = w
			return ws
		}
	}
	return append(ws, w)
}

func (w *world) admits(other *world) bool {
	for i := range w.lives {
		if w.lives[i].clock.After(other.lives[i].clock) {
			return false
		}
	}
	same := *other
	for i := range same.lives {
		same.lives[i].clock = w.lives[i].clock
	}
	return *w == same
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

func (p *Pair) model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return worlds{p.begin()} },
		Step: func(state, input, output any) (bool, any) {
			ws, isState := state.(worlds)
			c, isCall := input.(asked)
			got, isAnswer := output.(*Answer)
			if !isState || !isCall || !isAnswer {
				return false, state
			}
			var out worlds
			for _, w := range ws {
				for _, next := range p.step(w, c, got) {
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
			if got, ok := output.(*Answer); ok && got != nil {
				return fmt.Sprintf("%s: %s", input, got)
			}
			return fmt.Sprintf("%s: cut off", input)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
}
