package model_test

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/chaos/model"
)

// world is a small product that keeps its promises, written for the test alone: it takes calls one after the other, loses some of
// the answers, and writes down rows, events and notices. What it leaves, the judge must find right.
type world struct {
	now      time.Time
	row      model.Row
	events   []model.Event
	notices  []model.Notice
	promise  model.Promise
	done     map[string]bool // verb and order
	closed   map[string]bool
	refunded map[string]bool
	over     map[string]bool // orders whose lock is over, and nothing came of it
}

var begin = time.Date(2026, 10, 31, 16, 0, 0, 0, time.UTC)

func newWorld(id uint64, end time.Time) *world {
	key := fmt.Sprintf("key-%d", id)
	w := &world{
		now: begin, row: model.Row{ID: id, Keys: []string{key}, User: "u", Expires: end},
		promise: model.Promise{Key: key, User: "u", End: end, Sent: begin, Answer: model.Done, ID: id},
		done:    map[string]bool{}, closed: map[string]bool{}, refunded: map[string]bool{}, over: map[string]bool{},
	}
	w.step(model.Unused, "grant", "", end, time.Time{}, "issued")
	w.promise.Got = w.tick(5 * time.Millisecond)
	return w
}

func (w *world) tick(d time.Duration) time.Time {
	w.now = w.now.Add(d)
	return w.now
}

func (w *world) step(to model.State, cause, order string, end, lock time.Time, what string) {
	w.row.Version++
	w.row.Steps = append(w.row.Steps, model.Step{
		Version: w.row.Version, From: w.row.State, To: to, Cause: cause, Order: order, At: w.now, Expires: end, Lock: lock,
	})
	w.row.State, w.row.Expires, w.row.Lock, w.row.Order = to, end, time.Time{}, ""
	if to == model.Locked {
		w.row.Lock = lock
	}
	if to == model.Locked || to == model.Used {
		w.row.Order = order
	}
	w.row.Used, w.row.Ended = to == model.Used, to == model.Expired
	w.events = append(w.events, model.Event{
		ID: fmt.Sprintf("%d:%d:%s", w.row.ID, w.row.Version, what), What: what, Coupon: w.row.ID, Version: w.row.Version, Times: 1, By: w.now.Add(20 * time.Millisecond),
	})
	if what == "expired" {
		w.notices = append(w.notices, model.Notice{Window: w.row.ID, Channel: "inbox", State: "sent", Coupons: []uint64{w.row.ID}})
	}
}

func (w *world) ended() bool { return !w.row.Expires.After(w.now) }
func (w *world) live() bool  { return w.row.State == model.Locked && w.row.Lock.After(w.now) }

// settle is what the ladder or the sweep does, when it comes by.
func (w *world) settle(cause string) {
	switch {
	case w.row.State == model.Unused && w.ended():
		w.step(model.Expired, cause, "", w.row.Expires, time.Time{}, "expired")
	case w.row.State == model.Locked && !w.live() && w.ended():
		w.over[w.row.Order] = true
		w.step(model.Expired, "lock", w.row.Order, w.row.Expires, w.row.Lock, "expired")
	case w.row.State == model.Locked && !w.live():
		w.over[w.row.Order] = true
		w.step(model.Unused, "lock", w.row.Order, w.row.Expires, w.row.Lock, "released")
	}
}

// act does a verb; it gives answer and code.
func (w *world) act(v model.Verb, order string, lock time.Duration, end time.Time) (model.Answer, string) {
	if w.row.State == model.Locked && !w.live() {
		w.settle("ladder")
	}
	row, mine := &w.row, w.row.Order == order
	gone := func() (model.Answer, string) {
		return model.Refused, map[model.State]string{
			model.Used: model.CodeAlreadyUsed, model.Expired: model.CodeExpired, model.Voided: model.CodeVoided, model.Unused: model.CodeExpired,
		}[row.State]
	}
	name := string(v) + order
	switch v {
	case model.Lock:
		switch {
		case row.State == model.Locked && mine:
			return model.Repeated, ""
		case row.State == model.Locked:
			return model.Refused, model.CodeLockedByOther
		case row.State != model.Unused || w.ended():
			return gone()
		case w.closed[order]:
			return model.Refused, model.CodeOrderClosed
		case w.refunded[order]:
			return model.Refused, model.CodeOrderRefunded
		}
		delete(w.over, order)
		w.step(model.Locked, "order", order, row.Expires, w.now.Add(lock).Truncate(time.Second).Add(time.Second), "locked")
	case model.Redeem, model.Paid:
		switch {
		case w.done["redeem"+order]:
			return model.Repeated, ""
		case row.State == model.Locked && !mine:
			return model.Refused, model.CodeLockedByOther
		case row.State != model.Locked && (row.State != model.Unused || w.ended()):
			return gone()
		case w.refunded[order]:
			return model.Refused, model.CodeOrderRefunded
		}
		w.done["redeem"+order] = true
		w.step(model.Used, "order", order, row.Expires, row.Lock, "used")
	case model.Release, model.Closed, model.Failed:
		if v == model.Closed {
			w.closed[order] = true
		}
		switch {
		case row.State == model.Locked && mine && w.ended():
			w.over[order] = true
			w.step(model.Expired, "lock", order, row.Expires, row.Lock, "expired")
		case row.State == model.Locked && mine:
			w.over[order] = true
			w.step(model.Unused, "order", order, row.Expires, row.Lock, "released")
		case row.State == model.Locked:
			return model.Refused, model.CodeLockedByOther
		case w.over[order]:
			return model.Repeated, ""
		case row.State == model.Unused && !w.ended():
			return model.Refused, model.CodeNotLocked
		default:
			return gone()
		}
	case model.Refund, model.Refunded:
		if v == model.Refunded {
			w.refunded[order] = true
		}
		switch {
		case w.done["refund"+order]:
			return model.Repeated, ""
		case row.State == model.Used && !mine:
			return model.Refused, model.CodeUsedByOther
		case v == model.Refunded && row.State == model.Locked && mine:
			return w.act(model.Release, order, 0, end)
		case row.State != model.Used:
			return model.Refused, model.CodeNotUsed
		}
		w.done["refund"+order] = true
		if w.ended() {
			w.step(model.Expired, "refund", order, row.Expires, time.Time{}, "expired")
		} else {
			w.step(model.Unused, "refund", order, row.Expires, time.Time{}, "refunded")
		}
	case model.Extend:
		switch {
		case row.State != model.Unused && row.State != model.Locked || row.State == model.Unused && w.ended():
			return gone()
		case end.Equal(row.Expires):
			return model.Repeated, ""
		case !end.After(w.now):
			return model.Refused, model.CodeInvalid
		}
		w.step(row.State, "admin", row.Order, end, row.Lock, "extended")
	case model.Void:
		switch {
		case w.done[string(model.Void)]:
			return model.Repeated, ""
		case row.State != model.Unused && row.State != model.Locked || row.State == model.Unused && w.ended():
			return gone()
		}
		w.done[string(model.Void)] = true
		w.step(model.Voided, "admin", row.Order, row.Expires, row.Lock, "voided")
	default:
		return model.Refused, name
	}
	return model.Done, ""
}

