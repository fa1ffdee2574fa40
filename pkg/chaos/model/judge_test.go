package model_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/chaos/model"
)

func judged(w *world) *model.Verdict { return model.Judge([]model.Promise{w.promise}, w.facts()) }

// A product that keeps its promises is found right, whatever was asked of it and whichever answers were lost.
func TestWhatIsRightIsFoundRight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := life(t)
		v := judged(w)
		require.True(t, v.Clean(), "%v\n%+v\n%+v", v.Findings, w.row, w.promise)
	})
}

// lie damages what was found; it gives false where there is nothing to damage in this way.
type lie struct {
	name  string
	class model.Class
	tell  func(w *world, f *model.Facts) bool
}

func stepTo(f *model.Facts, to model.State) int {
	return slices.IndexFunc(f.Rows[0].Steps, func(s model.Step) bool { return s.To == to })
}

func lies() []lie {
	return []lie{
		{"the row is gone", model.Lost, func(_ *world, f *model.Facts) bool { f.Rows = nil; return true }},
		{"a second row of another key", model.Doubled, func(_ *world, f *model.Facts) bool {
			second := f.Rows[0]
			second.ID, second.Keys = 8, []string{"another"}
			f.Rows = append(f.Rows, second)
			return true
		}},
		{"a second row of the same key", model.Doubled, func(_ *world, f *model.Facts) bool {
			second := f.Rows[0]
			second.ID = 8
			f.Rows = append(f.Rows, second)
			return true
		}},
		{"somebody else's", model.WrongState, func(_ *world, f *model.Facts) bool { f.Rows[0].User = "v"; return true }},
		{"the row is in another state", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Rows[0].State = model.Used
			return f.Rows[0].Steps[len(f.Rows[0].Steps)-1].To != model.Used
		}},
		{"the row is of a later version", model.WrongState, func(_ *world, f *model.Facts) bool { f.Rows[0].Version++; return true }},
		{"the row's end was moved", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Rows[0].Expires = f.Rows[0].Expires.Add(-time.Second)
			return true
		}},
		{"granted until another end", model.WrongState, func(w *world, _ *model.Facts) bool {
			w.promise.End = w.promise.End.Add(time.Second)
			return !slices.ContainsFunc(w.promise.Calls, func(c model.Call) bool { return c.Verb == model.Extend })
		}},
		{"the last step is not in history", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Rows[0].Steps = f.Rows[0].Steps[:len(f.Rows[0].Steps)-1]
			return true
		}},
		{"expired a second before its end", model.Early, func(_ *world, f *model.Facts) bool {
			i := stepTo(f, model.Expired)
			if i < 0 {
				return false
			}
			s := &f.Rows[0].Steps[i]
			s.At = s.Expires.Add(-time.Second)
			return s.From == model.Unused && s.Cause != "refund" && !s.At.Before(f.Rows[0].Steps[i-1].At)
		}},
		{"heard of as expired before its end", model.Early, func(_ *world, f *model.Facts) bool {
			for i := range f.Events {
				if f.Events[i].What == "expired" {
					f.Events[i].By = f.Rows[0].Expires.Add(-time.Millisecond)
					return true
				}
			}
			return false
		}},
		{"refused as expired while it lived", model.Early, func(w *world, f *model.Facts) bool {
			at := f.Rows[0].Steps[0].At
			w.promise.Calls = append([]model.Call{{
				Verb: model.Lock, Order: "c", Sent: at, Got: at.Add(time.Millisecond), Answer: model.Refused, Code: model.CodeExpired, Attempts: 1,
			}}, w.promise.Calls...)
			return true
		}},
		{"refused as another order's while it was nobody's", model.WrongState, func(w *world, f *model.Facts) bool {
			at := f.Rows[0].Steps[0].At
			w.promise.Calls = append([]model.Call{{
				Verb: model.Lock, Order: "c", Sent: at, Got: at.Add(time.Millisecond), Answer: model.Refused, Code: model.CodeLockedByOther, Attempts: 1,
			}}, w.promise.Calls...)
			return true
		}},
		{"a confirmed redemption that is not there", model.Lost, func(w *world, _ *model.Facts) bool {
			w.promise.Calls = append(w.promise.Calls, model.Call{Verb: model.Redeem, Order: "c", Sent: w.now, Got: w.now, Answer: model.Done, Attempts: 1})
			return true
		}},
		{"a payment that nobody answered", model.Lost, func(w *world, _ *model.Facts) bool {
			w.promise.Calls = append(w.promise.Calls, model.Call{Verb: model.Paid, Order: "c", Sent: begin, Answer: model.Done, Attempts: 1})
			return true
		}},
		{"a step that nobody asked for", model.WrongState, func(w *world, f *model.Facts) bool {
			i := stepTo(f, model.Locked)
			if i < 0 {
				return false
			}
			order := f.Rows[0].Steps[i].Order
			w.promise.Calls = slices.DeleteFunc(w.promise.Calls, func(c model.Call) bool { return c.Order == order })
			return true
		}},
		{"an ended coupon that is still unused", model.Stuck, func(_ *world, f *model.Facts) bool {
			row := &f.Rows[0]
			i := len(row.Steps) - 1
			if row.Steps[i].To != model.Expired || row.Steps[i].From != model.Unused {
				return false
			}
			row.Steps, row.State, row.Version, row.Ended = row.Steps[:i], model.Unused, row.Version-1, false
			return true
		}},
		{"an event is missing", model.Lost, func(_ *world, f *model.Facts) bool { f.Events = f.Events[1:]; return true }},
		{"an event of another id", model.Doubled, func(_ *world, f *model.Facts) bool {
			second := f.Events[0]
			second.ID += "x"
			f.Events = append(f.Events, second)
			return true
		}},
		{"an event of what never was", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Events = append(f.Events, model.Event{ID: "7:99:used", What: "used", Coupon: 7, Version: 99, Times: 1, By: f.High})
			return true
		}},
		{"an event of a coupon that is not there", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Events = append(f.Events, model.Event{ID: "9:1:issued", What: "issued", Coupon: 9, Version: 1, Times: 1, By: f.High})
			return true
		}},
		{"no notice", model.Lost, func(_ *world, f *model.Facts) bool {
			f.Notices = []model.Notice{} // a coupon that is refunded past its end may be told of, or not
			return slices.ContainsFunc(f.Rows[0].Steps, func(s model.Step) bool { return s.To == model.Expired && s.From != model.Used })
		}},
		{"two notices", model.NoticesDoubled, func(_ *world, f *model.Facts) bool {
			if len(f.Notices) == 0 {
				return false
			}
			second := f.Notices[0]
			second.Window++
			f.Notices = append(f.Notices, second)
			return true
		}},
		{"told of as expired, and used", model.WrongState, func(_ *world, f *model.Facts) bool {
			f.Notices = append(f.Notices, model.Notice{Window: 1, Channel: "inbox", Coupons: []uint64{7}})
			return stepTo(f, model.Expired) < 0
		}},
		{"an SMS came twice", model.NoticesDoubled, func(_ *world, f *model.Facts) bool { f.Arrived["1-sms"] = 2; return true }},
		{"something waits", model.Stuck, func(_ *world, f *model.Facts) bool { f.Unsettled = []string{"3 messages in the outbox"}; return true }},
	}
}

