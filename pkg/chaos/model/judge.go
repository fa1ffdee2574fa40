package model

import (
	"fmt"
	"slices"
	"time"
)

// Class is what is wrong with a finding.
type Class string

// The classes.
const (
	Early          Class = "early"           // unusable, or called so, before its end
	Lost           Class = "lost"            // promised, and not there
	Doubled        Class = "doubled"         // more often than asked for
	WrongState     Class = "wrong_state"     // neither history nor calls lead there
	NoticesDoubled Class = "notices_doubled" // told twice
	Stuck          Class = "stuck"           // still waiting, long after its time
)

// Classes lists them all.
func Classes() []Class { return []Class{Early, Lost, Doubled, WrongState, NoticesDoubled, Stuck} }

// Finding is one thing that must not be.
type Finding struct {
	Class  Class  `json:"class"`
	Coupon uint64 `json:"coupon,omitempty"`
	Key    string `json:"key,omitempty"`
	Text   string `json:"text"`
}

// String is a line for people.
func (f Finding) String() string {
	who := f.Key
	if f.Coupon != 0 {
		who = fmt.Sprintf("coupon %d (%s)", f.Coupon, f.Key)
	}
	if who != "" {
		who += ": "
	}
	return string(f.Class) + ": " + who + f.Text
}

// Verdict is what the judge found.
type Verdict struct {
	Counts   map[Class]int // every class is there
	Findings []Finding     // the first ones of each class
	Repeats  int           // events that were heard more than once under one id, which is allowed
	Steps    int           // rows of history
	States   map[string]int
}

const mostFindings = 20 // kept of each class

func newVerdict() *Verdict {
	v := &Verdict{Counts: make(map[Class]int), States: make(map[string]int)}
	for _, c := range Classes() {
		v.Counts[c] = 0
	}
	return v
}

func (v *Verdict) add(c Class, coupon uint64, key, format string, args ...any) {
	v.Counts[c]++
	if v.Counts[c] <= mostFindings {
		v.Findings = append(v.Findings, Finding{Class: c, Coupon: coupon, Key: key, Text: fmt.Sprintf(format, args...)})
	}
}

// Clean reports whether nothing was found.
func (v *Verdict) Clean() bool {
	for _, n := range v.Counts {
		if n > 0 {
			return false
		}
	}
	return true
}

// Judge holds what was promised against the facts.
func Judge(promises []Promise, f Facts) *Verdict {
	v := newVerdict()
	asked := make(map[string]*Promise, len(promises))
	for i := range promises {
		asked[promises[i].Key] = &promises[i]
	}
	found := make(map[string]uint64, len(f.Rows))
	events := eventsByCoupon(v, f.Events)
	rows := make(map[uint64]*Row, len(f.Rows))
	for i := range f.Rows {
		row := &f.Rows[i]
		rows[row.ID] = row
		v.Steps += len(row.Steps)
		v.States[row.State.String()]++
		p := promiseOf(v, asked, found, row)
		j := &coupon{v: v, f: &f, row: row, p: p, replayed: replay(row.Steps)}
		j.judge(events[row.ID])
	}
	for i := range promises {
		if p := &promises[i]; found[p.Key] == 0 {
			absent(v, f, p)
		}
	}
	for id, heard := range events {
		if rows[id] == nil {
			v.add(WrongState, id, "", "%d events tell of a coupon that is not there", len(heard))
		}
	}
	judgeNotices(v, f, rows)
	for _, text := range f.Unsettled {
		v.add(Stuck, 0, "", "%s", text)
	}
	return v
}

// promiseOf finds what was asked for; nil if nothing was.
func promiseOf(v *Verdict, asked map[string]*Promise, found map[string]uint64, row *Row) *Promise {
	if len(row.Keys) != 1 {
		v.add(Doubled, row.ID, "", "%d grant keys stand for it", len(row.Keys))
		return nil
	}
	key := row.Keys[0]
	p := asked[key]
	switch {
	case p == nil:
		v.add(Doubled, row.ID, key, "nobody asked for it")
		return nil
	case found[key] != 0:
		v.add(Doubled, row.ID, key, "coupon %d stands for the same grant key", found[key])
		return nil
	}
	found[key] = row.ID
	switch {
	case p.Answer == Refused:
		v.add(WrongState, row.ID, key, "granted, though the answer was a refusal: %s", p.Code)
	case p.ID != 0 && p.ID != row.ID:
		v.add(Doubled, row.ID, key, "the answer named coupon %d", p.ID)
	case row.User != p.User:
		v.add(WrongState, row.ID, key, "it is user %q's, asked for was %q", row.User, p.User)
	}
	return p
}

// absent judges a coupon that was asked for and is not there.
func absent(v *Verdict, f Facts, p *Promise) {
	code := p.Code
	if told, ok := f.GrantRefused[p.Key]; ok && p.Answer != Repeated && p.ID == 0 {
		p.Answer, code = Refused, told
	}
	switch p.Answer {
	case Done, Repeated:
		v.add(Lost, p.ID, p.Key, "granted, and not there")
	case Refused:
		latest := p.Got
		if latest.IsZero() {
			latest = f.High
		}
		if code != CodeAlreadyEnded || latest.Before(p.End) {
			v.add(WrongState, 0, p.Key, "the grant was refused: %s", code)
		}
	case Unknown:
	}
}

// coupon is one that is being judged.
type coupon struct {
	v        *Verdict
	f        *Facts
	row      *Row
	p        *Promise
	replayed replayed
	of       [][]int // for each call, the steps that it explains
}

func (j *coupon) key() string {
	if j.p == nil {
		return ""
	}
	return j.p.Key
}

func (j *coupon) add(c Class, format string, args ...any) {
	j.v.add(c, j.row.ID, j.key(), format, args...)
}

