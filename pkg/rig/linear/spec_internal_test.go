package linear

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

const patience = 30 * time.Second

// truth is a history that came about by one call after the other, each decided at an instant between Sent and Got.
type truth struct {
	pair     *Pair
	w        world
	now      time.Time
	history  []Event
	moved    []bool // the call of the event changed a coupon
	replayed []bool // the answer is a key's first one
}

// tell draws one. No instant is so near to a whole second that the slack of clocks could take it for the other side.
func tell(t *rapid.T) *truth {
	begin := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	p := &Pair{Name: "pair", User: "u"}
	for i := range p.Coupons {
		terms := coupon.Terms{
			TemplateID: 1, Revision: 1, Value: 500, Currency: "CNY", Precision: coupon.Exact, LateWindow: time.Second,
			LatePay: rapid.SampledFrom([]coupon.LatePay{coupon.HonourLock, coupon.Strict}).Draw(t, "late pay"),
		}
		end := begin.Add(time.Duration(rapid.IntRange(2, 6).Draw(t, "end")) * time.Second)
		p.Coupons[i] = coupon.Coupon{
			Row: coupon.Row{
				ID: uint64(i + 1), Status: coupon.Unused, Version: 1, ValidFrom: begin, ExpiresAt: end, DueAt: end, LatePay: terms.LatePay,
				LateWindow: terms.LateWindow,
			},
			Terms: terms, UserID: p.User, GrantedAt: begin,
		}
	}
	h := &truth{pair: p, w: p.begin(), now: begin}
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	var keyed []Call
	for range rapid.IntRange(3, 14).Draw(t, "calls") {
		h.pass(r)
		c := drawCall(r, p)
		switch {
		case len(keyed) > 0 && r.IntN(4) == 0:
			c = keyed[r.IntN(len(keyed))]
		case c.Verb != Show && len(keyed) < MaxKeys && r.IntN(3) == 0:
			c.Key = len(keyed)
			keyed = append(keyed, c)
		}
		h.call(c)
	}
	for i := range p.Coupons {
		h.pass(r)
		h.call(Call{Verb: Show, Of: []int{i}, Key: NoKey})
	}
	return h
}

// pass lets time pass, and now and then a worker come by.
func (h *truth) pass(r *rand.Rand) {
	h.now = h.now.Truncate(time.Second).Add(time.Duration(r.IntN(3))*time.Second + time.Duration(50+r.IntN(900))*time.Millisecond)
	if last := len(h.history) - 1; last >= 0 && h.now.Before(h.history[last].Got.Add(10*time.Millisecond)) {
		h.now = h.now.Add(time.Second)
	}
	for i := range h.w.lives {
		all := h.pair.settlements(i, h.w.lives[i], h.now)
		h.w.lives[i] = all[r.IntN(len(all))]
	}
}

// call takes the call at this instant.
func (h *truth) call(c Call) {
	answer, before, replayed := Answer{}, h.w.lives, false
	switch {
	case c.Verb == Show:
		shown := h.pair.coupon(c.Of[0], h.w.lives[c.Of[0]])
		answer.Shown[0] = showOf(h.now, &shown)
	case c.Key != NoKey && h.w.keys[c.Key] != (Answer{}):
		answer, replayed = h.w.keys[c.Key], true
	default:
		h.w, answer = h.pair.act(h.w, c, h.now)
		if c.Key != NoKey && answer.Code != coupon.CodeInvalid {
			h.w.keys[c.Key] = answer
		}
	}
	moved := false
	for i := range before {
		moved = moved || before[i].row.Version != h.w.lives[i].row.Version
	}
	h.history = append(h.history, Event{
		Client: len(h.history) % 3, Call: c, Answer: &answer, Sent: h.now.Add(-time.Millisecond), Got: h.now.Add(time.Millisecond),
	})
	h.moved, h.replayed = append(h.moved, moved), append(h.replayed, replayed)
}

// What was one call after the other is found to be so, however long each took, and whichever answers were lost; and no lost answer hides a lie.
func TestTheTruthIsFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := tell(t)
		lost := 0
		for i := range h.history {
			e := &h.history[i]
			e.Client = i
			e.Sent = e.Sent.Add(-time.Duration(rapid.IntRange(0, 1500).Draw(t, "early")) * time.Millisecond)
			e.Got = e.Got.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "late")) * time.Millisecond)
			if lost < mostCut && rapid.IntRange(0, 9).Draw(t, "lost") == 0 {
				e.Answer = nil
				lost++
			}
		}
		require.NoError(t, h.pair.Check(h.history, patience), "%s", text(h.history))

		last := &h.history[len(h.history)-1]
		if last.Answer == nil {
			return
		}
		answer := *last.Answer
		answer.Shown[0].Version += 10
		last.Answer = &answer
		require.ErrorIs(t, h.pair.Check(h.history, patience), ErrNotLinear, "%s", text(h.history))
	})
}

