package store_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
)

// An order's coupon that comes back is told of at the latest offset that passed meanwhile, if there is time left.
func TestRemindersComeLateAfterAnOrder(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 100, "-2h", "-40m")
	now := m.clock.now.Truncate(time.Second)
	lockFor := func(d time.Duration) func(*coupon.Order) {
		return func(o *coupon.Order) { o.LockFor = d }
	}

	released := m.grant(t, "released", 0, now.Add(3*time.Hour))
	settled := m.grant(t, "settled", 0, now.Add(3*time.Hour))
	refunded := m.grant(t, "refunded", 0, now.Add(3*time.Hour))
	inTime := m.grant(t, "in time", 0, now.Add(3*time.Hour))
	tooLate := m.grant(t, "too late", 0, now.Add(3*time.Hour))
	moved := m.grant(t, "moved", 0, now.Add(3*time.Hour))
	none := m.grant(t, "none", 2, now.Add(3*time.Hour))
	ids := []uint64{released, settled, refunded, inTime, tooLate, moved, none}
	for _, id := range ids {
		m.order(t, coupon.VerbLock, id, lockFor(90*time.Minute))
		m.waiting(t, id)
	}
	m.order(t, coupon.VerbRedeem, refunded, nil)
	m.clock.pass(t, 61*time.Minute) // -2h has passed, an hour and 59 minutes are left
	m.order(t, coupon.VerbRelease, released, nil)
	require.Equal(t, []string{"-2h:3"}, m.waiting(t, released))
	m.order(t, coupon.VerbRelease, none, nil)
	require.Empty(t, m.waiting(t, none))
	m.order(t, coupon.VerbRefund, refunded, nil)
	require.Equal(t, []string{"-2h:4"}, m.waiting(t, refunded))
	m.order(t, coupon.VerbExtend, moved, func(o *coupon.Order) { o.EndsAt = now.Add(5 * time.Hour) })
	m.order(t, coupon.VerbRelease, moved, nil)
	require.Empty(t, m.waiting(t, moved), "of the new end, whose offsets are the planner's")

	// A lock that ran out, settled by its trigger.
	m.clock.pass(t, 34*time.Minute) // 85 minutes are left
	_, _, err := m.s.ExpireBatch(t.Context(), triggersFor(int(settled), 1, coupon.OriginLadder), always)
	require.NoError(t, err)
	require.Equal(t, []string{"-2h:3", "-40m"}, m.waiting(t, settled))

	m.order(t, coupon.VerbLock, settled, lockFor(time.Minute)) // after the instant: nothing passed while it was held
	m.order(t, coupon.VerbRelease, settled, nil)
	require.Equal(t, []string{"-40m"}, m.waiting(t, settled), "the same event once more")

	// Held over the second, with half an hour left, or a little less.
	for _, id := range []uint64{inTime, tooLate} {
		m.order(t, coupon.VerbLock, id, lockFor(time.Hour)) // gives the lock that ran out back first
		require.Empty(t, m.waiting(t, id), "its transaction takes it again")
	}
	m.clock.set(t, now.Add(3*time.Hour-coupon.LateLeast))
	m.order(t, coupon.VerbRelease, inTime, nil)
	require.Equal(t, []string{"-40m:5"}, m.waiting(t, inTime))
	m.clock.pass(t, time.Millisecond)
	m.order(t, coupon.VerbRelease, tooLate, nil)
	require.Empty(t, m.waiting(t, tooLate))
	require.Empty(t, m.heard.ids)
}

// One that was locked and then used was held all the time: what passed while it was locked is told of when it is refunded.
func TestRemindersComeLateAfterALockAndARefund(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 100, "-2h", "-40m")
	now := m.clock.now.Truncate(time.Second)
	lockFor := func(o *coupon.Order) { o.LockFor = 150 * time.Minute }
	held, straight := m.grant(t, "held", 0, now.Add(3*time.Hour)), m.grant(t, "straight", 0, now.Add(3*time.Hour))
	tooLate, none := m.grant(t, "too late", 0, now.Add(3*time.Hour)), m.grant(t, "none", 2, now.Add(3*time.Hour))
	m.order(t, coupon.VerbLock, held, lockFor)
	m.order(t, coupon.VerbLock, tooLate, lockFor)
	m.order(t, coupon.VerbLock, none, lockFor)
	m.clock.pass(t, 65*time.Minute) // -2h has passed
	m.order(t, coupon.VerbRenew, held, lockFor)
	for _, id := range []uint64{held, straight, tooLate, none} {
		m.order(t, coupon.VerbRedeem, id, nil)
		m.waiting(t, id)
	}
	m.clock.pass(t, 5*time.Minute)
	m.order(t, coupon.VerbRefund, held, nil)
	require.Equal(t, []string{"-2h:5"}, m.waiting(t, held))
	m.order(t, coupon.VerbRefund, straight, nil)
	require.Empty(t, m.waiting(t, straight), "it was unused at the instant, and told")
	m.order(t, coupon.VerbRefund, none, nil)
	require.Empty(t, m.waiting(t, none))
	m.clock.set(t, now.Add(3*time.Hour-coupon.LateLeast+time.Millisecond))
	m.order(t, coupon.VerbRefund, tooLate, nil)
	require.Empty(t, m.waiting(t, tooLate))
	require.Empty(t, m.heard.ids)
}

