package policy

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Policy decides. Safe for concurrent use.
type Policy struct {
	config   Config
	rules    []rule
	channels []coupon.Channel // configured here
	hours    map[coupon.Channel]Hours
	zone     *time.Location

	mu    sync.RWMutex
	zones map[string]*time.Location // loaded; nil: there is none of that name
}

// zonesMost bounds the zones kept: the database has some 600 names, and profiles may hold any text.
const zonesMost = 1024

// rule is a Rule with its routes taken apart.
type rule struct {
	Rule
	number int // in the configuration; -1: the one for what none matches
	routes [][]coupon.Channel
}

// New makes the policy of an installation that has these channels. Every fault of the configuration is in the error.
func New(c Config, channels []coupon.Channel) (*Policy, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("policy config: %w", err)
	}
	if len(channels) == 0 {
		return nil, errors.New("policy: needs a channel")
	}
	zone, err := loadZone(c.Zone)
	if err != nil {
		return nil, err // Validate has loaded it
	}
	p := &Policy{
		config: c, channels: slices.Clone(channels), zone: zone,
		hours: make(map[coupon.Channel]Hours), zones: make(map[string]*time.Location),
	}
	for name, text := range c.Quiet {
		if p.hours[coupon.Channel(name)], err = ParseHours(text); err != nil {
			return nil, fmt.Errorf("quiet.%s: %w", name, err) // Validate has read it
		}
	}
	for i, r := range c.Rules {
		p.rules = append(p.rules, rule{Rule: r, number: i, routes: routesOf(r)})
	}
	inbox := Rule{Channels: []string{string(coupon.ChannelInbox)}}
	p.rules = append(p.rules, rule{Rule: inbox, number: -1, routes: routesOf(inbox)})
	return p, nil
}

func routesOf(r Rule) [][]coupon.Channel {
	routes := make([][]coupon.Channel, len(r.Channels))
	for i, route := range r.Channels {
		routes[i] = chain(route)
	}
	return routes
}

// Off are the channels that rules name and this installation does not have: they are passed over.
func (p *Policy) Off() []coupon.Channel {
	var off []coupon.Channel
	for _, r := range p.rules {
		for _, route := range r.routes {
			for _, ch := range route {
				if !p.has(ch) && !slices.Contains(off, ch) && r.number >= 0 {
					off = append(off, ch)
				}
			}
		}
	}
	return off
}

func (p *Policy) has(ch coupon.Channel) bool { return slices.Contains(p.channels, ch) }

// Cap bounds the channel's notices to one user.
func (p *Policy) Cap(ch coupon.Channel) coupon.Cap {
	c := p.config.Caps[string(ch)]
	return coupon.Cap{Day: c.Day, Week: c.Week}
}

// Zone is the user's, or the configured one if it is not known or not in this build's database. Zones are kept: loading one takes
// longer than deciding.
func (p *Policy) Zone(prof *coupon.Profile) *time.Location {
	if prof == nil || prof.Zone == "" {
		return p.zone
	}
	p.mu.RLock()
	zone, known := p.zones[prof.Zone]
	p.mu.RUnlock()
	if !known {
		var err error
		if zone, err = loadZone(prof.Zone); err != nil {
			zone = nil
		}
		p.mu.Lock()
		if len(p.zones) < zonesMost {
			p.zones[prof.Zone] = zone
		}
		p.mu.Unlock()
	}
	if zone == nil {
		return p.zone
	}
	return zone
}

// matches goes by kind and offset, which are known before a window closes; matchesCoupons by the rest.
func (r *rule) matches(kind coupon.NoticeKind, offset string) bool {
	return (len(r.Kinds) == 0 || slices.Contains(r.Kinds, string(kind))) && (len(r.Offsets) == 0 || slices.Contains(r.Offsets, offset))
}

func (r *rule) matchesCoupons(c *coupon.Closed) bool {
	worth := r.MinValue == 0 || slices.ContainsFunc(c.Totals, func(a coupon.Amount) bool {
		return a.Currency == r.Currency && a.Minor >= r.MinValue
	})
	return worth && (len(r.Templates) == 0 || slices.ContainsFunc(r.Templates, func(id uint64) bool {
		_, among := slices.BinarySearch(c.Of, id)
		return among
	}))
}

