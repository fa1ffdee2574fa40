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

func (p *Pair) model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{p.begin()} },
		Step: func(state, input, output any) []any {
			w, isWorld := state.(world)
			c, isAsked := input.(asked)
			got, isAnswer := output.(*Answer)
			if !isWorld || !isAsked || !isAnswer {
				return nil
			}
			var out []any
			for _, next := range p.step(w, c, got) {
				out = append(out, next)
			}
			return out
		},
		Equal: func(a, b any) bool { return a == b },
		DescribeOperation: func(input, output any) string {
			if got, ok := output.(*Answer); ok && got != nil {
				return fmt.Sprintf("%s: %s", input, got)
			}
			return fmt.Sprintf("%s: cut off", input)
		},
		DescribeState: func(state any) string { return fmt.Sprint(state) },
	}
	return m.ToModel()
}