func (j *coupon) judge(heard []Event) {
	for _, text := range j.replayed.early {
		j.add(Early, "%s", text)
	}
	for _, text := range j.replayed.wrong {
		j.add(WrongState, "%s", text)
	}
	if j.replayed.broken != "" {
		j.add(WrongState, "%s", j.replayed.broken)
	} else {
		if text := j.replayed.leads(*j.row); text != "" {
			j.add(WrongState, "%s", text)
		}
		if j.p != nil {
			j.judgeGrant()
			j.explain()
			for i := range j.p.Calls {
				j.judgeCall(i)
			}
		}
	}
	j.judgeEnd()
	j.judgeEvents(heard)
}

func (j *coupon) judgeGrant() {
	first := j.row.Steps[0]
	if !first.Expires.Equal(j.p.End) {
		j.add(WrongState, "granted until %s, asked for was %s", clock(first.Expires), clock(j.p.End))
	}
	if first.At.Before(j.p.Sent.Add(-slack)) {
		j.add(WrongState, "granted at %s, before it was asked for at %s", clock(first.At), clock(j.p.Sent))
	}
}

// judgeEnd: what has ended must have been settled.
func (j *coupon) judgeEnd() {
	row, now := j.row, j.f.Low.Add(-j.f.Bound)
	switch {
	case row.State == Unused && !row.Expires.After(now):
		j.add(Stuck, "unused, though it ended at %s", clock(row.Expires))
	case row.State == Locked && !row.Lock.After(now):
		j.add(Stuck, "locked, though the lock ended at %s", clock(row.Lock))
	}
	if (row.State == Expired) && j.f.High.Before(row.Expires) {
		j.add(Early, "expired, though its end %s is still to come", clock(row.Expires))
	}
}

func eventsByCoupon(v *Verdict, events []Event) map[uint64][]Event {
	by := make(map[uint64][]Event)
	for _, e := range events {
		if e.Times > 1 {
			v.Repeats++
		}
		by[e.Coupon] = append(by[e.Coupon], e)
	}
	return by
}

// whats are the second words of the types that can tell of a step.
func whats(k kind, s Step) []string {
	switch k {
	case kindGrant:
		return []string{"issued"}
	case kind(Lock), kind(Renew):
		return []string{"locked"}
	case kind(Redeem):
		return []string{"used"}
	case kind(Release), kindUnlock:
		return []string{"released"}
	case kindExpire, kindGone:
		return []string{"expired"}
	case kind(Refund):
		if s.To == Expired { // it is told of as what it is now
			return []string{"expired"}
		}
		return []string{"refunded"}
	case kind(Extend):
		return []string{"extended"}
	case kind(Void):
		return []string{"voided"}
	default:
		return []string{s.To.String()}
	}
}

// judgeEvents: one id for each step, and none besides.
func (j *coupon) judgeEvents(heard []Event) {
	by := make(map[uint32][]Event)
	for _, e := range heard {
		by[e.Version] = append(by[e.Version], e)
	}
	for i, s := range j.row.Steps {
		es := by[s.Version]
		delete(by, s.Version)
		switch {
		case len(es) == 0:
			j.add(Lost, "no event told of version %d (%s to %s)", s.Version, s.From, s.To)
		case len(es) > 1:
			j.add(Doubled, "%d events with different ids tell of version %d", len(es), s.Version)
		}
		for _, e := range es {
			if i < len(j.replayed.kinds) && !slices.Contains(whats(j.replayed.kinds[i], s), e.What) {
				j.add(WrongState, "event %s tells of version %d, which is %s", e.ID, s.Version, j.replayed.kinds[i])
			}
			if e.What == "expired" && e.By.Before(s.Expires) {
				j.add(Early, "heard of as expired at %s, before its end %s", clock(e.By), clock(s.Expires))
			}
		}
	}
	for version, es := range by {
		j.add(WrongState, "event %s tells of version %d, which never was", es[0].ID, version)
	}
}

// judgeNotices: every coupon that expired by itself is told of once, by the channels that were to.
func judgeNotices(v *Verdict, f Facts, rows map[uint64]*Row) {
	if f.Notices == nil {
		return // there was no notifier
	}
	named := make(map[uint64]map[string]int) // coupon → channel → notices
	for _, n := range f.Notices {
		for _, id := range n.Coupons {
			if named[id] == nil {
				named[id] = make(map[string]int)
			}
			named[id][n.Channel]++
		}
	}
	for id, row := range rows {
		expired := slices.ContainsFunc(row.Steps, func(s Step) bool { return s.To == Expired && s.From != Used })
		channels := named[id]
		if expired && len(channels) == 0 {
			v.add(Lost, id, "", "expired, and no notice tells of it")
		}
		if !slices.ContainsFunc(row.Steps, func(s Step) bool { return s.To == Expired }) && len(channels) > 0 {
			v.add(WrongState, id, "", "told of as expired, and it is %s", row.State)
		}
		for channel, n := range channels {
			if n > 1 {
				v.add(NoticesDoubled, id, "", "%d notices by %s tell of it", n, channel)
			}
		}
	}
	for id := range named {
		if rows[id] == nil {
			v.add(WrongState, id, "", "a notice tells of a coupon that is not there")
		}
	}
	for id, n := range f.Arrived {
		if n > 1 {
			v.add(NoticesDoubled, 0, "", "message %s came %d times", id, n)
		}
	}
}

// overlap gives the part of a state's time that lies within a call; ok is false if there is none.
func overlap(from, until, sent, got time.Time) (low, high time.Time, ok bool) {
	low, high = sent.Add(-slack), got.Add(slack)
	if from.After(low) {
		low = from
	}
	if !until.IsZero() && until.Before(high) {
		high = until
	}
	return low, high, !high.Before(low)
}