// TestEveryLieIsFound tells one lie about a life that was right, and wants it found under its class.
func TestEveryLieIsFound(t *testing.T) {
	t.Parallel()
	for _, l := range lies() {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			told := 0
			rapid.Check(t, func(t *rapid.T) {
				w := life(t)
				f := w.facts()
				f.Rows[0].Steps = slices.Clone(f.Rows[0].Steps)
				f.Events, f.Notices = slices.Clone(f.Events), slices.Clone(f.Notices)
				if !l.tell(w, &f) {
					return
				}
				told++
				v := model.Judge([]model.Promise{w.promise}, f)
				require.NotZero(t, v.Counts[l.class], "%s: %v", l.name, v.Findings)
				require.False(t, v.Clean())
			})
			require.NotZero(t, told, "no life gave an occasion for it")
		})
	}
}

// A grant that was refused is right if its end had passed, and only then.
func TestRefusedGrants(t *testing.T) {
	t.Parallel()
	p := model.Promise{Key: "k", User: "u", End: begin, Sent: begin.Add(-time.Second), Got: begin.Add(time.Second), Answer: model.Refused, Code: model.CodeAlreadyEnded}
	f := model.Facts{Low: begin, High: begin}
	require.True(t, model.Judge([]model.Promise{p}, f).Clean())
	p.Got = begin.Add(-time.Millisecond)
	require.Equal(t, 1, model.Judge([]model.Promise{p}, f).Counts[model.WrongState])
	p.Answer, p.Code = model.Unknown, ""
	require.True(t, model.Judge([]model.Promise{p}, f).Clean(), "without an answer it may be there or not")
	p.Answer = model.Done
	require.Equal(t, 1, model.Judge([]model.Promise{p}, f).Counts[model.Lost])
	f.GrantRefused = map[string]string{"k": model.CodeAlreadyEnded}
	f.High = begin.Add(time.Minute)
	p.Got = time.Time{}
	require.True(t, model.Judge([]model.Promise{p}, f).Clean(), "an event told of the refusal")
}
