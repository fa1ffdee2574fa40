package audit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/audit"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var strict = audit.Rules{OnePerUser: true}

func good() audit.Report {
	return audit.Report{
		Coupons: coupons, Expired: coupons, Transitions: coupons, Events: coupons,
		Notices: users, CouponsInNotices: coupons, UsersWithNotice: users, Users: users, Waiting: waiting,
		Details: audit.Details{WaitingAsked: waiting},
	}
}

func TestAGoodRunPasses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	r := s.report(t)

	require.Empty(t, r.Failures(strict))
	require.Empty(t, compare(good(), r))
	require.Equal(t, audit.Lateness{P50: 30, P95: 60, P99: 60, Max: 60}, r.TransitionLateness)
	require.GreaterOrEqual(t, r.EventLateness.P50, int64(20_000))
	require.InDelta(t, float64(coupons)/5.05, r.ThroughputPerS, 0.1)
	require.Equal(t, "你有2张优惠券已过期 / 2 of your coupons have expired", r.Example)
	require.InDelta(t, time.Hour, r.NextWaiting, float64(time.Minute))

	p := s.audit.Progress()
	require.Equal(t, coupons, p.Granted)
	require.Equal(t, coupons, p.Ended)
	require.Equal(t, coupons, p.Expired)
	require.Greater(t, p.Max, p.P50)
}

// compare leaves out what is measured.
func compare(want, got audit.Report) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(audit.Report{},
		"TransitionLateness", "EventLateness", "ThroughputPerS", "Example", "ExampleID", "NextWaiting"),
		cmpopts.IgnoreFields(audit.Details{}, "Strange"))
}

