package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestHealthyBooksAgree(t *testing.T) {
	t.Parallel()
	s, _ := full(t)
	rep := s.reconcile(t, reconcile.Ask{})
	require.Empty(t, text(rep))
	require.Zero(t, rep.Left())
	require.EqualValues(t, 180, rep.Coupons)
	require.Len(t, rep.Templates, 3)
	for i, b := range rep.Templates {
		require.EqualValues(t, 60, b.Granted)
		require.EqualValues(t, 60, b.Statistics)
		require.Equal(t, b.Granted, b.Unused+b.Locked+b.Used+b.Expired+b.Voided+b.Archived)
		require.Positive(t, b.Expired)
		if i > 0 {
			require.Equal(t, b.Granted-b.Expired-b.Voided, b.Taken)
		}
	}
	for part := range 3 {
		require.Empty(t, text(s.reconcile(t, reconcile.Ask{Part: part, Of: 3})))
	}
	require.Empty(t, text(s.reconcile(t, reconcile.Ask{Template: s.templates[1]})))
}

// TestEveryKindOfDamageIsFound: one of each is planted, and nothing else is found; four kinds are repaired, and the second
// look finds the others alone.
func TestEveryKindOfDamageIsFound(t *testing.T) {
	t.Parallel()
	s, ids := full(t)
	var of []uint64 // of a template that loses one
	var counted []uint64
	for i, back := range []coupon.QuotaBack{coupon.QuotaBackNone, coupon.QuotaBackNone, coupon.QuotaBackTotal, coupon.QuotaBackTotalAndUser, coupon.QuotaBackNone} {
		template := s.create(t, back)
		ids, err := s.issue(t.Context(), template, fmt.Sprintf("more%d", i), 10)
		require.NoError(t, err)
		require.NoError(t, s.act(t.Context(), coupon.VerbVoid, "", ids[9]))
		counted = append(counted, template)
		if i == 0 {
			of = ids
		}
	}
	require.NoError(t, s.count(t.Context()))
	s.settleBooks(t)
	require.Empty(t, text(s.reconcile(t, reconcile.Ask{})))

	a, b, c := ids[0], ids[1], ids[2]
	s.past(t, a[0])                                                                             // overdue: unused
	s.past(t, a[1])                                                                             // overdue lock, ended
	s.Exec(t, `UPDATE coupon SET lock_until = lock_until - INTERVAL 2 HOUR WHERE id = ?`, a[8]) // and not ended
	s.Exec(t, `UPDATE template_stock SET taken = taken + 3 WHERE template_id = ?`, counted[1])
	s.Exec(t, `UPDATE template_stock SET taken = taken - 2 WHERE template_id = ?`, counted[2])
	s.Exec(t, `UPDATE user_quota SET taken = taken + 1 WHERE template_id = ? AND user_id = 'u1'`, counted[3])
	s.Exec(t, `UPDATE template_stats SET used = used + 4, used_value = used_value - 1 WHERE template_id = ?`, counted[4])
	s.Exec(t, `DELETE FROM coupon WHERE id = ?`, of[3]) // lost
	s.Exec(t, `DELETE FROM coupon_history WHERE coupon_id = ?`, of[3])
	s.Exec(t, `DELETE FROM coupon_history WHERE coupon_id = ? AND version = 2`, b[5]) // a gap
	s.Exec(t, `UPDATE coupon_history SET from_status = 4 WHERE coupon_id = ? AND version = 3`, b[12])
	s.Exec(t, `UPDATE coupon SET status = 3 WHERE id = ?`, c[0])
	s.Exec(t, `UPDATE coupon SET expires_at = expires_at + INTERVAL 1 SECOND WHERE id = ?`, c[5])
	s.Exec(t, `INSERT INTO outbox (lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, refused, created_at)
		VALUES (1,3,?,'x','coupon.used',' ',NULL,'','',0,UTC_TIMESTAMP(3) - INTERVAL 1 HOUR)`, a[0])
	s.Exec(t, `INSERT INTO outbox_parked (id, lane, part, coupon_id, msg_id, routing_key, class, deliver_at, body, trace, reason, parked_at)
		VALUES (900,1,2,2,'2:2:expired','coupon.expired',' ',NULL,'','','',UTC_TIMESTAMP(3) - INTERVAL 1 HOUR)`)
	for i, at := range []string{"- INTERVAL 3 HOUR", "- INTERVAL 1 HOUR", "+ INTERVAL 1 HOUR"} {
		s.Exec(t, `INSERT INTO notice (window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at)
			VALUES (?,'sms','u','expired',1,'pending','',0,UTC_TIMESTAMP(3) `+at+`,UTC_TIMESTAMP(3))`, i+1)
		s.Exec(t, `INSERT INTO notice_window (user_id, kind, open_mark, items, opened_at, last_item_at, due_at, closed_by)
			VALUES (?,'expiring',1,1,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),UTC_TIMESTAMP(3) `+at+`,'')`, fmt.Sprint("u", i))
	}
	s.Exec(t, `DELETE FROM ledger_seen WHERE coupon_id = ? AND version = 1`, c[6])
	s.Exec(t, `UPDATE coupon_history SET at = at - INTERVAL 2 HOUR WHERE coupon_id = ? AND version = 1`, c[6])
	archived := uint64(s.Int(t, `SELECT MIN(id) FROM coupon_archive`))
	s.Exec(t, `INSERT INTO coupon SELECT id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, locked_at,
		lock_until, order_id, late_pay_policy, late_pay_window, used_at, expired_at, expire_cause, observed FROM coupon_archive WHERE id = ?`, archived)
	s.Exec(t, `INSERT INTO coupon_history SELECT * FROM coupon_history_archive WHERE coupon_id = ?`, archived)

	look := func(repair *reconcile.Repair) *reconcile.Report {
		export := fmt.Sprintf(`{"order_id":"p","state":"paid","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"o%d","state":"closed","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"o%d","state":"closed","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}

{"order_id":"o%d","state":"refunded","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"o%d","state":"paid","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"o%d","state":"paid","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"x","state":"closed","coupon_ids":["%d"],"at":"2026-01-01T00:00:00Z"}
{"order_id":"young","state":"paid","coupon_ids":["%d"],"at":"2999-01-01T00:00:00Z"}`,
			c[7*5], c[15], c[15], c[16], c[16], c[20], c[20], c[23], c[23], c[24], c[24], c[22], c[22])
		rep := s.reconcile(t, reconcile.Ask{Export: strings.NewReader(export), Repair: repair})
		require.Equal(t, 7, rep.Orders)
		require.Equal(t, 1, rep.Young)
		return rep
	}
	listed := map[coupon.FindingKind][2]int64{
		coupon.FindLost: {1, 0}, coupon.FindTwice: {1, 0}, coupon.FindHistory: {2, 0}, coupon.FindState: {2, 0}, coupon.FindUnsent: {1, 0},
		coupon.FindParked: {1, 0}, coupon.FindUntold: {2, 0}, coupon.FindUncount: {1, 0}, coupon.FindPaid: {1, 0}, coupon.FindClosed: {2, 0}, coupon.FindRefunded: {1, 0},
		coupon.FindBalance: {2, 0}, // the lost one, and the one that is there twice
	}
	rep := look(nil)
	got := counts(rep)
	t.Log("\n" + text(rep))
	for kind, want := range listed {
		require.Equal(t, want, got[kind], kind)
	}
	require.Equal(t, [2]int64{1, 0}, got[coupon.FindOverdue])
	require.Equal(t, [2]int64{2, 0}, got[coupon.FindStuckLock])
	// Beside what was planted: the coupon that is there twice and the one that is lost, in a user's counter each, and the
	// days of those templates whose histories were cut.
	require.Equal(t, [2]int64{3 + 2, 0}, got[coupon.FindQuota])
	require.Equal(t, [2]int64{1 + 4, 0}, got[coupon.FindStatistics])
	again := look(nil)
	again.Began = rep.Began
	require.Equal(t, rep, again, "nothing was changed")

	got = counts(look(&reconcile.Repair{Actor: "alice", Reason: "drill", Mender: s.Store, Allow: always}))
	require.Equal(t, [2]int64{1, 1}, got[coupon.FindOverdue])
	require.Equal(t, [2]int64{2, 2}, got[coupon.FindStuckLock])
	require.Equal(t, [2]int64{3 + 2, 3}, got[coupon.FindQuota], "no counter of a template that is not whole")
	require.Equal(t, [2]int64{1 + 4, 1}, got[coupon.FindStatistics], "likewise")
	require.EqualValues(t, 1, s.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id = ? AND to_status = 4 AND cause = 'admin' AND actor = 'alice'
		AND reason = 'drill' AND origin = 'repair'`, a[0]))
	require.EqualValues(t, 2, s.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE coupon_id IN (?,?) AND from_status = 2 AND cause = 'lock' AND actor = 'lapse'`, a[1], a[8]))
	// What the repair did, the statistics and the outbox still have to hear.
	s.Exec(t, `DELETE FROM outbox WHERE created_at > UTC_TIMESTAMP(3) - INTERVAL 10 MINUTE`)
	rep = look(nil)
	t.Log("\n" + text(rep))
	got = counts(rep)
	require.Equal(t, [2]int64{2, 0}, got[coupon.FindQuota])
	require.Equal(t, [2]int64{4, 0}, got[coupon.FindStatistics])
	delete(got, coupon.FindQuota)
	delete(got, coupon.FindStatistics)
	require.Equal(t, listed, got)
	require.Contains(t, text(s.reconcile(t, reconcile.Ask{Template: counted[0]})), "balance | template "+fmt.Sprint(counted[0]))
	require.Empty(t, text(s.reconcile(t, reconcile.Ask{Template: counted[1]})))
}

