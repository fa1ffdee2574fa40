package store_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// model is what one coupon must be, kept in memory from the answers of the table alone.
type model struct {
	row  coupon.Row
	past map[string]memory // of orders
	tomb map[string][2]bool
}

// memory is what an order has done to the coupon.
type memory struct{ redeemed, refunded, released, over bool }

func (m *model) takeStep(s coupon.Step) {
	p := m.past[s.OrderID]
	p.redeemed = p.redeemed || s.To == coupon.Used
	p.refunded = p.refunded || s.From == coupon.Used
	p.over = s.From == coupon.Locked && (s.To == coupon.Unused || s.To == coupon.Expired)
	p.released = p.over && s.Cause == coupon.CauseOrder
	m.past[s.OrderID] = p
	m.row.Status, m.row.ExpiresAt, m.row.LockUntil, m.row.OrderID = s.To, s.ExpiresAt, time.Time{}, ""
	if s.To == coupon.Locked {
		m.row.LockUntil = s.LockUntil
	}
	if s.To == coupon.Locked || s.To == coupon.Used {
		m.row.OrderID = s.OrderID
	}
	m.row.Version++
}

// expect is what the verb must answer.
func (m *model) expect(o coupon.Order, now time.Time) coupon.Verdict {
	p, tomb := m.past[o.OrderID], m.tomb[o.OrderID]
	holds := m.row.OrderID == o.OrderID
	a := coupon.Ask{
		Verb: o.Verb, OrderID: o.OrderID, LockFor: o.LockFor, EndsAt: o.EndsAt, BreakLock: o.BreakLock, Partial: o.Partial,
		Tombstone: o.Tombstone, Closed: tomb[0], Refunded: tomb[1],
	}
	switch {
	case o.Verb == coupon.VerbRedeem && !holds:
		a.Done = p.redeemed
	case o.Verb == coupon.VerbRelease && !holds:
		a.Done, a.Over = p.released, p.over
	case o.Verb == coupon.VerbRefund && (!holds || m.row.Status != coupon.Used):
		a.Done, a.Over = p.refunded, p.over
	}
	return coupon.Apply(m.row, a, now)
}

// The store does what the table says, whatever went before, in the table of coupons or in the archive.
func TestActFollowsTheTable(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 1, 3600)
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason, late_pay_policy, late_pay_window)
		SELECT 2, revision, name, rule, value, currency, prec_class, created_at, actor, reason, 'strict', 60 FROM coupon_template`)
	id := 1
	rapid.Check(t, func(r *rapid.T) {
		id++
		template := rapid.IntRange(1, 2).Draw(r, "template")
		plantUnused(t, d, id, 1, rapid.SampledFrom([]int{3600, 20}).Draw(r, "ends"))
		d.Exec(t, `UPDATE coupon SET template_id = ? WHERE id = ?`, template, id)
		m := &model{past: make(map[string]memory), tomb: make(map[string][2]bool)}
		m.row = coupon.Row{ID: uint64(id), Status: coupon.Unused, Version: 1, LatePay: coupon.HonourLock, LateWindow: coupon.DefaultLateWindow}
		if template == 2 {
			m.row.LatePay, m.row.LateWindow = coupon.Strict, time.Minute
		}
		m.readTimes(t, d)
		for range 10 {
			m.one(t, r, d, s)
		}
	})
}

// readTimes takes over the instants that plain SQL has set.
func (m *model) readTimes(t testing.TB, d testenv.Database) {
	t.Helper()
	var lock sql.NullTime
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT valid_from, expires_at, due_at, lock_until FROM coupon WHERE id = ?
		UNION ALL SELECT valid_from, expires_at, due_at, lock_until FROM coupon_archive WHERE id = ?`, m.row.ID, m.row.ID).
		Scan(&m.row.ValidFrom, &m.row.ExpiresAt, &m.row.DueAt, &lock))
	m.row.LockUntil = lock.Time
}