func text(history []Event) (out string) {
	for _, e := range history {
		out += fmt.Sprintf("%s–%s %s: %v\n", clock(e.Sent), clock(e.Got), e.Call, e.Answer)
	}
	return out
}

// lie damages a history; it gives false where there is nothing to damage in this way.
type lie struct {
	name string
	tell func(h *truth) bool
}

// find gives the last event that is so, or nil.
func (h *truth) find(is func(i int, e *Event) bool) *Event {
	for i := len(h.history) - 1; i >= 0; i-- {
		if is(i, &h.history[i]) {
			return &h.history[i]
		}
	}
	return nil
}

// movedAlone reports whether the call changed this coupon: what workers do is nobody's word.
func (h *truth) movedAlone(i, of int) bool {
	return h.moved[i] && slices.Equal(h.history[i].Call.Of, []int{of})
}

func (h *truth) freshLock() *Event {
	return h.find(func(i int, e *Event) bool {
		return e.Call.Verb == coupon.VerbLock && h.moved[i] && !e.Answer.Shown[0].Repeated
	})
}

func lies() []lie {
	return []lie{
		{"a step is answered as refused", func(h *truth) bool {
			e := h.find(func(i int, _ *Event) bool { return h.moved[i] })
			if e == nil {
				return false
			}
			e.Answer = &Answer{Code: coupon.CodeAlreadyUsed}
			for i := range e.Call.Of {
				e.Answer.Shown[i] = Shown{Code: coupon.CodeAlreadyUsed, State: coupon.Used.String()}
			}
			return true
		}},
		{"a refusal is answered as done", func(h *truth) bool {
			at := h.w
			e := h.find(func(i int, e *Event) bool { return e.Answer.Code != "" && !h.replayed[i] && e.Call.Key == NoKey })
			if e == nil {
				return false
			}
			e.Answer = &Answer{}
			for i, of := range e.Call.Of {
				c := h.pair.coupon(of, at.lives[of])
				e.Answer.Shown[i] = showOf(e.Got, &c)
			}
			if e.Call.Verb.OfOrder() {
				e.Answer.Now = instant(e.Got.Add(-time.Millisecond))
			}
			return true
		}},
		{"two orders hold one lock", func(h *truth) bool {
			e := h.freshLock()
			if e == nil {
				return false
			}
			second, answer := *e, *e.Answer
			second.Client, second.Call.Order, second.Call.Key = 7, MaxOrders-1, NoKey
			second.Sent, second.Got = e.Got.Add(time.Millisecond), e.Got.Add(3*time.Millisecond)
			answer.Now = instant(second.Sent)
			for i := range second.Call.Of {
				answer.Shown[i].OrderID = h.pair.OrderID(second.Call.Order)
			}
			second.Answer = &answer
			h.history = append(h.history, second)
			return true
		}},
		{"a reader is shown what was before", func(h *truth) bool {
			last := &h.history[len(h.history)-1]
			moved := false
			earlier := h.find(func(i int, e *Event) bool {
				moved = moved || h.movedAlone(i, last.Call.Of[0])
				return moved && e.Call.Verb == Show && e.Call.Of[0] == last.Call.Of[0]
			})
			if earlier == nil {
				return false
			}
			last.Answer = earlier.Answer
			return true
		}},
		{"shown as expired before the end", func(h *truth) bool {
			e := h.find(func(_ int, e *Event) bool {
				return e.Call.Verb == Show && e.Answer.Shown[0].State == coupon.Unused.String()
			})
			if e == nil {
				return false
			}
			answer := *e.Answer
			answer.Shown[0].State = coupon.Expired.String()
			e.Answer = &answer
			return true
		}},
		{"shown as unused after the end", func(h *truth) bool {
			e := h.find(func(_ int, e *Event) bool {
				return e.Call.Verb == Show && e.Answer.Shown[0].State == coupon.Expired.String()
			})
			if e == nil {
				return false
			}
			answer := *e.Answer
			answer.Shown[0].State = coupon.Unused.String()
			e.Answer = &answer
			return true
		}},
		{"a lock is a second too long", func(h *truth) bool {
			e := h.freshLock()
			if e == nil {
				return false
			}
			answer := *e.Answer
			answer.Shown[0].LockUntil = answer.Shown[0].LockUntil.Add(time.Second)
			e.Answer = &answer
			return true
		}},
		{"half of an order was locked", func(h *truth) bool {
			refused := h.find(func(_ int, e *Event) bool {
				return e.Call.Verb == coupon.VerbLock && len(e.Call.Of) == 2 && e.Answer.Code != ""
			})
			if refused == nil {
				return false
			}
			last := &h.history[len(h.history)-1]
			answer := *last.Answer
			s := &answer.Shown[0]
			s.State, s.Stored, s.OrderID, s.Version = coupon.Locked.String(), coupon.Locked.String(), h.pair.OrderID(refused.Call.Order), s.Version+1
			last.Answer = &answer
			return true
		}},
		{"a key has two answers", func(h *truth) bool {
			e := h.find(func(i int, _ *Event) bool { return h.replayed[i] })
			if e == nil {
				return false
			}
			answer := *e.Answer
			answer.Shown[0].Repeated = !answer.Shown[0].Repeated
			e.Answer = &answer
			return true
		}},
		{"what was done is lost", func(h *truth) bool {
			last := &h.history[len(h.history)-1]
			first := h.pair.Coupons[last.Call.Of[0]]
			if h.find(func(i int, _ *Event) bool { return h.movedAlone(i, last.Call.Of[0]) }) == nil {
				return false
			}
			last.Answer = &Answer{Shown: [2]Shown{showOf(last.Got, &first)}}
			return true
		}},
		{"decided after the answer", func(h *truth) bool {
			e := h.find(func(i int, e *Event) bool { return !e.Answer.Now.IsZero() && !h.replayed[i] })
			if e == nil {
				return false
			}
			answer := *e.Answer
			answer.Now = answer.Now.Add(20 * time.Millisecond)
			e.Answer = &answer
			return true
		}},
		{"more steps than were asked for", func(h *truth) bool {
			last := &h.history[len(h.history)-1]
			answer := *last.Answer
			answer.Shown[0].Version += 10
			last.Answer = &answer
			return true
		}},
	}
}

