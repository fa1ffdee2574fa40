package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/rig/demo"
)

const (
	capacityOf    = 6000 // coupons by which it is measured
	capacityChunk = 200  // grants of an event
	capacityLead  = 15 * time.Second
	capacitySlow  = 300 // a second: a machine that grants fewer is not waited for
	capacityPoll  = 50 * time.Millisecond
)

// capacity is how much this machine does when it does nothing else, in coupons a second.
type capacity struct {
	grants   float64 // from the event to the trigger where it waits
	expiries float64 // from the common end to the last confirmed event
}

// lives is how many a second can be granted and expire for as long as one likes.
func (c capacity) lives() float64 { return 1 / (1/c.grants + 1/c.expiries) }

// measure grants coupons by events, as fast as they are taken, and lets them end at one instant.
func (s *shop) measure(ctx context.Context, template string) (c capacity, err error) {
	out, stop, err := s.Publisher(ctx)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	lead := capacityLead + capacityOf/capacitySlow*time.Second
	ends := s.soon(lead)
	g := &granting{s: s, template: template, name: "measured", ends: ends}
	began := time.Now()
	for range capacityOf / capacityChunk {
		if err := g.send(ctx, out, 1); err != nil {
			return c, err
		}
	}
	limit, cancel := context.WithTimeout(ctx, lead)
	defer cancel()
	if err := s.have(limit, "SELECT COUNT(*) FROM grant_key WHERE issuer = '' AND grant_key LIKE 'measured-%'", capacityOf); err != nil {
		return c, fmt.Errorf("granting %d coupons took more than %s: %w", capacityOf, lead, err)
	}
	c.grants = capacityOf / time.Since(began).Seconds()
	limit, cancel = context.WithTimeout(ctx, ends.Sub(s.Now())+draining(capacityOf))
	defer cancel()
	if err := s.have(limit, "SELECT COUNT(*) FROM coupon_history WHERE to_status = 4 AND expires_at = '"+ends.Format(time.DateTime)+"'", capacityOf); err != nil {
		return c, fmt.Errorf("waiting for %d coupons to expire: %w", capacityOf, err)
	}
	c.expiries = capacityOf / s.Now().Sub(ends).Seconds()
	return c, nil
}

// have waits until a query counts as many, and until nothing waits to be sent.
func (s *shop) have(ctx context.Context, query string, n int) error {
	for _, q := range []struct {
		query string
		ok    func(int) bool
	}{{query, func(have int) bool { return have >= n }}, {outboxQuery, func(have int) bool { return have == 0 }}} {
		if err := rig.Until(ctx, capacityPoll, func() (bool, error) {
			have, err := countIn(ctx, s.DB(), q.query)
			return q.ok(have), err
		}); err != nil {
			return err
		}
	}
	return nil
}

// granting asks for coupons by events, each key once, and sends again what was not confirmed.
type granting struct {
	s        *shop
	template string
	name     string    // of the keys
	ends     time.Time // zero: beyond every reminder
	sent     int       // grants whose events the broker has confirmed
}

// send asks for so many events' grants.
func (g *granting) send(ctx context.Context, out *broker.Publisher, events int) error {
	id, err := templateID(g.template)
	if err != nil {
		return err
	}
	ends := g.ends
	if ends.IsZero() {
		ends = g.s.soon(beyondReminders)
	}
	ms := make([]broker.Message, events)
	for k := range ms {
		asks := make([]audit.Ask, capacityChunk)
		for i := range asks {
			n := g.sent + k*capacityChunk + i
			asks[i] = audit.Ask{Key: fmt.Sprintf("%s-%08d", g.name, n), User: userOf(n % manyUsers), End: ends}
		}
		if ms[k], err = g.s.Grants(id, asks); err != nil {
			return err
		}
	}
	for left := ms; len(left) > 0; {
		errs := out.Publish(ctx, left)
		again := left[:0:0]
		for i, err := range errs {
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errors.Is(err, broker.ErrInvalid), errors.Is(err, broker.ErrStopped):
				return fmt.Errorf("asking for coupons: %w", err)
			default:
				again = append(again, left[i])
			}
		}
		if left = slices.Clip(again); len(left) > 0 {
			if err := lifecycle.Sleep(ctx, feedEvery); err != nil {
				return err
			}
		}
	}
	g.sent += events * capacityChunk
	return nil
}

const (
	manyUsers       = 10_000
	beyondReminders = 40 * day // so far ahead that no reminder is owed yet
)

// fleetOfAll opens a shop with a notifier, too.
func (w *checkout) fleetOfAll(ctx context.Context, t *tally, o opening, do func(ctx context.Context, s *shop) error) error {
	return w.open(ctx, t, o, func(ctx context.Context, s *shop) error {
		vars := map[string]string{"LAPSE__NOTICE__QUIET": "2s", "LAPSE__NOTICE__MAX_AGE": "10s", "LAPSE__LOG__LEVEL": "warn"}
		if err := s.Add(ctx, w.cfg.Bin, demo.Notifier, demo.Notifier, vars); err != nil {
			return err
		}
		return do(ctx, s)
	})
}