// TestEveryDamageIsFound damages a good run in one way and expects exactly the findings of that damage.
func TestEveryDamageIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, s *scene)
		want   func(r *audit.Report)
		says   string
	}{
		{
			name:   "row and history tell of an expiry before the asked end",
			damage: func(t *testing.T, s *scene) { s.undo(t, 1); s.expireRow(t, 1, s.ends[0].Add(-time.Millisecond)) },
			want:   func(r *audit.Report) { r.Early = 1 },
			says:   "1 coupons early",
		},
		{
			name: "the row was shortened, and kept the shorter end",
			damage: func(t *testing.T, s *scene) {
				s.undo(t, 1)
				s.db.Exec(t, `UPDATE coupon SET expires_at=expires_at-INTERVAL 5 SECOND, due_at=expires_at WHERE id=1`)
				s.expireRow(t, 1, s.ends[0].Add(-5*time.Second))
			},
			want: func(r *audit.Report) { r.Early, r.Details.WrongEnds = 1, 1 },
			says: "1 rows or events with another end",
		},
		{
			name:   "a waiting coupon is expired",
			damage: func(t *testing.T, s *scene) { s.expireRow(t, coupons+1, s.ends[coupons].Add(time.Second)) },
			want: func(r *audit.Report) {
				r.Early, r.Waiting, r.Transitions = 1, waiting-1, coupons+1
			},
			says: "1 coupons waiting, 2 should be",
		},
		{
			name: "a waiting coupon was unusable for a while",
			damage: func(t *testing.T, s *scene) {
				s.db.Exec(t, `UPDATE coupon SET status=4 WHERE id=?`, coupons+1)
				testenv.Wait(t, "the watch sees it", func() bool { return s.audit.Watched() == 1 })
				s.db.Exec(t, `UPDATE coupon SET status=1 WHERE id=?`, coupons+1)
			},
			want: func(r *audit.Report) { r.Early = 1 },
			says: "1 coupons early",
		},
		{
			name: "an event comes before the asked end, and lies about when",
			damage: func(t *testing.T, s *scene) {
				id := coupons + 1
				s.tellExpired(t, id, fmt.Sprintf("%d:2:expired", id), s.ends[id-1].Add(time.Second))
			},
			want: func(r *audit.Report) { r.Early, r.Events, r.Details.StrayEvents = 1, coupons+1, 1 },
			says: "1 coupons early",
		},
		{
			name:   "lost: never expired",
			damage: func(t *testing.T, s *scene) { s.undo(t, 1) },
			want: func(r *audit.Report) {
				r.Expired, r.NotExpired, r.Transitions = coupons-1, 1, coupons-1
				r.CouponsInNotices, r.Details.StrayEvents, r.Details.WrongNotices = coupons-1, 1, 1
			},
			says: "1 coupons lost",
		},
		{
			name: "lost: the row is gone",
			damage: func(t *testing.T, s *scene) {
				s.db.Exec(t, `DELETE FROM coupon WHERE id=1`)
			},
			want: func(r *audit.Report) {
				r.Expired, r.NotExpired, r.Transitions, r.CouponsInNotices = coupons-1, 1, coupons-1, coupons-1
				r.Details.Ungranted, r.Details.StrayEvents, r.Details.WrongNotices = 1, 1, 1
			},
			says: "1 coupons asked for but not there",
		},
		{
			name:   "wrong state: used",
			damage: func(t *testing.T, s *scene) { s.db.Exec(t, `UPDATE coupon SET status=3, expired_at=NULL WHERE id=2`) },
			want: func(r *audit.Report) {
				r.Expired, r.NotExpired, r.Details.Inconsistent = coupons-1, 1, 1
				r.CouponsInNotices, r.Details.StrayEvents, r.Details.WrongNotices = coupons-1, 1, 1
			},
			says: "1 coupons whose history does not lead to their row",
		},
		{
			name:   "doubled transition",
			damage: func(t *testing.T, s *scene) { s.history(t, 3, 3, 1, 4, "ladder", s.ends[2].Add(time.Second)) },
			want: func(r *audit.Report) {
				r.Transitions, r.DuplicateTransitions, r.Details.Inconsistent = coupons+1, 1, 1
			},
			says: "1 coupons expired more than once",
		},
		{
			name:   "doubled grant",
			damage: func(t *testing.T, s *scene) { s.row(t, 99, user(1), s.ends[0]) },
			want:   func(r *audit.Report) { r.Details.Unasked = 1 },
			says:   "1 coupons that nobody asked for",
		},
		{
			name:   "one event twice",
			damage: func(t *testing.T, s *scene) { s.tellExpired(t, 1, "1:2:expired", s.ends[0].Add(10*time.Millisecond)) },
			want:   func(r *audit.Report) { r.DuplicateEventIDs = 1 },
			says:   "1 event ids heard more than once",
		},
		{
			name:   "two events of one coupon",
			damage: func(t *testing.T, s *scene) { s.tellExpired(t, 1, "1:3:expired", s.ends[0].Add(10*time.Millisecond)) },
			want:   func(r *audit.Report) { r.Events, r.Details.DoubledEvents = coupons+1, 1 },
			says:   "1 coupons called expired by events with different ids",
		},
		{
			name: "missing event",
			damage: func(t *testing.T, s *scene) {
				end := s.audit.Now().Truncate(time.Second).Add(-2 * time.Second)
				s.ends = append(s.ends, end)
				id := len(s.ends)
				s.audit.Expect(audit.Ask{Key: key(id), User: user(id), End: end})
				s.grant(t, id)
				s.expireRow(t, id, end.Add(time.Millisecond))
				s.item(t, (id-1)%users+1, id)
				s.db.Exec(t, `UPDATE inbox SET items=3 WHERE user_id=?`, user(id))
			},
			want: func(r *audit.Report) {
				r.Coupons, r.Expired, r.Transitions, r.CouponsInNotices = coupons+1, coupons+1, coupons+1, coupons+1
				r.MissingEvents = 1
			},
			says: "1 expired coupons that no event told of",
		},
		{
			name: "only the sweep found it",
			damage: func(t *testing.T, s *scene) {
				s.db.Exec(t, `UPDATE coupon_history SET cause='sweep' WHERE coupon_id=4 AND version=2`)
			},
			want: func(r *audit.Report) { r.SweepRecovered = 1 },
			says: "1 coupons that only the sweep found",
		},
		{
			name:   "missing notice",
			damage: func(t *testing.T, s *scene) { s.db.Exec(t, `DELETE FROM inbox WHERE window_id=2`) },
			want:   func(r *audit.Report) { r.Notices, r.UsersWithNotice, r.CouponsInNotices = users-1, users-1, coupons-2 },
			says:   "2 users have a notice, 3 should",
		},
		{
			name:   "a coupon left out of its notice",
			damage: func(t *testing.T, s *scene) { s.db.Exec(t, `UPDATE notice_item SET dropped='late' WHERE coupon_id=1`) },
			want:   func(r *audit.Report) { r.CouponsInNotices, r.Details.WrongNotices = coupons-1, 1 },
			says:   "1 notices that miscount",
		},
		{
			name:   "a second notice",
			damage: func(t *testing.T, s *scene) { s.notify(t, 77, 1, 1+users) },
			want:   func(r *audit.Report) { r.Notices, r.Details.InTwoNotices = users+1, 2 },
			says:   "4 notices to 3 users, each should have one",
		},
		{
			name:   "a notice to somebody else",
			damage: func(t *testing.T, s *scene) { s.db.Exec(t, `UPDATE inbox SET user_id='user-2' WHERE window_id=1`) },
			want:   func(r *audit.Report) { r.UsersWithNotice, r.Details.WrongUsers = users-1, 2 },
			says:   "2 rows, events or notices with another user",
		},
		{
			name:   "a notice that was never sent",
			damage: func(t *testing.T, s *scene) { s.db.Exec(t, `UPDATE notice SET state='pending' WHERE window_id=1`) },
			want:   func(r *audit.Report) { r.Details.Unsent = 1 },
			says:   "1 notices still to be sent",
		},
		{
			name: "a refused grant",
			damage: func(t *testing.T, s *scene) {
				s.send(t, "coupon.refused", "x:refused", map[string]any{"grant_key": "demo-9", "code": "invalid"})
			},
			want: func(r *audit.Report) { r.Details.Refused = map[string]int{"invalid": 1} },
			says: "grants refused: 1 × invalid",
		},
		{
			name:   "no event at all",
			damage: func(t *testing.T, s *scene) { s.raw(t, "coupon.expired", []byte("not JSON")) },
			want:   func(r *audit.Report) { r.Details.StrangeEvents = 1 },
			says:   "1 events that break the contract",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			c.damage(t, s)
			r := s.report(t)
			want := good()
			c.want(&want)
			require.Empty(t, compare(want, r))
			require.Contains(t, strings.Join(r.Failures(strict), "\n"), c.says)
		})
	}
}

// undo takes a coupon back to unused, as if it had never expired.
func (s *scene) undo(t *testing.T, id int) {
	t.Helper()
	s.db.Exec(t, `UPDATE coupon SET status=1, version=1, expired_at=NULL, expire_cause=NULL WHERE id=?`, id)
	s.db.Exec(t, `DELETE FROM coupon_history WHERE coupon_id=? AND version=2`, id)
}

func TestWhatAKilledRunIsAllowed(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.tellExpired(t, 1, "1:2:expired", s.ends[0].Add(10*time.Millisecond))
	s.db.Exec(t, `UPDATE coupon_history SET cause='sweep' WHERE coupon_id=4 AND version=2`)
	r := s.report(t)

	killed := audit.Rules{Repeats: true, Sweep: true, Faults: true, OnePerUser: true}
	require.Empty(t, r.Failures(killed))
	require.Equal(t, 1, r.DuplicateEventIDs, "reported all the same")
	killed.MaxLate = 59 * time.Millisecond
	require.Len(t, r.Failures(killed), 1)
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := s.config(t)
	c.Exchange = "t-no-such-exchange"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := audit.Open(ctx, c)
	require.ErrorContains(t, err, "t-no-such-exchange")
}
