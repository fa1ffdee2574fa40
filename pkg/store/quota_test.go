package store_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// foldAll folds until nothing is left, and says how many.
func foldAll(t testing.TB, s *store.Store, limit int) (total int) {
	t.Helper()
	for more := true; more; {
		var n int
		var err error
		n, more, err = s.FoldQuota(t.Context(), limit)
		require.NoError(t, err)
		total += n
	}
	return total
}

// taken gives the template's counter and the sum of its users'.
func taken(t testing.TB, d testenv.Database, template uint64) [2]int64 {
	t.Helper()
	return [2]int64{
		d.Int(t, `SELECT taken FROM template_stock WHERE template_id = ?`, template),
		d.Int(t, `SELECT SUM(taken) FROM user_quota WHERE template_id = ?`, template),
	}
}

func TestFoldQuotaGivesBackOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		back coupon.QuotaBack
		want [2]int64
	}{
		{coupon.QuotaBackNone, [2]int64{12, 12}},
		{coupon.QuotaBackTotal, [2]int64{5, 12}},
		{coupon.QuotaBackTotalAndUser, [2]int64{5, 5}},
	} {
		t.Run(string(c.back), func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			s := d.Store(t)
			template := create(t, s, func(x *coupon.Template) { x.Quota, x.PerUser, x.Terms.QuotaBack = 12, 4, c.back })
			var ids []uint64
			for i := range 12 {
				ids = append(ids, issueOne(t, s, grant(template, fmt.Sprintf("u%d", i%3), fmt.Sprintf("k%d", i))).CouponID)
			}
			d.Exec(t, `UPDATE coupon SET valid_from = valid_from - INTERVAL 1 DAY, expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE,
				due_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE WHERE id <= ?`, ids[6])
			_, out, err := s.ExpireBatch(t.Context(), triggersFor(int(ids[0]), 7, coupon.OriginLadder), always)
			require.NoError(t, err)
			require.Len(t, out, 7)
			returns := 7
			if c.back == coupon.QuotaBackNone {
				returns = 0
			}
			require.Equal(t, [2]int64{12, 12}, taken(t, d, template), "nothing before it is folded")
			require.Equal(t, returns, foldAll(t, s, 2))
			require.Equal(t, c.want, taken(t, d, template))
			require.Zero(t, foldAll(t, s, 2))
			require.Equal(t, c.want, taken(t, d, template))
			require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM quota_return`))
		})
	}
}

// What an order does within a coupon's life gives nothing back: the holder keeps the coupon. A refund past the end does,
// and so does a withdrawal.
func TestQuotaReturnsOfVerbs(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(x *coupon.Template) { x.Quota, x.PerUser, x.Terms.QuotaBack = 5, 5, coupon.QuotaBackTotalAndUser })
	id := issueOne(t, s, grant(template, "u", "k1")).CouponID
	withdrawn := issueOne(t, s, grant(template, "u", "k2")).CouponID
	do := func(id uint64, verb coupon.Verb, order string) {
		t.Helper()
		o := coupon.Order{Verb: verb, OrderID: order, CouponIDs: []uint64{id}}
		switch verb {
		case coupon.VerbLock:
			o.LockFor = time.Hour
		case coupon.VerbVoid:
			o.OrderID, o.Actor, o.Reason = "", "test", "test"
		case coupon.VerbRenew, coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbRefund, coupon.VerbExtend, coupon.VerbReinstate:
		}
		_, out, err := s.Act(t.Context(), o)
		require.NoError(t, err)
		require.Empty(t, out[0].Refused)
	}
	do(id, coupon.VerbLock, "o1")
	do(id, coupon.VerbRelease, "o1")
	do(id, coupon.VerbLock, "o2")
	do(id, coupon.VerbRedeem, "o2")
	do(id, coupon.VerbRefund, "o2")
	require.Zero(t, foldAll(t, s, 10))
	require.Equal(t, [2]int64{2, 2}, taken(t, d, template))
	do(id, coupon.VerbRedeem, "o3")
	d.Exec(t, `UPDATE coupon SET valid_from = valid_from - INTERVAL 1 DAY, expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 MINUTE WHERE id = ?`, id)
	do(id, coupon.VerbRefund, "o3")
	require.EqualValues(t, coupon.Expired, d.Int(t, `SELECT status FROM coupon WHERE id = ?`, id))
	require.Equal(t, 1, foldAll(t, s, 10))
	require.Equal(t, [2]int64{1, 1}, taken(t, d, template))
	do(withdrawn, coupon.VerbVoid, "")
	require.Equal(t, 1, foldAll(t, s, 10))
	require.Equal(t, [2]int64{0, 0}, taken(t, d, template))
	require.Zero(t, foldAll(t, s, 10))
}

func TestFoldQuotaStopsAtZero(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(x *coupon.Template) { x.Quota, x.PerUser = 9, 9 })
	for i := range 2 {
		issueOne(t, s, grant(template, "known", fmt.Sprint(i)))
	}
	for id := range 5 {
		user := "known"
		if id > 2 {
			user = "without a counter"
		}
		d.Exec(t, `INSERT INTO quota_return VALUES (?,?,?,1,UTC_TIMESTAMP(3))`, 100+id, template, user)
	}
	d.Exec(t, `INSERT INTO quota_return VALUES (200,999,'u',1,UTC_TIMESTAMP(3))`)
	require.Equal(t, 6, foldAll(t, s, 100))
	require.Equal(t, [2]int64{0, 0}, taken(t, d, template))
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM user_quota`))
}

