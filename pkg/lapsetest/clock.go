package lapsetest

import (
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// advance moves the clock on, from one instant at which something comes to the next, and gives what was heard.
func (m *memory) advance(d time.Duration) []Event {
	m.mu.Lock()
	first := len(m.events)
	target := m.now.Add(d.Truncate(time.Millisecond))
	for {
		at := m.next(target)
		if at.IsZero() {
			break
		}
		before := m.now
		m.now = at
		m.remind(before)
		m.settle()
	}
	if target.After(m.now) {
		before := m.now
		m.now = target
		m.remind(before)
	}
	m.forget()
	m.mu.Unlock()
	return m.heard(first)
}

// forget lets go of Idempotency-Keys as old as the API keeps them.
func (m *memory) forget() {
	for at, i := range m.keys {
		if i.created.Before(m.now.Add(-m.keepKeys)) && i.lease.Before(m.now) {
			delete(m.keys, at)
		}
	}
}

// next is the first instant after now, and at the target at the latest, at which a coupon's end or its lock's comes, or a
// reminder; zero if there is none.
func (m *memory) next(target time.Time) (first time.Time) {
	consider := func(at time.Time) {
		if at.After(m.now) && !at.After(target) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for _, c := range m.coupons {
		consider(due(c))
		m.offsets(c, func(_ *coupon.Offset, at time.Time) { consider(at) })
	}
	return first
}

// due is when a trigger rings for the coupon; zero for never.
func due(c *coupon.Coupon) time.Time {
	switch {
	case c.Status == coupon.Locked:
		return c.LockUntil
	case c.Status == coupon.Unused && !coupon.IsNever(c.ExpiresAt):
		return c.DueAt
	default:
		return time.Time{}
	}
}

// settle rings for all that are due, in the order of ids.
func (m *memory) settle() {
	ringing := func(c *coupon.Coupon) bool {
		at := due(c)
		return !at.IsZero() && !at.After(m.now)
	}
	for _, c := range m.sorted(ringing, func(*coupon.Coupon, *coupon.Coupon) int { return 0 }) {
		for ringing(c) { // a lock that ran out may leave a coupon that is due
			if !m.ring(c) {
				break
			}
		}
	}
}

// ring lets the row decide what its trigger does.
func (m *memory) ring(c *coupon.Coupon) bool {
	t := coupon.Trigger{
		Kind: coupon.KindExpire, CouponID: c.ID, At: c.ExpiresAt, ID: coupon.TriggerID(coupon.SentByVerb, c.ID, c.Version), Origin: coupon.OriginLadder,
	}
	if c.Status == coupon.Locked {
		t.Kind, t.At = coupon.KindUnlock, c.LockUntil
	}
	d := coupon.Decide(&c.Row, t, m.now)
	step, ok := d.Step(&c.Row)
	if !ok {
		return false
	}
	ts := c.Take([]coupon.Step{step}, &coupon.Order{Actor: "lapse"}, m.now)
	ts[0].TriggerID, ts[0].Origin = t.ID, t.Origin
	return m.record(ts) == nil
}

// offsets calls f for every reminder that an unused coupon has, with its instant.
func (m *memory) offsets(c *coupon.Coupon, f func(o *coupon.Offset, at time.Time)) {
	if c.Status != coupon.Unused || coupon.IsNever(c.ExpiresAt) {
		return
	}
	for i := range m.reminders.Offsets {
		o := &m.reminders.Offsets[i]
		if c.Terms.Reminders.Has(o.Name) {
			f(o, o.NotifyAt(c.ExpiresAt, m.reminders.Zone))
		}
	}
}

// remind tells of the reminders whose instants came since an instant, in the order of ids.
func (m *memory) remind(since time.Time) {
	for _, c := range m.sorted(func(c *coupon.Coupon) bool { return c.Status == coupon.Unused }, func(*coupon.Coupon, *coupon.Coupon) int { return 0 }) {
		m.offsets(c, func(o *coupon.Offset, at time.Time) {
			if !at.After(since) || at.After(m.now) {
				return
			}
			key, id, body := m.codec.Expiring(coupon.Expiring{
				CouponID: c.ID, UserID: c.UserID, TemplateID: c.Terms.TemplateID, BatchID: c.BatchID, Version: c.Version, ExpiresAt: c.ExpiresAt,
				Offset: o.Name, NotifyAt: at, Value: c.Terms.Value, Currency: c.Terms.Currency,
			})
			m.tell(key, id, body, at, c.ID)
		})
	}
}