// ask is a call as the driver makes it: attempts of which some lose their question, and some their answer.
func (w *world) ask(t *rapid.T, v model.Verb, order string) {
	c := model.Call{Verb: v, Order: order, Sent: w.now}
	lock := time.Duration(rapid.IntRange(1, 20).Draw(t, "lock")) * time.Second
	if v == model.Extend {
		c.End = w.promise.End.Add(time.Duration(rapid.IntRange(-10, 20).Draw(t, "move")) * time.Second)
	}
	pass := func() { w.tick(time.Duration(rapid.IntRange(1, 900).Draw(t, "ms")) * time.Millisecond) }
	if v == model.Paid || v == model.Closed || v == model.Failed || v == model.Refunded {
		c.Answer, c.Attempts = model.Done, 1
		pass()
		answer, code := w.act(v, order, 0, time.Time{})
		if v == model.Paid && answer == model.Refused {
			w.promise.Calls = append(w.promise.Calls, c)
			w.told(order, code)
			return
		}
		w.promise.Calls = append(w.promise.Calls, c)
		return
	}
	c.Answer = model.Unknown
	for c.Answer == model.Unknown && c.Attempts < 3 {
		c.Attempts++
		pass()
		fate := rapid.SampledFrom([]string{"fine", "fine", "fine", "question lost", "answer lost"}).Draw(t, "fate")
		if fate == "question lost" {
			continue
		}
		answer, code := w.act(v, order, lock, c.End)
		pass()
		if fate == "fine" {
			c.Answer, c.Code, c.Got = answer, code, w.now
		}
	}
	w.promise.Calls = append(w.promise.Calls, c)
}

func (w *world) told(order, code string) { w.done["unpaid"+order+code] = true }

// facts are what an outsider finds.
func (w *world) facts() model.Facts {
	f := model.Facts{
		Low: w.now, High: w.now.Add(time.Millisecond), Rows: []model.Row{w.row}, Events: w.events, Notices: w.notices, Arrived: map[string]int{},
		RedeemRefused: map[string]string{}, GrantRefused: map[string]string{},
	}
	if f.Notices == nil {
		f.Notices = []model.Notice{}
	}
	for _, order := range []string{"a", "b"} {
		f.RedeemRefused[fmt.Sprintf("%d:%s", w.row.ID, order)] = model.CodeExpired
	}
	return f
}

// life draws a whole life, until everything has settled.
func life(t *rapid.T) *world {
	w := newWorld(7, begin.Add(time.Duration(rapid.IntRange(5, 40).Draw(t, "end"))*time.Second))
	verbs := []model.Verb{
		model.Lock, model.Lock, model.Redeem, model.Release, model.Refund, model.Extend, model.Void, model.Paid, model.Closed, model.Failed, model.Refunded,
	}
	for range rapid.IntRange(0, 8).Draw(t, "calls") {
		w.tick(time.Duration(rapid.IntRange(0, 6000).Draw(t, "wait")) * time.Millisecond)
		if rapid.Bool().Draw(t, "rung") {
			w.settle(rapid.SampledFrom([]string{"ladder", "sweep", "lazy"}).Draw(t, "by"))
		}
		w.ask(t, rapid.SampledFrom(verbs).Draw(t, "verb"), rapid.SampledFrom([]string{"a", "b"}).Draw(t, "order"))
	}
	w.tick(2 * time.Minute)
	w.settle("ladder")
	w.settle("sweep")
	return w
}
