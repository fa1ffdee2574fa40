package lapsetest

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Issue grants one after the other; a refusal is an answer, and an event.
func (m *memory) Issue(_ context.Context, grants []coupon.Grant) ([]coupon.Granted, error) {
	leave, err := m.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	out := make([]coupon.Granted, len(grants))
	for i := range grants {
		g := &grants[i]
		if out[i], err = m.grant(g); err != nil {
			return nil, err
		}
		if out[i].Refused == "" {
			continue
		}
		key, id, body, err := m.codec.Refused(*g, out[i], m.now)
		if err != nil {
			return nil, err //nolint:wrapcheck // says what it is of
		}
		m.tell(key, id, body, m.now, 0)
	}
	return out, nil
}

// grant makes a coupon, or says why not.
func (m *memory) grant(g *coupon.Grant) (coupon.Granted, error) {
	refuse := func(code coupon.Code, detail string) (coupon.Granted, error) {
		return coupon.Granted{Refused: code, Detail: detail}, nil
	}
	if fault := g.Fault(); fault != "" {
		return refuse(coupon.CodeInvalid, fault)
	}
	at := grantKey{g.Issuer, g.Key}
	if first := m.granted[at]; first != nil {
		if !first.same(g) {
			return refuse(coupon.CodeKeyConflict, "grant_key: known with other content")
		}
		return coupon.Granted{CouponID: first.couponID, ExpiresAt: first.expiresAt, Repeated: true}, nil
	}
	t := m.templates[g.TemplateID]
	switch {
	case t == nil:
		return refuse(coupon.CodeTemplateNotFound, g.NoTemplate())
	case t.Stopped:
		return refuse(coupon.CodeTemplateStopped, t.Idle())
	}
	from, until, code, detail := g.Validity(m.now, t.Rule.Resolve)
	if code != "" {
		return refuse(code, detail)
	}
	if code, detail := t.Refuses(t.Taken, t.users[g.UserID]); code != "" {
		return refuse(code, detail)
	}
	tr := t.Issued(g, from, until, m.now)
	tr.CouponID = uint64(len(m.coupons) + 1)
	m.coupons[tr.CouponID] = &coupon.Coupon{
		Row: coupon.Row{
			ID: tr.CouponID, Status: tr.To, Version: tr.Version, ValidFrom: from, ExpiresAt: until, DueAt: tr.DueAt,
			LatePay: tr.Terms.LatePay, LateWindow: tr.Terms.LateWindow,
		},
		Terms: tr.Terms, UserID: g.UserID, BatchID: g.BatchID, GrantedAt: m.now,
	}
	t.Taken++
	if t.CountsUsers() {
		t.users[g.UserID]++
	}
	m.granted[at] = &granted{grant: *g, couponID: tr.CouponID, expiresAt: until}
	return coupon.Granted{CouponID: tr.CouponID, ExpiresAt: until}, m.record([]coupon.Transition{tr})
}

// same reports whether a grant asks for what the first one with its key asked for: the instants as asked, not as resolved.
func (f *granted) same(g *coupon.Grant) bool {
	is := func(a, b time.Time) bool { return a.Equal(b) || coupon.IsNever(a) && coupon.IsNever(b) }
	return f.grant.TemplateID == g.TemplateID && f.grant.UserID == g.UserID && f.grant.BatchID == g.BatchID &&
		is(f.grant.ValidFrom, g.ValidFrom) && is(f.grant.ExpiresAt, g.ExpiresAt)
}

// Act does what an order, or an operator, asks of its coupons: all or none, unless each stands by itself.
func (m *memory) Act(_ context.Context, o coupon.Order) (time.Time, []coupon.Acted, error) {
	if err := o.Validate(); err != nil {
		return time.Time{}, nil, err //nolint:wrapcheck // names the field
	}
	leave, err := m.enter()
	if err != nil {
		return time.Time{}, nil, err
	}
	defer leave()
	cs, asks := make([]*coupon.Coupon, len(o.CouponIDs)), make([]coupon.Ask, len(o.CouponIDs))
	for i, id := range o.CouponIDs {
		if c := m.coupons[id]; c != nil {
			cs[i], asks[i] = c, m.ask(&o, c)
		}
	}
	verdicts, out := o.Decide(cs, asks, m.now)
	for i, c := range cs {
		if out[i].Refused == coupon.CodeNotFound {
			continue
		}
		if err := m.record(c.Take(verdicts[i].Steps, &o, m.now)); err != nil {
			return time.Time{}, nil, err
		}
		out[i].Coupon = *c
	}
	if o.Tombstone && !o.Partial {
		m.bury(&o)
	}
	return m.now, out, nil
}

// ask is what the order asks of the coupon, with what they have had with one another before.
func (m *memory) ask(o *coupon.Order, c *coupon.Coupon) coupon.Ask {
	ask := o.Ask()
	if t := m.graves[grave{c.ID, o.OrderID}]; t != nil {
		ask.Closed, ask.Refunded = t.closed, t.refunded
	}
	if ask.AsksPast(&c.Row) {
		for _, t := range m.history[c.ID] {
			if t.OrderID == o.OrderID {
				ask.Remember(t.From, t.To, t.Cause)
			}
		}
	}
	return ask
}

// bury remembers that an order is closed or refunded, for each of its coupons, whether or not it exists.
func (m *memory) bury(o *coupon.Order) {
	for _, id := range o.CouponIDs {
		at := grave{id, o.OrderID}
		if m.graves[at] == nil {
			m.graves[at] = &tombstone{}
		}
		m.graves[at].closed = m.graves[at].closed || o.Verb == coupon.VerbRelease
		m.graves[at].refunded = m.graves[at].refunded || o.Verb == coupon.VerbRefund
	}
}

// Forward brings near what a coupon waits for.
func (m *memory) Forward(_ context.Context, f coupon.Forward) (coupon.Forwarded, error) {
	if err := f.Validate(); err != nil {
		return coupon.Forwarded{}, err //nolint:wrapcheck // names the field
	}
	leave, err := m.enter()
	if err != nil {
		return coupon.Forwarded{}, err
	}
	defer leave()
	out := coupon.Forwarded{Now: m.now}
	c := m.coupons[f.CouponID]
	if c == nil {
		out.Acted = coupon.NoCoupon(f.CouponID)
		return out, nil
	}
	v, at, detail := f.Apply(c, m.reminders, m.now)
	o := f.Order()
	if err := m.record(c.Take(v.Steps, &o, m.now)); err != nil {
		return coupon.Forwarded{}, err
	}
	out.At, out.Acted = at, coupon.Acted{Coupon: *c, Refused: v.Refused, Detail: detail, Repeated: v.Repeat}
	return out, nil
}
