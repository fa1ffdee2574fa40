package store_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// waiting gives the reminders in the outbox of a coupon, without its id and end, and forgets them.
func (m *remindModel) waiting(t testing.TB, id uint64) []string {
	t.Helper()
	m.drain(t)
	var out []string
	for e := range m.heard.ids {
		if rest, mine := strings.CutPrefix(e, strconv.FormatUint(id, 10)+":"); mine {
			_, rest, _ = strings.Cut(rest, ":expiring:")
			out = append(out, rest)
			delete(m.heard.ids, e)
		}
	}
	slices.Sort(out)
	return out
}

func (m *remindModel) grant(t testing.TB, key string, template int, ends time.Time) uint64 {
	t.Helper()
	m.clock.set(t, m.clock.now)
	out, err := m.s.Issue(t.Context(), []coupon.Grant{{Key: key, TemplateID: m.template[template], UserID: "u", EventID: "e", ExpiresAt: ends}})
	require.NoError(t, err)
	require.Empty(t, out[0].Refused, out[0].Detail)
	return out[0].CouponID
}

func (m *remindModel) order(t testing.TB, verb coupon.Verb, id uint64, change func(*coupon.Order)) {
	t.Helper()
	o := ask(verb, "o", id)
	if change != nil {
		change(&o)
	}
	m.clock.set(t, m.clock.now)
	_, out, err := m.s.Act(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, out[0].Refused, out[0].Detail)
}

// Of -2h and -40m with a lead of an hour, verbs reach 3 h and 1 h 40 min ahead.
func TestRemindersOfVerbs(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 100, "-2h", "-40m")
	now := m.clock.now.Truncate(time.Second)
	for _, c := range []struct {
		name     string
		template int
		left     time.Duration
		want     []string
	}{
		{"the second is the planner's", 0, 130 * time.Minute, []string{"-2h"}}, // -40m reaches 100 minutes and the guard of 4
		{"inside the first", 0, 100 * time.Minute, []string{"-40m"}},
		{"inside both", 0, 39 * time.Minute, nil},
		{"the first alone is near", 0, 179 * time.Minute, []string{"-2h"}},
		{"beyond", 0, 190 * time.Minute, nil},
		{"picks none", 2, 100 * time.Minute, nil},
		{"picks the first", 4, 100 * time.Minute, nil},
		{"picks the first, in time", 4, 150 * time.Minute, []string{"-2h"}},
	} {
		require.Equal(t, c.want, m.waiting(t, m.grant(t, c.name, c.template, now.Add(c.left))), c.name)
	}
	id := m.grant(t, "never", 0, coupon.Never)
	require.Empty(t, m.waiting(t, id))
	m.order(t, coupon.VerbExtend, id, func(o *coupon.Order) { o.EndsAt = now.Add(100 * time.Minute) })
	require.Equal(t, []string{"-40m"}, m.waiting(t, id))
	m.order(t, coupon.VerbExtend, id, func(o *coupon.Order) { o.EndsAt = now.Add(150 * time.Minute) })
	require.Equal(t, []string{"-2h"}, m.waiting(t, id), "of the new end, those ahead")
	require.Empty(t, m.heard.ids)
}

// What the planner walks while a verb's transaction is in flight, the verb has told of: its guard. What it walked while the lead
// was longer, verbs tell of as well: they go by the frontier.
func TestNothingFallsBetweenVerbsAndPlanner(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 100, "-2h", "-40m")
	minute := m.clock.now.Truncate(time.Minute).Add(time.Minute)
	m.clock.set(t, minute.Add(50*time.Second))
	m.walk(t, 0)
	m.clock.set(t, minute.Add(59*time.Second))
	ends := minute.Add(3*time.Hour + 90*time.Second) // in the slice that the planner opens in a second
	id := m.grant(t, "in flight", 0, ends)
	m.hidden(t, id, func() {
		m.clock.set(t, minute.Add(63*time.Second))
		m.walk(t, 0)
	})
	m.walk(t, 0)
	require.Equal(t, []string{"-2h"}, m.waiting(t, id))

	for _, lead := range []time.Duration{2 * modelLead, modelLead} {
		require.NoError(t, m.s.SetReminders(t.Context(), remindAt(t, lead, "-2h", "-40m")))
		m.clock.pass(t, modelLimit)
		m.walk(t, 0)
		m.waiting(t, id)
	}
	id = m.grant(t, "behind the frontier", 0, m.clock.now.Truncate(time.Second).Add(2*time.Hour+modelLead+30*time.Minute))
	m.walk(t, 0)
	require.Equal(t, []string{"-2h"}, m.waiting(t, id))
}

// Settings that are the same keep their age; others take the plans from whoever walks them.
func TestSetReminders(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	got, err := s.Reminders(t.Context())
	require.NoError(t, err)
	require.Empty(t, got.Offsets)
	_, held, err := s.ClaimPlan(t.Context(), "remind-2h", "a", time.Minute)
	require.NoError(t, err)
	require.False(t, held, "there is no such plan")

	shanghai, err := time.LoadLocation("Asia/Shanghai")
	require.NoError(t, err)
	want := remindAt(t, time.Hour, "-2h", "-1d@10:00")
	want.Zone = shanghai
	require.NoError(t, s.SetReminders(t.Context(), want))
	got, err = s.Reminders(t.Context())
	require.NoError(t, err)
	require.Equal(t, want.Offsets, got.Offsets)
	require.Equal(t, want.Leads, got.Leads)
	require.Equal(t, shanghai.String(), got.Zone.String())

	var place coupon.PlanPlace
	for !held { // the first who comes by makes the row
		place, held, err = s.ClaimPlan(t.Context(), "remind-2h", "a", time.Minute)
		require.NoError(t, err)
	}
	require.Equal(t, 3*time.Hour, place.Horizon)
	require.Equal(t, 90*time.Minute, place.Fresh)
	_, other, err := s.ClaimPlan(t.Context(), "remind-2h", "b", time.Minute)
	require.NoError(t, err)
	require.False(t, other)
	place.Frontier = place.Now.Add(time.Hour).Truncate(time.Second)
	held, err = s.MovePlan(t.Context(), "remind-2h", "a", place, time.Minute)
	require.NoError(t, err)
	require.True(t, held)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'frontier.remind-2h'`))

	require.NoError(t, s.SetReminders(t.Context(), want))
	held, err = s.MovePlan(t.Context(), "remind-2h", "a", place, time.Minute)
	require.NoError(t, err)
	require.True(t, held, "nothing has changed")

	require.NoError(t, s.SetReminders(t.Context(), remindAt(t, time.Hour, "-3h")))
	held, err = s.MovePlan(t.Context(), "remind-2h", "a", place, time.Minute)
	require.NoError(t, err)
	require.False(t, held, "its walker is told")
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'frontier.remind-2h'`))

	require.NoError(t, s.SetReminders(t.Context(), coupon.Reminders{}))
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'reminders'`))

	// What cannot be read reminds of nothing, and stops nobody.
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('reminders', '{"zone":"Mars/Olympus"}', UTC_TIMESTAMP(3))`)
	id := issueOne(t, s, grant(create(t, s, nil), "u", "k")).CouponID
	require.NotZero(t, id)
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = ?`, event.KeyExpiring))
}