// A million at one instant are so many pages: the cursor goes on within it, each is told of once.
func TestOneInstantManyPages(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 7, "-2h", "-40m")
	ends := m.clock.now.Truncate(time.Minute).Add(4 * time.Hour)
	plant(t, m.d, 1000, 50, coupon.Unused, "'"+ends.Format(time.DateTime)+"'", "NULL")
	m.clock.set(t, ends.Add(-3*time.Hour))
	m.walk(t, 0)
	require.Len(t, m.heard.ids, 50)
	for id, n := range m.heard.ids {
		require.Equal(t, 1, n, id)
	}
	m.clock.pass(t, 10*time.Minute)
	m.walk(t, 1)
	require.Len(t, m.heard.ids, 50)

	// A pod that dies after the confirm repeats that page, with the same ids, and nothing else.
	m.clock.set(t, ends.Add(-100*time.Minute))
	m.rows.deaths = 2 // the first keeps -2h, which has nothing to tell of, from moving its frontier
	m.walk(t, 0)
	require.Len(t, m.heard.ids, 100)
	again := 0
	for _, n := range m.heard.ids {
		again += n - 1
	}
	require.Equal(t, 7, again)
}

// What the planner finds late is told of up to a quarter of the offset, and skipped beyond, if it was owed at all.
func TestNewOffsetBeginsAQuarterBack(t *testing.T) {
	t.Parallel()
	m := newRemindModel(t, 100, "-2h", "-40m")
	now := m.clock.now.Truncate(time.Second)
	require.NoError(t, m.s.SetReminders(t.Context(), remindAt(t, modelLead, "-40m")))
	require.EqualValues(t, 0, m.d.Int(t, `SELECT COUNT(*) FROM setting WHERE name = 'frontier.remind-2h'`), "forgotten")
	ids := map[string]uint64{}
	for name, left := range map[string]time.Duration{"long past": 85, "within a quarter": 105, "ahead": 125} {
		ids[name] = m.grant(t, name, 0, now.Add(30*time.Minute+left*time.Minute))
		m.waiting(t, ids[name])
	}
	m.clock.pass(t, 30*time.Minute)
	inside := m.grant(t, "inside", 0, now.Add(135*time.Minute))
	require.Empty(t, m.waiting(t, inside), "the planner's")

	// The offset comes back: for `limit` nothing, then from a quarter back on.
	require.NoError(t, m.s.SetReminders(t.Context(), m.r))
	m.walk(t, 0)
	for name, id := range ids {
		require.NotContains(t, m.waiting(t, id), "-2h", name)
	}
	m.clock.pass(t, modelLimit)
	m.walk(t, 0)
	require.Equal(t, []string{"-40m"}, m.waiting(t, ids["long past"]))
	require.Equal(t, []string{"-2h"}, m.waiting(t, ids["within a quarter"]))
	require.Equal(t, []string{"-2h"}, m.waiting(t, ids["ahead"]))
	require.Empty(t, m.waiting(t, inside), "granted after its instant: not owed, not skipped")
	require.EqualValues(t, 0, m.d.Int(t, `SELECT COUNT(*) FROM operator_log`))

	// The planner is away for longer than lead and a quarter.
	later := m.grant(t, "later", 0, m.clock.now.Add(4*time.Hour))
	m.clock.pass(t, 151*time.Minute)
	m.rows.deaths = 3
	m.walk(t, 0)
	require.Zero(t, m.rows.deaths)
	require.Equal(t, []string{"-40m"}, m.waiting(t, later))
	deeds, err := m.s.Deeds(t.Context(), store.DeedRemindersSkipped, 0, 10)
	require.NoError(t, err)
	require.Len(t, deeds, 1, "with the move, whatever came of it before")
	require.Equal(t, "planner", deeds[0].Actor)
	require.Equal(t, "-2h", deeds[0].Subject)
	detail, err := json.Marshal(deeds[0].Detail)
	require.NoError(t, err)
	require.Contains(t, string(detail), `"skipped":1`)
}