// whatever reports whether no coupon makes a difference to it.
func (r *rule) whatever() bool { return r.MinValue == 0 && len(r.Templates) == 0 }

// ruleFor is the first that matches; the last of them matches all.
func (p *Policy) ruleFor(c *coupon.Closed) *rule {
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(c.Kind, c.Offset) && r.matchesCoupons(c) {
			return r
		}
	}
	return &p.rules[len(p.rules)-1]
}

// CloseAt is when the window of such a reminder has to be closed: the earliest instant at which a channel may have to send,
// whichever the coupons are. Of what is told after the end it is notifyAt.
func (p *Policy) CloseAt(kind coupon.NoticeKind, offset string, notifyAt, endsAt time.Time, prof *coupon.Profile) time.Time {
	at := notifyAt.UTC()
	if kind != coupon.NoticeExpiring || !notifyAt.Before(endsAt) {
		return at
	}
	zone := p.Zone(prof)
	for i := range p.rules {
		r := &p.rules[i]
		if !r.matches(kind, offset) {
			continue
		}
		for _, route := range r.routes {
			for _, ch := range route {
				if h := p.hours[ch]; p.has(ch) && h.Quiet(notifyAt, zone) && (prof == nil || prof.Wants(ch, kind)) {
					at = earlier(at, h.before(notifyAt, p.config.Margin, zone))
				}
			}
		}
		if r.whatever() {
			break
		}
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Decide is what becomes of a closed window, without AtRisk.
func (p *Policy) Decide(now time.Time, c *coupon.Closed) coupon.Decided {
	_, steps := p.plan(now, c)
	var d coupon.Decided
	for _, s := range steps {
		if s.fallback || s.passed {
			continue
		}
		n := coupon.PlannedNotice{Channel: s.channel, State: coupon.NoticePending, SendAt: s.at, NotAfter: s.notAfter, Next: s.next}
		if s.reason != "" {
			n.State, n.Reason, n.SendAt, n.Next = coupon.NoticeSuppressed, s.reason, now.UTC(), nil
		}
		d.Notices = append(d.Notices, n)
	}
	return d
}

// Allowed is the last step before a notice goes out: now, or when it may (later than now), or the reason why not at all.
func (p *Policy) Allowed(now time.Time, ch coupon.Channel, kind coupon.NoticeKind, notAfter time.Time, prof *coupon.Profile) (at time.Time, reason string) {
	now = now.UTC()
	if reason := p.refused(now, ch, kind, prof); reason != "" {
		return time.Time{}, reason
	}
	if !now.Before(notAfter) {
		return time.Time{}, coupon.ReasonTooLate
	}
	if at = p.hours[ch].next(now, p.Zone(prof)); !at.Before(notAfter) {
		return time.Time{}, coupon.ReasonQuiet
	}
	return at, ""
}

// refused says why the channel may not tell the user of the kind at any hour.
func (p *Policy) refused(now time.Time, ch coupon.Channel, kind coupon.NoticeKind, prof *coupon.Profile) string {
	switch {
	case !p.has(ch):
		return coupon.ReasonOff
	case prof == nil:
		return ""
	case !prof.ErasedAt.IsZero():
		return coupon.ReasonErased
	case !prof.Wants(ch, kind):
		return coupon.ReasonOptOut
	case ch == coupon.ChannelSMS && p.inactive(now, prof):
		return coupon.ReasonInactive
	default:
		return ""
	}
}

// inactive goes by the last activity; of a user with a profile and no activity by the profile's own age. Of whom nothing was ever
// heard nothing is known, and he counts as active.
func (p *Policy) inactive(now time.Time, prof *coupon.Profile) bool {
	seen := prof.ActiveAt
	if seen.IsZero() {
		seen = prof.ProfileAt
	}
	return p.config.Inactive > 0 && !seen.IsZero() && now.Sub(seen) >= p.config.Inactive
}
