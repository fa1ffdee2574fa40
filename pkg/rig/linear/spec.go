package linear

import (
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// slack is what the clocks of the clients and of the database, which stand on one machine, may differ by when they are rounded to the
// millisecond.
const slack = 2 * time.Millisecond

// Pair is two coupons of one user, as they were granted.
type Pair struct {
	Name    string // its orders and keys begin with it
	User    string
	Coupons [2]coupon.Coupon
}

// OrderID is what the pair's order is called.
func (p *Pair) OrderID(i int) string { return p.Name + "-" + strconv.Itoa(i) }

// KeyText is what the pair's idempotency key is called.
func (p *Pair) KeyText(i int) string { return p.Name + "-key-" + strconv.Itoa(i) }

// world is what a pair may be like at some point.
type world struct {
	lives [2]life
	keys  [MaxKeys]Answer // remembered; the zero value: the key is free
	lost  uint64          // which of the calls without an answer, of which there are a few, have been done
}

// life is one of the coupons.
type life struct {
	row   coupon.Row
	clock time.Time // of the latest act or settlement: the next has none before
	past  [MaxOrders]past
}

// past is what an order has done to the coupon.
type past struct{ redeem, release, refund memory }

type memory struct{ done, over bool }

func (p *past) of(v coupon.Verb) *memory {
	switch v {
	case coupon.VerbRedeem:
		return &p.redeem
	case coupon.VerbRelease:
		return &p.release
	case coupon.VerbRefund:
		return &p.refund
	default:
		return &memory{}
	}
}

// begin is the pair after its grants.
func (p *Pair) begin() world {
	var w world
	for i := range p.Coupons {
		w.lives[i] = life{row: p.Coupons[i].Row, clock: p.Coupons[i].GrantedAt}
	}
	return w
}

// asked is a call with when the database may have dealt with it.
type asked struct {
	Call
	sent, got time.Time // on the clients' clock
	from, to  time.Time // on the database's, whole milliseconds
}

// step gives what a pair may be like after a call with this answer, nil if there was none and the call was done nevertheless; nothing, if the
// call cannot have been answered so.
func (p *Pair) step(w world, c asked, got *Answer) []world {
	if c.Verb == Show {
		return p.show(w, c, got)
	}
	var out []world
	if c.Key != NoKey && w.keys[c.Key] != (Answer{}) {
		if got != nil && w.keys[c.Key].matches(*got) {
			out = append(out, w)
		}
		return out
	}
	for _, at := range c.instants(w, got) {
		for _, settled := range p.settled(w, c.Of, at) {
			next, want := p.act(settled, c.Call, at)
			switch {
			case got == nil:
				out = append(out, next) // done, and its key given back
				want.Now = time.Time{}
			case !want.matches(*got):
				continue
			}
			if c.Key != NoKey && want.Code != coupon.CodeInvalid { // what cannot be is not remembered
				next.keys[c.Key] = want
			}
			if got != nil || c.Key != NoKey {
				out = append(out, next)
			}
		}
	}
	return out
}

// instants are those at which the call may have been decided that could make a difference: all that the table compares, and all that it
// rounds, are whole seconds.
func (c asked) instants(w world, got *Answer) []time.Time {
	from, to := c.from, c.to
	for _, i := range c.Of {
		if at := w.lives[i].clock; c.Verb != Show && at.After(from) {
			from = at
		}
	}
	if got != nil && !got.Now.IsZero() {
		if got.Now.Before(from) || got.Now.After(to) {
			return nil
		}
		return []time.Time{got.Now}
	}
	if to.Before(from) {
		return nil
	}
	out := []time.Time{from}
	for at := from.Truncate(time.Second); !at.After(to); at = at.Add(time.Second) {
		for _, at := range []time.Time{at, at.Add(time.Millisecond)} {
			if at.After(from) && !at.After(to) {
				out = append(out, at)
			}
		}
	}
	return out
}

// settled gives the world, and what workers may have made of it by the instant.
func (p *Pair) settled(w world, of []int, by time.Time) []world {
	out := []world{w}
	for _, i := range of {
		for _, at := range out {
			for _, l := range p.settlements(i, at.lives[i], by)[1:] {
				at.lives[i] = l
				out = append(out, at)
			}
		}
	}
	return out
}

func (p *Pair) settlements(i int, l life, by time.Time) []life {
	out := []life{l}
	for n := 0; n < len(out); n++ {
		for _, at := range []time.Time{out[n].row.LockUntil, out[n].row.ExpiresAt} {
			if at.Before(out[n].clock) {
				at = out[n].clock
			}
			if at.After(by) {
				continue
			}
			next := out[n]
			if p.settle(i, &next, at) {
				out = append(out, next)
			}
		}
	}
	return out
}

// settle is a worker that comes by; it gives false if it finds nothing to do.
func (p *Pair) settle(i int, l *life, at time.Time) bool {
	d := coupon.Decide(&l.row, coupon.Trigger{Kind: coupon.KindExpire, CouponID: l.row.ID, Origin: coupon.OriginSweep}, at)
	step, ok := d.Step(&l.row)
	if !ok {
		return false
	}
	p.take(i, l, []coupon.Step{step}, &coupon.Order{}, at)
	return true
}

// take takes steps, and remembers whose they were.
func (p *Pair) take(i int, l *life, steps []coupon.Step, o *coupon.Order, at time.Time) {
	c := p.coupon(i, *l)
	for _, t := range c.Take(steps, o, at) {
		for order := range l.past {
			if t.OrderID != p.OrderID(order) {
				continue
			}
			for _, verb := range []coupon.Verb{coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbRefund} {
				m := l.past[order].of(verb)
				ask := coupon.Ask{Verb: verb, Done: m.done, Over: m.over}
				ask.Remember(t.From, t.To, t.Cause)
				*m = memory{done: ask.Done, over: ask.Over}
			}
		}
	}
	l.row, l.clock = c.Row, at
}

func (p *Pair) coupon(i int, l life) coupon.Coupon {
	c := p.Coupons[i]
	c.Row = l.row
	return c
}

// show is a reader: it locks nothing, so that its clock has nothing to do with that of the acts.
func (p *Pair) show(w world, c asked, got *Answer) []world {
	var out []world
	for _, settled := range p.settled(w, c.Of, c.to) {
		for _, at := range c.instants(settled, nil) {
			shown := p.coupon(c.Of[0], settled.lives[c.Of[0]])
			if (Answer{Shown: [2]Shown{showOf(at, &shown)}}) == *got {
				out = append(out, settled)
				break
			}
		}
	}
	return out
}

// act is a verb, decided at the instant.
func (p *Pair) act(w world, c Call, at time.Time) (world, Answer) {
	o := p.order(c)
	cs, asks := make([]*coupon.Coupon, len(c.Of)), make([]coupon.Ask, len(c.Of))
	for i, of := range c.Of {
		held := p.coupon(of, w.lives[of])
		cs[i], asks[i] = &held, o.Ask()
		if asks[i].AsksPast(&held.Row) {
			m := w.lives[of].past[c.Order].of(c.Verb)
			asks[i].Done, asks[i].Over = m.done, m.over
		}
	}
	verdicts, acted := o.Decide(cs, asks, at)
	var out Answer
	for i, of := range c.Of {
		if acted[i].Refused != "" && out.Code == "" {
			out.Code = acted[i].Refused
		}
		if acted[i].Refused == coupon.CodeNotFound {
			continue
		}
		p.take(of, &w.lives[of], verdicts[i].Steps, &o, at)
		acted[i].Coupon = p.coupon(of, w.lives[of])
	}
	for i := range acted {
		switch held := &acted[i].Coupon; {
		case out.Code == "":
			out.Shown[i] = showOf(at, held)
			out.Shown[i].Repeated = acted[i].Repeated && c.Verb.OfOrder() // operators' calls do not tell
		case acted[i].Refused == coupon.CodeNotFound:
			out.Shown[i].Code = coupon.CodeNotFound
		default:
			out.Shown[i] = Shown{Code: acted[i].Refused, State: held.Seen(at).String()}
		}
	}
	if out.Code == "" && c.Verb.OfOrder() {
		out.Now = at
	}
	return w, out
}

// order is what the call asks the table.
func (p *Pair) order(c Call) coupon.Order {
	o := coupon.Order{Verb: c.Verb, LockFor: c.LockFor, EndsAt: c.EndsAt, BreakLock: c.BreakLock, Partial: c.Partial}
	for _, i := range c.Of {
		o.CouponIDs = append(o.CouponIDs, p.Coupons[i].ID)
	}
	if c.Verb.OfOrder() {
		o.OrderID, o.UserID = p.OrderID(c.Order), p.UserOf(c)
	}
	return o
}

// UserOf is whose coupons the call says that they are.
func (p *Pair) UserOf(c Call) string {
	if c.Stranger {
		return p.User + "-stranger"
	}
	return p.User
}

func showOf(at time.Time, c *coupon.Coupon) Shown {
	s := Shown{
		State: c.Seen(at).String(), Stored: c.Status.String(), Version: c.Version, OrderID: c.OrderID, LockUntil: c.LockUntil, ExpiresAt: c.ExpiresAt,
	}
	if coupon.IsNever(c.ExpiresAt) {
		s.ExpiresAt = time.Time{}
	}
	return s
}

// matches reports whether the answers are the same; of one that was not seen it is not known when it was decided.
func (a Answer) matches(other Answer) bool {
	if a.Now.IsZero() {
		other.Now = time.Time{}
	}
	return a == other
}

func (w world) String() string {
	text := ""
	for i, l := range w.lives {
		if i > 0 {
			text += " | "
		}
		text += fmt.Sprintf("%s v%d", l.row.Status, l.row.Version)
		if l.row.OrderID != "" {
			text += " of " + l.row.OrderID
		}
		if !l.row.LockUntil.IsZero() {
			text += " until " + clock(l.row.LockUntil)
		}
		text += ", ends " + clock(l.row.ExpiresAt)
	}
	for i, k := range w.keys {
		if k != (Answer{}) {
			text += fmt.Sprintf(" | key %d: %s", i, k)
		}
	}
	return text
}
