package policy

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Explanation is what is planned of one channel, and why: the dry run.
type Explanation struct {
	Rule     int // index in the configuration; -1: no rule matches, so it is the inbox
	Route    int // of the rule
	Channel  coupon.Channel
	Plan     Planned
	Reason   string         // of suppressed and off ones: one of coupon.Reason…
	Wanted   time.Time      // when it would go if all hours were permitted
	SendAt   time.Time      // of sent ones and fallbacks: not before
	NotAfter time.Time      // of no use from then on
	Zone     *time.Location // the user's
	Quiet    Hours          // of the channel, in that zone
	Cap      coupon.Cap     // held against in the last step, by what was sent until then
	Inactive time.Duration  // of SMS: who was not seen for so long gets none
	SeenAt   time.Time      // of the user; zero: nothing is known
	Next     []coupon.Channel
}

// Planned says what becomes of a channel.
type Planned string

// What becomes of a channel.
const (
	PlanSend     Planned = "send"
	PlanFallback Planned = "fallback" // sent if the one before it in its route fails
	PlanSuppress Planned = "suppress"
	PlanOff      Planned = "off" // not configured here
)

// Moved reports whether quiet hours moved it earlier (-1) or later (1).
func (e Explanation) Moved() int {
	if e.SendAt.IsZero() {
		return 0
	}
	return e.SendAt.Compare(e.Wanted)
}

// Explain is Decide, with what led to it. It names every channel of the rule, those not configured too.
func (p *Policy) Explain(now time.Time, c *coupon.Closed) []Explanation {
	r, steps := p.plan(now, c)
	out := make([]Explanation, len(steps))
	for i, s := range steps {
		e := Explanation{
			Rule: r.number, Route: s.route, Channel: s.channel, Plan: PlanSend, Reason: s.reason, Wanted: s.wanted, SendAt: s.at,
			NotAfter: s.notAfter, Zone: p.Zone(&c.Profile), Quiet: p.hours[s.channel], Cap: p.Cap(s.channel), Next: s.next,
		}
		if s.channel == coupon.ChannelSMS {
			if e.Inactive, e.SeenAt = p.config.Inactive, c.Profile.ActiveAt; e.SeenAt.IsZero() {
				e.SeenAt = c.Profile.ProfileAt
			}
		}
		switch {
		case s.passed:
			e.Plan = PlanOff
		case s.reason != "":
			e.Plan = PlanSuppress
		case s.fallback:
			e.Plan = PlanFallback
		}
		out[i] = e
	}
	return out
}

// Why says it in a sentence, with the user's clock.
func (e Explanation) Why() string {
	clock := func(at time.Time) string { return at.In(e.Zone).Format("2006-01-02 15:04:05 -07:00") }
	switch {
	case e.Plan == PlanOff:
		return "not among the channels of this installation"
	case e.Plan == PlanSuppress:
		return e.whyNot(clock)
	case e.Moved() < 0:
		return fmt.Sprintf("earlier than %s, which is within the quiet hours %s of %s", clock(e.Wanted), e.Quiet, e.Zone)
	case e.Moved() > 0:
		return fmt.Sprintf("not at %s: the quiet hours are %s of %s", clock(e.Wanted), e.Quiet, e.Zone)
	case e.Plan == PlanFallback:
		return "if the channel before it in the rule fails"
	default:
		return "at its hour, or at once if that has passed"
	}
}

func (e Explanation) whyNot(clock func(time.Time) string) string {
	switch e.Reason {
	case coupon.ReasonOptOut:
		return "the user does not want it"
	case coupon.ReasonInactive:
		return fmt.Sprintf("the user was seen last at %s, and %s ago or more gets no SMS", clock(e.SeenAt), days(e.Inactive))
	case coupon.ReasonErased:
		return "the user was erased"
	case coupon.ReasonQuiet:
		return fmt.Sprintf("the quiet hours %s of %s leave no hour before %s", e.Quiet, e.Zone, clock(e.NotAfter))
	case coupon.ReasonLate:
		return "it joins a day whose notice has gone out"
	case coupon.ReasonTooLate, coupon.ReasonStale:
		return "of no use from " + clock(e.NotAfter) + " on"
	case coupon.ReasonOff:
		return "not among the channels of this installation, and no other is left"
	default:
		return "no coupon is left to tell of"
	}
}

func days(d time.Duration) string {
	if d%wholeDay == 0 {
		return fmt.Sprintf("%d days", d/wholeDay)
	}
	return d.String()
}