// A note that somebody is writing, or folding, is left to them.
func TestFoldQuotaWaitsForNoNote(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := create(t, s, func(x *coupon.Template) { x.Quota = 9 })
	d.Exec(t, `UPDATE template_stock SET taken = 3`)
	d.Exec(t, `INSERT INTO quota_return VALUES (1,?,'u',0,UTC_TIMESTAMP(3)), (2,?,'u',0,UTC_TIMESTAMP(3))`, template, template)
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `SELECT coupon_id FROM quota_return WHERE coupon_id = 1 FOR UPDATE`)
	require.NoError(t, err)
	require.Equal(t, 1, foldAll(t, s, 100))
	require.NoError(t, tx.Rollback())
	require.Equal(t, 1, foldAll(t, s, 100))
	require.EqualValues(t, 1, d.Int(t, `SELECT taken FROM template_stock`))
}

// TestQuotaHoldsWhileItComesBack: pods grant, expire and fold side by side on two hot templates. At no moment are more
// coupons alive than the quota allows, and in the end the counters are what the rows say.
func TestQuotaHoldsWhileItComesBack(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	stores := []*store.Store{d.Store(t), d.Store(t)}
	const quota, perUser, rounds = 40, 3, 25
	templates := []uint64{
		create(t, stores[0], func(x *coupon.Template) {
			x.Quota, x.PerUser, x.Terms.QuotaBack = quota, perUser, coupon.QuotaBackTotal
		}),
		create(t, stores[0], func(x *coupon.Template) {
			x.Quota, x.PerUser, x.Terms.QuotaBack = quota, perUser, coupon.QuotaBackTotalAndUser
		}),
	}
	var granted atomic.Int64
	var granting, rest sync.WaitGroup
	var failed sync.Map
	over := make(chan struct{})
	for pod := range 4 {
		granting.Go(func() {
			for round := range rounds {
				var grants []coupon.Grant
				for i := range 16 {
					key := fmt.Sprintf("%d.%d.%d", pod, round, i)
					grants = append(grants, grant(templates[i%2], fmt.Sprintf("u%d", (round+i*pod)%60), key))
				}
				out, err := stores[pod%2].Issue(t.Context(), grants)
				if err != nil {
					failed.Store("issue", err)
					return
				}
				for _, g := range out {
					if g.Refused == "" {
						granted.Add(1)
					}
				}
			}
		})
	}
	for pod := range 2 {
		rest.Go(func() { // ends what there is, and folds
			for {
				select {
				case <-over:
					return
				default:
				}
				// Time is moved by hand; that this runs into the verbs' locks is of no account.
				_, _ = d.SQL.ExecContext(t.Context(), `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND,
					due_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE status = 1 ORDER BY id LIMIT 7`)
				_, err := stores[pod].SweepBatch(t.Context(), false, time.Now().UTC(), coupon.Cursor{}, 50, always)
				if err == nil {
					_, _, err = stores[pod].FoldQuota(t.Context(), 20)
				}
				if err != nil {
					failed.Store("fold", err)
					return
				}
			}
		})
	}
	rest.Go(func() { // the auditor
		for {
			select {
			case <-over:
				return
			default:
			}
			var live int
			err := d.SQL.QueryRowContext(t.Context(), `SELECT COALESCE(MAX(n), 0) FROM
				(SELECT COUNT(*) AS n FROM coupon WHERE status IN (1,2,3) GROUP BY template_id) l`).Scan(&live)
			if err != nil || live > quota {
				failed.Store("audit", fmt.Errorf("%d alive, quota %d: %w", live, quota, err))
				return
			}
		}
	})
	granting.Wait()
	close(over)
	rest.Wait()
	failed.Range(func(what, err any) bool {
		t.Errorf("%v: %v", what, err)
		return true
	})
	foldAll(t, stores[0], 20)
	require.Greater(t, granted.Load(), int64(2*quota), "quota did come back")
	for _, template := range templates {
		require.Equal(t, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE template_id = ? AND status IN (1,2,3)`, template),
			taken(t, d, template)[0])
	}
	// Users: of the first every grant counts for ever, of the second what is alive.
	require.Equal(t, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE template_id = ?`, templates[0]), taken(t, d, templates[0])[1])
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM user_quota q WHERE q.template_id = ? AND q.taken <>
		(SELECT COUNT(*) FROM coupon c WHERE c.template_id = q.template_id AND c.user_id = q.user_id AND c.status IN (1,2,3))`, templates[1]))
	require.LessOrEqual(t, d.Int(t, `SELECT MAX(taken) FROM user_quota`), int64(perUser))
}

// A coupon that gives back to its user was counted for its user, whether or not there was a limit then: a limit that comes
// later is not exceeded by what comes back.
func TestALimitThatComesLaterHolds(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	template := coupon.Template{
		Name: "t", Rule: coupon.Rule{Kind: coupon.RuleAfter, After: "1h"}, Actor: "test", Reason: "r", Quota: 100,
		Terms: coupon.Terms{Value: 1, Currency: "CNY", Precision: coupon.Exact, QuotaBack: coupon.QuotaBackTotalAndUser},
	}
	id, err := s.CreateTemplate(t.Context(), template)
	require.NoError(t, err)
	grant := func(key string) coupon.Granted {
		out, err := s.Issue(t.Context(), []coupon.Grant{{Key: key, TemplateID: id, UserID: "u"}})
		require.NoError(t, err)
		return out[0]
	}
	var early []any
	for _, key := range []string{"a", "b", "c"} {
		early = append(early, grant(key).CouponID)
	}
	template.ID, template.Revision, template.PerUser = id, 1, 4
	_, err = s.ReviseTemplate(t.Context(), template)
	require.NoError(t, err)
	require.NotZero(t, grant("d").CouponID)
	require.Equal(t, coupon.CodeUserLimit, grant("e").Refused, "those before the limit count")

	d.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3), due_at = UTC_TIMESTAMP(3) WHERE id IN (?,?,?)`, early...)
	var triggers []coupon.Trigger
	for _, id := range early {
		triggers = append(triggers, coupon.Trigger{Kind: coupon.KindExpire, CouponID: id.(uint64), At: time.Now(), Origin: coupon.OriginLadder, ID: "v"})
	}
	_, _, err = s.ExpireBatch(t.Context(), triggers, always)
	require.NoError(t, err)
	_, _, err = s.FoldQuota(t.Context(), 100)
	require.NoError(t, err)
	for _, key := range []string{"f", "g", "h"} {
		require.NotZero(t, grant(key).CouponID)
	}
	require.Equal(t, coupon.CodeUserLimit, grant("i").Refused)
}