// TestABusyDatabaseIsHealthy: while grants, orders, expiry, folding, counting and the archive go on, nothing is found.
func TestABusyDatabaseIsHealthy(t *testing.T) {
	t.Parallel()
	s, _ := full(t)
	seed := testenv.Seed(t)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	work := func(what string, fn func(r *rand.Rand, n int) error) {
		r := rand.New(rand.NewPCG(seed, uint64(len(what))))
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := fn(r, n); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	bg := context.WithoutCancel(ctx)
	work("grants", func(_ *rand.Rand, n int) error {
		_, err := s.issue(bg, s.templates[n%3], fmt.Sprintf("busy%d", n), 20)
		return err
	})
	work("orders", func(r *rand.Rand, n int) error {
		top := s.Int(t, `SELECT MAX(id) FROM coupon`)
		verbs := []coupon.Verb{coupon.VerbLock, coupon.VerbRedeem, coupon.VerbRefund, coupon.VerbVoid, coupon.VerbRelease}
		return s.act(bg, verbs[r.IntN(len(verbs))], fmt.Sprintf("o%d", n/3), 1+r.Uint64N(uint64(top)))
	})
	work("ends", func(r *rand.Rand, _ int) error {
		id := 1 + r.Uint64N(uint64(s.Int(t, `SELECT MAX(id) FROM coupon`)))
		// One statement, so that a view has both or neither.
		_, _ = s.SQL.ExecContext(bg, `UPDATE coupon c JOIN coupon_history h ON h.coupon_id = c.id SET c.valid_from = c.valid_from - INTERVAL 1 DAY,
			c.expires_at = c.expires_at - INTERVAL 61 MINUTE, c.due_at = c.due_at - INTERVAL 61 MINUTE,
			h.expires_at = h.expires_at - INTERVAL 61 MINUTE, h.due_at = h.due_at - INTERVAL 61 MINUTE WHERE c.id = ? AND c.status = 1`, id)
		_, _, err := s.ExpireBatch(bg, []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: id, At: time.Now(), Origin: coupon.OriginLadder}}, always)
		return err
	})
	work("given back", func(r *rand.Rand, _ int) error {
		var ids []uint64
		rows, err := s.SQL.QueryContext(bg, `SELECT id FROM coupon WHERE status = 4 LIMIT 5`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id uint64
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if err := rows.Err(); err != nil || len(ids) == 0 {
			return err
		}
		return s.act(bg, coupon.VerbReinstate, "", ids[r.IntN(len(ids))])
	})
	work("folding", func(_ *rand.Rand, _ int) error {
		_, _, err := s.FoldQuota(bg, 20)
		return err
	})
	work("counting", func(_ *rand.Rand, _ int) error { return s.count(bg) })
	work("archive", func(_ *rand.Rand, _ int) error {
		_, _ = s.SQL.ExecContext(bg, `DELETE FROM outbox`)
		page, err := s.FinishedPage(bg, coupon.Used, time.Now().Add(time.Hour), coupon.Cursor{}, 10)
		if err == nil {
			_, err = s.ArchiveBatch(bg, page.Old)
		}
		return err
	})
	for range 4 {
		rep, err := reconcile.Reconcile(t.Context(), config(func(c *reconcile.Config) { c.Settled, c.Range = 2*time.Second, 500 }), s.Store, reconcile.Ask{})
		require.NoError(t, err)
		require.Empty(t, text(rep))
	}
	stop()
	all.Wait()
	for more := true; more; {
		before := s.Int(t, `SELECT COUNT(*) FROM ledger_seen`)
		require.NoError(t, s.count(t.Context()))
		more = s.Int(t, `SELECT COUNT(*) FROM ledger_seen`) > before
	}
	rep := s.reconcile(t, reconcile.Ask{})
	require.Empty(t, text(rep))
	t.Logf("%d coupons, %d archived", rep.Coupons, s.Int(t, `SELECT COUNT(*) FROM coupon_archive`))
}

// count brings steps that the statistics have not seen, as their events would.
func (s *shop) count(ctx context.Context) error {
	rows, err := s.SQL.QueryContext(ctx, `SELECT h.coupon_id, h.version, h.from_status, h.to_status, h.at, c.template_id FROM coupon_history h JOIN coupon c ON c.id = h.coupon_id
		LEFT JOIN ledger_seen l ON l.coupon_id = h.coupon_id AND l.version = h.version WHERE l.coupon_id IS NULL LIMIT 300`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var events []coupon.Counted
	for rows.Next() {
		e := coupon.Counted{Value: 500}
		if err := rows.Scan(&e.CouponID, &e.Version, &e.From, &e.To, &e.At, &e.TemplateID); err != nil {
			return err
		}
		e.Moved = e.From == e.To
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	_, err = s.CountEvents(ctx, events)
	return err
}
