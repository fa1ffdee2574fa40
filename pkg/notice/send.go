package notice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/crash"
	"github.com/lapsehq/lapse/pkg/notice/text"
	"github.com/lapsehq/lapse/pkg/pulse"
)

// Reasons of tries that failed. They are rows' reasons.
const (
	reasonText     = "text"     // it cannot be rendered
	reasonAddress  = "address"  // it cannot be opened: the key is not here
	reasonCircuit  = "circuit"  // the provider is taken for down
	reasonHeld     = "held"     // the provider keeps the channel waiting
	reasonDeadline = "deadline" // it was over before the send began
	reasonLease    = "lease"    // the database took so long that another pod may have it

	// ReasonStore: a channel into the database, which did not take it.
	ReasonStore = "store"
)

// outgoing is a message and the notice that it is of.
type outgoing struct {
	message Message
	notice  coupon.Notice
	ahead   time.Duration // of the database's clock before this process's, at most
	by      time.Time     // when it must have left, by this process's clock
}

// prepare is the last step before the notices go out: what does not stand any more is recorded, what has to wait is put
// off, the rest is rendered, in groups of which each is one send. What an hour permits is asked of the database's clock. The rows are this pod's until begun + lease.
func (d *dispatcher) prepare(work context.Context, ns []coupon.Notice, begun time.Time) ([][]outgoing, error) {
	asked := d.Now()
	ps, err := d.Store.PrepareNotices(work, d.name, ns, d.Policy.Cap(d.name), d.channel.AtMostOnce(), d.day)
	if err != nil {
		return nil, fmt.Errorf("prepare notices: %w", err)
	}
	own := d.Now()
	late := own.Sub(begun) > d.config.Lease-sendWithin(d.config.Lease)
	var out []outgoing
	var put []coupon.NoticeResult
	for _, p := range d.standing(ps) {
		// The database's clock was read at some time since it was asked, so what is assumed of it is never too early.
		ahead := p.Now.Sub(asked)
		latest := own.Add(ahead)
		m, result, ok := d.ready(p.Now, latest, p, late)
		if !ok {
			put = append(put, result)
			continue
		}
		out = append(out, outgoing{m, p.Notice, ahead, d.by(latest, p).Add(-ahead)})
	}
	if len(put) > 0 {
		d.rests <- rest{results: put}
	}
	return slices.Collect(slices.Chunk(out, max(1, d.channel.Batch()))), nil
}

// day is the user's, of which caps are.
func (d *dispatcher) day(now time.Time, p *coupon.Profile) time.Time {
	y, m, day := now.In(d.Policy.Zone(p)).Date()
	return time.Date(y, m, day, 0, 0, 0, 0, time.UTC)
}

// standing leaves out what the store has recorded as not to be sent.
func (d *dispatcher) standing(ps []coupon.Prepared) []*coupon.Prepared {
	out := make([]*coupon.Prepared, 0, len(ps))
	handedOn := false
	for i := range ps {
		p := &ps[i]
		if p.NotAfter.IsZero() {
			p.NotAfter = coupon.Never
		}
		if p.Suppressed == "" {
			out = append(out, p)
			continue
		}
		d.Metrics.suppress(p.Suppressed, 1)
		d.Metrics.count(d.name, p.Kind, resultSuppressed, 1)
		handedOn = handedOn || p.Next != "" && coupon.HandsOn(p.Suppressed)
	}
	if handedOn {
		d.ring()
	}
	return out
}

// by is when the send must be over that begins at the instant: a notice that is of no use any more does not leave. Several that are
// one send are rows of our own, and none of them waits for another's end.
func (d *dispatcher) by(now time.Time, p *coupon.Prepared) time.Time {
	by := now.Add(d.limit.Deadline)
	if d.channel.Batch() <= 1 && p.NotAfter.Before(by) {
		return p.NotAfter
	}
	return by
}

// ready gives the message, or what is to be recorded instead. The database's clock is between now and latest.
func (d *dispatcher) ready(now, latest time.Time, p *coupon.Prepared, late bool) (Message, coupon.NoticeResult, bool) {
	none := func(r coupon.NoticeResult) (Message, coupon.NoticeResult, bool) { return Message{}, r, false }
	if late {
		return none(d.later(now, &p.Notice, now, reasonLease))
	}
	at, reason := d.Policy.Allowed(now, d.name, p.Kind, p.NotAfter, &p.Profile)
	switch {
	case reason != "":
		return none(d.drop(&p.Notice, reason))
	case at.After(now):
		return none(d.later(now, &p.Notice, at, coupon.ReasonQuiet))
	case !latest.Before(p.NotAfter):
		return none(d.drop(&p.Notice, coupon.ReasonTooLate))
	}
	// Nor may quiet hours begin before the send is over.
	if by := d.by(latest, p); d.channel.Batch() <= 1 {
		at, _ = d.Policy.Allowed(by, d.name, p.Kind, coupon.Never, &p.Profile)
		switch {
		case at.After(by) && !at.Before(p.NotAfter):
			return none(d.drop(&p.Notice, coupon.ReasonQuiet))
		case at.After(by):
			return none(d.later(now, &p.Notice, at, coupon.ReasonQuiet))
		}
	}
	m, err := d.message(now, p)
	switch {
	case errors.Is(err, errAddress):
		d.words.Failed("notices: addresses cannot be opened", err)
		if p.Next != "" { // which may need none, or another
			return none(d.failed(&p.Notice, reasonAddress))
		}
		return none(d.again(now, &p.Notice, Result{Outcome: Retry, Reason: reasonAddress}))
	case err != nil:
		d.words.Failed("notices: cannot be rendered, trying again", err)
		return none(d.again(now, &p.Notice, Result{Outcome: Retry, Reason: reasonText}))
	case d.name == coupon.ChannelEmail && m.Recipient == "":
		return none(d.failed(&p.Notice, coupon.ReasonAddress))
	}
	return m, coupon.NoticeResult{}, true
}