// TestPlantedLiesAreFound tells one lie about a history that was true.
func TestPlantedLiesAreFound(t *testing.T) {
	t.Parallel()
	for _, l := range lies() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			told := 0
			rapid.Check(t, func(t *rapid.T) {
				h := tell(t)
				if !l.tell(h) {
					return
				}
				told++
				require.ErrorIs(t, h.pair.Check(h.history, patience), ErrNotLinear, "%s", text(h.history))
			})
			require.NotZero(t, told, "no history gave an occasion for it")
		})
	}
}

// A call that was cut off may have been done or not, but not both: once it was seen it stays.
func TestACutOffCallIsDoneOrNot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := tell(t)
		h.now = h.now.Add(time.Second)
		c := Call{Verb: coupon.VerbVoid, Of: []int{0}, Key: NoKey, BreakLock: true}
		h.call(c)
		h.history[len(h.history)-1].Answer = nil
		done := h.w.lives[0].row.Status == coupon.Voided && h.moved[len(h.moved)-1]
		before := len(h.history)
		h.now = h.now.Add(time.Second)
		h.call(Call{Verb: Show, Of: []int{0}, Key: NoKey})
		require.NoError(t, h.pair.Check(h.history, patience), "%s", text(h.history))
		if !done {
			return
		}
		seen := h.history[before]
		unseen := slices.IndexFunc(h.history, func(e Event) bool { return e.Call.Verb == Show && e.Call.Of[0] == 0 })
		seen.Answer, seen.Sent, seen.Got = h.history[unseen].Answer, seen.Sent.Add(time.Second), seen.Got.Add(time.Second)
		h.history = append(h.history, seen)
		require.ErrorIs(t, h.pair.Check(h.history, patience), ErrNotLinear, "%s", text(h.history))
	})
}

// The page that is drawn of a history that no order explains names its calls.
func TestAPageIsDrawn(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	h := rapid.Custom(tell).Example(1)
	last := &h.history[len(h.history)-1]
	last.Answer = &Answer{Shown: [2]Shown{{State: "a state that there is not"}}}
	require.ErrorIs(t, h.pair.Check(h.history, patience), ErrNotLinear)
	name, err := h.pair.Draw(h.history, patience)
	require.NoError(t, err)
	page, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(page), "a state that there is not")
}