func (m *model) one(t testing.TB, r *rapid.T, d testenv.Database, s *store.Store) {
	switch what := rapid.SampledFrom([]string{"verb", "verb", "verb", "verb", "verb", "lock runs out", "end passes", "trigger", "archive"}).Draw(r, "what"); what {
	case "lock runs out":
		d.Exec(t, `UPDATE coupon SET lock_until = `+whole(-1)+` WHERE id = ? AND status = 2`, m.row.ID)
		m.readTimes(t, d)
	case "end passes":
		d.Exec(t, `UPDATE coupon SET expires_at = `+whole(-1)+`, due_at = expires_at WHERE id = ?`, m.row.ID)
		m.readTimes(t, d)
	case "trigger":
		now, _, err := s.ExpireBatch(t.Context(), triggersFor(int(m.row.ID), 1, coupon.OriginLadder), always)
		require.NoError(r, err)
		switch dec := coupon.Decide(&m.row, coupon.Trigger{Kind: coupon.KindExpire}, now); dec.Action {
		case coupon.Expire:
			m.takeStep(coupon.Step{From: m.row.Status, To: coupon.Expired, Cause: dec.Cause, OrderID: m.row.OrderID, ExpiresAt: m.row.ExpiresAt})
		case coupon.Unlock:
			m.takeStep(coupon.Step{From: m.row.Status, To: coupon.Unused, Cause: dec.Cause, OrderID: m.row.OrderID, ExpiresAt: m.row.ExpiresAt})
		case coupon.Drop, coupon.Reschedule:
		}
	case "archive":
		if m.row.Status == coupon.Used || m.row.Status == coupon.Expired || m.row.Status == coupon.Voided {
			archive(t, d, fmt.Sprint("id = ", m.row.ID))
		}
	default:
		o := m.draw(r)
		r.Logf("%+v", o)
		now, out, err := s.Act(t.Context(), o)
		require.NoError(r, err)
		v := m.expect(o, now)
		for _, step := range v.Steps {
			m.takeStep(step)
		}
		if o.Tombstone && !o.Partial {
			tomb := m.tomb[o.OrderID]
			m.tomb[o.OrderID] = [2]bool{tomb[0] || o.Verb == coupon.VerbRelease, tomb[1] || o.Verb == coupon.VerbRefund}
		}
		got := out[0]
		require.Equal(r, v.Refused, got.Refused, got.Detail)
		require.Equal(r, v.Repeat, got.Repeated)
		require.Equal(r, m.row.Status, got.Coupon.Status)
		require.Equal(r, m.row.Version, got.Coupon.Version)
		require.Equal(r, m.row.OrderID, got.Coupon.OrderID)
		require.Equal(r, m.row.LockUntil, got.Coupon.LockUntil)
		require.Equal(r, m.row.ExpiresAt, got.Coupon.ExpiresAt)
	}
	c, _, err := s.Coupon(t.Context(), m.row.ID)
	require.NoError(r, err)
	require.Equal(r, m.row.Status, c.Status)
	require.Equal(r, m.row.Version, c.Version)
}

func (m *model) draw(r *rapid.T) coupon.Order {
	o := ask(rapid.SampledFrom(coupon.Verbs()).Draw(r, "verb"), rapid.SampledFrom([]string{"a", "b"}).Draw(r, "order"), m.row.ID)
	o.LockFor = time.Duration(rapid.IntRange(1, 7200).Draw(r, "for")) * time.Second
	flag := func(name string, one int) bool { return rapid.IntRange(1, one).Draw(r, name) == 1 }
	switch o.Verb {
	case coupon.VerbRelease, coupon.VerbRefund:
		o.Tombstone, o.Partial = flag("tombstone", 3), o.Verb == coupon.VerbRefund && flag("partial", 4)
	case coupon.VerbExtend:
		o.OrderID = ""
		o.EndsAt = time.Now().UTC().Truncate(time.Second).Add(time.Duration(rapid.IntRange(-1, 3).Draw(r, "end")) * time.Hour)
		if flag("never", 4) {
			o.EndsAt = coupon.Never
		}
	case coupon.VerbReinstate:
		o.OrderID = ""
		o.EndsAt = time.Now().UTC().Truncate(time.Second).Add(time.Duration(rapid.IntRange(-1, 3).Draw(r, "end")) * time.Hour)
	case coupon.VerbVoid:
		o.OrderID, o.BreakLock = "", flag("break", 2)
	case coupon.VerbLock, coupon.VerbRenew, coupon.VerbRedeem:
	}
	return o
}
