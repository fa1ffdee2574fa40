package policy

import (
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// step is what is planned of one channel of a rule.
type step struct {
	channel  coupon.Channel
	route    int
	reason   string    // why not; empty: pending, or a fallback
	passed   bool      // not configured here: no row
	fallback bool      // in turn, if the one before fails
	wanted   time.Time // when it would go if all hours were permitted
	at       time.Time
	notAfter time.Time
	next     []coupon.Channel
}

// plan goes through the routes of the rule; one that leaves nothing falls to the inbox.
func (p *Policy) plan(now time.Time, c *coupon.Closed) (*rule, []step) {
	now = now.UTC()
	r := p.ruleFor(c)
	routes, left := r.routes, p.leaves(r.routes)
	if !left && !names(routes, coupon.ChannelInbox) {
		routes = append(slices.Clone(routes), []coupon.Channel{coupon.ChannelInbox})
	}
	var steps []step
	for i, route := range routes {
		head := -1
		for _, ch := range route {
			s := p.consider(now, ch, c)
			s.route = i
			// Where not even the inbox is there, its row says so.
			s.passed = s.reason == coupon.ReasonOff && (left || ch != coupon.ChannelInbox)
			switch {
			case head >= 0 && s.reason == "":
				s.fallback = true
				steps[head].next = append(steps[head].next, ch)
			case s.reason == "":
				head = len(steps)
			}
			steps = append(steps, s)
		}
	}
	return r, steps
}

// leaves reports whether a channel of the routes is configured here.
func (p *Policy) leaves(routes [][]coupon.Channel) bool {
	return slices.ContainsFunc(p.channels, func(ch coupon.Channel) bool { return names(routes, ch) })
}

func names(routes [][]coupon.Channel, ch coupon.Channel) bool {
	return slices.ContainsFunc(routes, func(route []coupon.Channel) bool { return slices.Contains(route, ch) })
}

// consider plans one channel by itself.
func (p *Policy) consider(now time.Time, ch coupon.Channel, c *coupon.Closed) step {
	s := step{channel: ch, wanted: now, notAfter: p.notAfter(c)}
	if c.Kind == coupon.NoticeExpiring && c.NotifyAt.After(now) {
		s.wanted = c.NotifyAt.UTC()
	}
	s.reason = p.refused(now, ch, c.Kind, &c.Profile)
	switch {
	case s.reason == coupon.ReasonOff, s.reason == coupon.ReasonErased:
	case c.Items == 0:
		if s.reason = c.Reason; s.reason == "" {
			s.reason = coupon.ReasonEmpty
		}
	case s.reason != "":
	case c.Late && (!p.config.Late.Send || c.EndsAt.Sub(now) <= p.config.Late.Least):
		s.reason = coupon.ReasonLate
	case !s.wanted.Before(s.notAfter):
		if s.reason = coupon.ReasonTooLate; c.Kind == coupon.NoticeExpired {
			s.reason = coupon.ReasonStale
		}
	default:
		s.at, s.reason = p.permitted(now, s, c.Kind, p.Zone(&c.Profile))
	}
	return s
}

// notAfter is the instant from which on a notice is of no use: of a reminder the first end of its coupons, else so long after it.
func (p *Policy) notAfter(c *coupon.Closed) time.Time {
	if c.Kind == coupon.NoticeExpiring {
		return c.EndsAt.UTC()
	}
	return c.EndsAt.UTC().Add(p.config.Stale)
}

// permitted is when a channel that wants to send then may: a reminder before the quiet hours, else after them.
func (p *Policy) permitted(now time.Time, s step, kind coupon.NoticeKind, zone *time.Location) (at time.Time, reason string) {
	h := p.hours[s.channel]
	if !h.Quiet(s.wanted, zone) {
		return s.wanted, ""
	}
	if kind == coupon.NoticeExpiring {
		if at = h.before(s.wanted, p.config.Margin, zone); !at.Before(now) {
			return at, ""
		}
	}
	// Where now is permitted, and the margin alone has begun, that is now.
	if at = h.next(now, zone); at.Before(s.notAfter) {
		return at, ""
	}
	return time.Time{}, coupon.ReasonQuiet
}