var errAddress = errors.New("open addresses")

func (d *dispatcher) message(now time.Time, p *coupon.Prepared) (Message, error) {
	offset, _, _ := strings.Cut(p.Slot, "/")
	zone := d.Policy.Zone(&p.Profile)
	data := text.Data{
		Kind: p.Kind, Offset: offset, Items: p.Items, Members: p.Members, Totals: p.Totals, EndsAt: p.EndsAt, LastEnd: p.LastEnd,
		Zone: zone, Locale: p.Profile.Locale, Page: d.name == coupon.ChannelEmail,
	}
	m := Message{
		ID: p.ID(), Window: p.WindowID, Kind: p.Kind, Offset: offset, UserID: p.UserID, Zone: zone.String(),
		Items: p.Items, Members: p.Members, EndsAt: p.EndsAt, NotAfter: p.NotAfter,
	}
	var err error
	if m.Recipient, err = d.recipient(&p.Profile); err != nil {
		return Message{}, fmt.Errorf("%w: %w", errAddress, err)
	}
	if d.name == coupon.ChannelInbox || d.name == coupon.ChannelPopup { // read in whatever language the reader asks for then
		m.Texts, err = d.Texts.RenderAll(now, data)
	} else {
		var r text.Rendered
		r, err = d.Texts.Render(now, data)
		m.Locale, m.Text, m.HTML, m.Params = r.Locale, r.Text, r.HTML, r.Params
	}
	if err != nil {
		return Message{}, fmt.Errorf("render notice: %w", err)
	}
	return m, nil
}

// recipient is the address for this channel. Channels that need none open none: those of other channels are no reason to wait.
// A gateway that would resolve the user's id itself is not asked in place of an address that is there and cannot be opened:
// it might know another one.
func (d *dispatcher) recipient(p *coupon.Profile) (string, error) {
	var pick func(coupon.Addresses) string
	switch d.name {
	case coupon.ChannelEmail:
		pick = func(a coupon.Addresses) string { return a.Email }
	case coupon.ChannelSMS:
		pick = func(a coupon.Addresses) string { return a.Phone }
	case coupon.ChannelPush:
		pick = func(a coupon.Addresses) string { return a.Push }
	default:
	}
	if pick == nil || d.Addresses == nil {
		return "", nil
	}
	a, err := d.Addresses.Addresses(p)
	if err != nil {
		return "", err //nolint:wrapcheck // by message
	}
	return pick(a), nil
}

// send delivers one group and leaves its results.
func (d *dispatcher) send(work context.Context, group []outgoing) {
	spans := d.begin(work, group)
	results := d.deliver(work, group)
	endSpans(spans, results)
	now := d.Now().Add(group[0].ahead)
	left := rest{workers: 1}
	for i := range group {
		if !results[i].Until.IsZero() {
			results[i].Until = results[i].Until.Add(group[0].ahead)
		}
		if r, ok := d.result(now, &group[i].notice, results[i]); ok {
			left.results = append(left.results, r)
		}
	}
	d.rests <- left
}

func (d *dispatcher) deliver(work context.Context, group []outgoing) []Result {
	results := make([]Result, len(group))
	began := d.Now()
	within := group[0].by.Sub(began)
	if within <= 0 { // of one send: the others are given the same
		for i := range results {
			results[i] = Result{Outcome: Retry, Reason: reasonDeadline}
		}
		return results
	}
	done, ok := d.gate.begin()
	if !ok {
		for i := range results {
			results[i] = Result{Outcome: Throttled, Until: d.Now().Add(d.limit.OpenFor), Reason: reasonCircuit}
		}
		return results
	}
	ms := make([]Message, len(group))
	for i := range group {
		ms[i] = group[i].message
	}
	ctx, cancel := context.WithTimeout(work, within)
	defer cancel()
	ctx, spent := pulse.Measured(ctx)
	end := d.Pulse.Begin(pulse.Send)
	crash.Before(crash.Send, string(d.name))
	got := d.channel.Deliver(ctx, ms)
	crash.After(crash.Send, string(d.name))
	d.Metrics.seconds.WithLabelValues(string(d.name)).Observe(d.Now().Sub(began).Seconds())
	for i := range results {
		results[i] = Result{Outcome: Unknown, Reason: "no_result"}
		if i < len(got) {
			results[i] = got[i]
		}
	}
	// What our own stop cut off, or our own database did not take, says nothing of the provider.
	works := judge(results) || work.Err() != nil || reasonOf(results) == ReasonStore
	end(spent(), !works)
	done(works)
	if work.Err() == nil {
		d.gate.tried(went(results))
	}
	d.health.note(works, results)
	return results
}

// went says whether the channel let anything through.
func went(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool {
		return r.Outcome == Sent || r.Outcome == Permanent || r.Outcome == Retry && r.MessageOnly
	})
}

// judge says whether the provider works: it does if it has answered any of the messages.
func judge(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool {
		return r.Outcome == Sent || r.Outcome == Permanent || r.Outcome == Throttled || r.Outcome == Retry && r.MessageOnly
	})
}
