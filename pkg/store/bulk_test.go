package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/bulk"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func bulkConfig() bulk.Config {
	c := bulk.DefaultConfig()
	c.Page, c.Batch, c.Rate, c.Lease, c.Tries = 70, 30, 0, time.Second, 1
	return c
}

func bulkAsk(verb coupon.Verb) coupon.BulkAsk {
	return coupon.BulkAsk{Verb: verb, Actor: "amy", Reason: "the end was wrong"}
}

// change does a bulk change to its end and gives what became of the coupons.
func change(t testing.TB, s *store.Store, a coupon.BulkAsk) coupon.BulkProgress {
	t.Helper()
	require.NoError(t, a.Validate())
	b, err := bulk.New(bulkConfig(), "me", s)
	require.NoError(t, err)
	found, err := b.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	op, p, err := b.Claim(t.Context(), &a, false)
	require.NoError(t, err)
	p, err = b.Run(t.Context(), &a, op, p, found, func(coupon.BulkProgress) {})
	require.NoError(t, err)
	require.Equal(t, found.Changes() > 0, p.Count(coupon.BulkChange) > 0)
	return p
}

// chained holds that every coupon of the table is as the last step of a whole history left it.
func chained(t testing.TB, d testenv.Database) {
	t.Helper()
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon c LEFT JOIN coupon_history h ON h.coupon_id = c.id AND h.version = c.version
		WHERE h.to_status IS NULL OR h.to_status <> c.status OR h.expires_at <> c.expires_at OR h.due_at <> c.due_at`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon c WHERE (SELECT COUNT(*) FROM coupon_history h WHERE h.coupon_id = c.id) <> c.version`))
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history h JOIN coupon_history p ON p.coupon_id = h.coupon_id AND p.version = h.version - 1
		WHERE p.to_status <> h.from_status`))
}

func TestBulkExtend(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 100, 3600)
	plantUnused(t, d, 101, 100, 7200)
	plant(t, d, 201, 20, coupon.Unused, past, "NULL")
	plant(t, d, 221, 10, coupon.Locked, whole(3600), future)
	plant(t, d, 231, 5, coupon.Unused, "'9999-12-31'", "NULL")
	plant(t, d, 236, 4, coupon.Used, past, "NULL")
	d.Exec(t, `UPDATE coupon SET due_at = due_at + INTERVAL id % 50 SECOND WHERE id <= 100`)
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.to_status = c.status`)
	d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id SET h.due_at = c.due_at, h.expires_at = c.expires_at`)
	var end time.Time
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT CAST(`+whole(10*3600)+` AS DATETIME(3))`).Scan(&end))

	a := bulkAsk(coupon.VerbExtend)
	a.Template, a.EndsAt = 1, end
	b, err := bulk.New(bulkConfig(), "me", s)
	require.NoError(t, err)
	found, err := b.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	require.Equal(t, 215, found.Changes())
	require.EqualValues(t, 20, found.Sums.Count(string(coupon.CodeExpired)))
	require.EqualValues(t, 4, found.Sums.Count(string(coupon.CodeAlreadyUsed)))
	require.Equal(t, map[string]int64{"CNY": 215 * 500}, found.Sums[coupon.BulkChange].Value)
	require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version > 1`), "a look changes nothing")

	p := change(t, s, a)
	require.EqualValues(t, 215, p.Count(coupon.BulkChange))
	require.EqualValues(t, 215, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE expires_at = ? AND version = 2`, end))
	require.EqualValues(t, 100, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE id <= 100 AND due_at = expires_at + INTERVAL id % 50 SECOND`), "the offset stays")
	require.EqualValues(t, 10, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 2 AND order_id = 'o1' AND lock_until IS NOT NULL AND version = 2`), "a lock is kept")
	require.EqualValues(t, 215, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version = 2 AND cause = 'admin' AND actor = 'amy' AND reason = 'the end was wrong'`))
	require.EqualValues(t, 215, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1 AND routing_key = 'coupon.extended'`))
	require.EqualValues(t, 205, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "each has a trigger for its new end")
	chained(t, d)
	// Once more nothing is left to do: it is another operation, and every coupon is as asked.
	again, err := b.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	require.Zero(t, again.Changes())
	require.EqualValues(t, 215, again.Sums.Count(coupon.BulkRepeat))
	// The old triggers change nothing.
	_, out, err := s.ExpireBatch(t.Context(), triggersFor(1, 200, coupon.OriginLadder), always)
	require.NoError(t, err)
	for _, r := range out {
		require.Equal(t, coupon.DropStale, r.Decision.Reason)
	}
}

// A run that was broken off goes on, and moves no end twice.
func TestBulkGoesOn(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 200, 3600)
	a := bulkAsk(coupon.VerbExtend)
	a.Template, a.By = 1, 24*time.Hour
	was := d.Int(t, `SELECT TIMESTAMPDIFF(SECOND, '2020-01-01', MIN(expires_at)) FROM coupon`)

	first, err := bulk.New(bulkConfig(), "first", s)
	require.NoError(t, err)
	found, err := first.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	held, _, err := first.Claim(t.Context(), &a, false)
	require.NoError(t, err)
	require.False(t, held.Resumed)
	h := held.Hold()
	h.Lease = time.Second
	_, p, err := s.BulkBatch(t.Context(), h, &a, ids(1, 90), true)
	require.NoError(t, err)
	require.EqualValues(t, 90, p.Count(coupon.BulkChange))
	// The answer was lost: the same batch once more, and a part of the next.
	_, p, err = s.BulkBatch(t.Context(), h, &a, ids(61, 60), true)
	require.NoError(t, err)
	require.EqualValues(t, 120, p.Count(coupon.BulkChange))

	second, err := bulk.New(bulkConfig(), "second", s)
	require.NoError(t, err)
	w, p, err := second.Claim(t.Context(), &a, false)
	require.NoError(t, err)
	require.True(t, w.Resumed)
	require.EqualValues(t, 120, p.Count(coupon.BulkChange))
	_, _, err = s.BulkBatch(t.Context(), h, &a, ids(121, 10), true)
	require.ErrorIs(t, err, coupon.ErrConflict, "the first has lost it")
	p, err = second.Run(t.Context(), &a, w, p, found, func(coupon.BulkProgress) {})
	require.NoError(t, err)
	require.EqualValues(t, 200, p.Count(coupon.BulkChange))
	require.EqualValues(t, 200, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE version = 2`))
	require.Equal(t, was+86400, d.Int(t, `SELECT TIMESTAMPDIFF(SECOND, '2020-01-01', MAX(expires_at)) FROM coupon`))
	require.EqualValues(t, 1, d.Int(t, `SELECT done FROM operation`))
	chained(t, d)
	_, open, err := s.PeekOperation(t.Context(), bulk.Kind(a.Verb), a.Hash())
	require.NoError(t, err)
	require.False(t, open)
}

func ids(first, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(first + i)
	}
	return out
}

func TestBulkVoidSkipsLiveLocks(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 40, 3600)
	plant(t, d, 41, 10, coupon.Locked, future, future)
	plant(t, d, 51, 10, coupon.Locked, future, past) // run out: no lock
	plant(t, d, 61, 10, coupon.Unused, past, "NULL")
	a := bulkAsk(coupon.VerbVoid)
	a.IDs = ids(1, 75)
	b, err := bulk.New(bulkConfig(), "me", s)
	require.NoError(t, err)
	found, err := b.Look(t.Context(), &a, func(int) {})
	require.NoError(t, err)
	require.EqualValues(t, 10, found.Sums.Count(string(coupon.CodeLocked)))
	require.EqualValues(t, 5, found.Sums.Count(string(coupon.CodeNotFound)))
	p := change(t, s, a)
	require.EqualValues(t, 50, p.Count(coupon.BulkChange))
	require.EqualValues(t, 50, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 5`))
	require.EqualValues(t, 10, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE from_status = 2 AND to_status = 1`), "settled in passing")
	a.BreakLocks = true
	require.EqualValues(t, 10, change(t, s, a).Count(coupon.BulkChange))
	require.EqualValues(t, 60, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 5 AND lock_until IS NULL AND order_id IS NULL`))
	require.EqualValues(t, 60, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.voided'`))
}

// Rows that somebody holds are left, and said to be.
func TestBulkWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 20, 3600)
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), `UPDATE coupon SET version = version WHERE id IN (3,4)`)
	require.NoError(t, err)
	a := bulkAsk(coupon.VerbVoid)
	a.IDs = ids(1, 20)
	p := change(t, s, a)
	require.NoError(t, tx.Rollback())
	require.EqualValues(t, 18, p.Count(coupon.BulkChange))
	require.EqualValues(t, 2, p.Count(coupon.BulkBusy))
	require.EqualValues(t, 18, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 5`))
	require.EqualValues(t, 2, change(t, s, a).Count(coupon.BulkChange))
}

func TestBulkByUserBatchAndEnd(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 70, 3600)
	plantUnused(t, d, 71, 70, 7200)
	plant(t, d, 141, 7, coupon.Locked, whole(7200), future)
	d.Exec(t, `UPDATE coupon SET batch_id = 'b' WHERE id % 2 = 0`)
	var from time.Time
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT UTC_TIMESTAMP() + INTERVAL 5400 SECOND`).Scan(&from))
	for name, c := range map[string]struct {
		set  func(*coupon.BulkAsk)
		want int
	}{
		"user":          {func(a *coupon.BulkAsk) { a.User = "u3" }, 21},
		"batch":         {func(a *coupon.BulkAsk) { a.Batch = "b" }, 73},
		"both":          {func(a *coupon.BulkAsk) { a.User, a.Batch = "u3", "b" }, 10},
		"ended":         {func(a *coupon.BulkAsk) { a.EndsFrom, a.EndsTo = from, from.Add(time.Hour) }, 77},
		"ended earlier": {func(a *coupon.BulkAsk) { a.EndsFrom, a.EndsTo = from.Add(-time.Hour), from }, 70},
		"of a template": {func(a *coupon.BulkAsk) { a.Template, a.EndsTo = 1, from }, 70},
		"no template":   {func(a *coupon.BulkAsk) { a.Template = 9 }, 0},
	} {
		a := bulkAsk(coupon.VerbExtend)
		a.By = time.Hour
		c.set(&a)
		require.NoError(t, a.Validate(), name)
		b, err := bulk.New(bulkConfig(), "me", s)
		require.NoError(t, err)
		found, err := b.Look(t.Context(), &a, func(int) {})
		require.NoError(t, err)
		require.Equal(t, c.want, found.Changes(), name)
	}
	for want, spoil := range map[string]func(*coupon.BulkAsk){
		"one of them must say which coupons":    func(a *coupon.BulkAsk) { a.Template = 0 },
		"one of them must say what the new end": func(a *coupon.BulkAsk) { a.By = 0 },
		"by: must be whole seconds":             func(a *coupon.BulkAsk) { a.By = time.Millisecond },
		"reason: must have":                     func(a *coupon.BulkAsk) { a.Reason = "" },
		"ended-between: the first":              func(a *coupon.BulkAsk) { a.EndsFrom, a.EndsTo = from, from },
		"verb: must be":                         func(a *coupon.BulkAsk) { a.Verb = coupon.VerbLock },
	} {
		a := bulkAsk(coupon.VerbExtend)
		a.Template, a.By = 1, time.Hour
		spoil(&a)
		require.ErrorContains(t, a.Validate(), want)
	}
}

// What has ended comes back: expired by whomever, archived, or not moved by anybody yet. The quota is taken again once, whether or not
// its return had been folded.
func TestBulkReinstate(t *testing.T) {
	t.Parallel()
	for _, quotaBack := range []coupon.QuotaBack{coupon.QuotaBackNone, coupon.QuotaBackTotal, coupon.QuotaBackTotalAndUser} {
		t.Run(string(quotaBack), func(t *testing.T) {
			t.Parallel()
			d := testenv.NewDatabase(t)
			s := d.Store(t)
			template := create(t, s, func(x *coupon.Template) { x.Quota, x.PerUser, x.Terms.QuotaBack = 20, 20, quotaBack })
			for i := range 20 {
				issueOne(t, s, grant(template, fmt.Sprintf("u%d", i%3), fmt.Sprint(i)))
			}
			first := int(d.Int(t, `SELECT MIN(id) FROM coupon`))
			end := func(n, from int) {
				d.Exec(t, `UPDATE coupon SET expires_at = DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 40 DAY, '%Y-%m-%d %H:%i:%s'), due_at = DATE_FORMAT(UTC_TIMESTAMP() - INTERVAL 40 DAY, '%Y-%m-%d %H:%i:%s'),
					valid_from = valid_from - INTERVAL 60 DAY WHERE id >= ? AND id < ?`, from, from+n)
				d.Exec(t, `UPDATE coupon_history h JOIN coupon c ON c.id = h.coupon_id AND c.version = h.version SET h.expires_at = c.expires_at, h.due_at = c.due_at`)
			}
			end(10, first)
			_, _, err := s.ExpireBatch(t.Context(), triggersFor(first, 10, coupon.OriginLadder), always)
			require.NoError(t, err)
			foldAll(t, s, 100)
			d.Exec(t, `DELETE FROM outbox`)
			moved, err := s.ArchiveBatch(t.Context(), []coupon.Finished{{ID: uint64(first), Version: 2}, {ID: uint64(first + 1), Version: 2}})
			require.NoError(t, err)
			require.Equal(t, 2, moved.Moved)
			end(5, first+10)
			_, _, err = s.ExpireBatch(t.Context(), triggersFor(first+10, 5, coupon.OriginSweep), always)
			require.NoError(t, err)
			end(3, first+15) // nobody has moved these
			before := taken(t, d, template)

			a := bulkAsk(coupon.VerbReinstate)
			a.Template, a.EndsAt = template, time.Now().UTC().Add(48*time.Hour).Truncate(time.Second)
			p := change(t, s, a)
			require.EqualValues(t, 18, p.Count(coupon.BulkChange))
			require.EqualValues(t, 20, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1 AND expired_at IS NULL AND expire_cause IS NULL`))
			require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM coupon_archive`))
			require.EqualValues(t, 18, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE from_status = 4 AND to_status = 1 AND cause = 'admin' AND previous < expires_at`))
			require.EqualValues(t, 18, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE routing_key = 'coupon.reinstated'`))
			require.EqualValues(t, 18, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0`), "each has a trigger")
			require.Zero(t, d.Int(t, `SELECT COUNT(*) FROM quota_return`))
			require.Zero(t, foldAll(t, s, 100))
			require.Equal(t, [2]int64{20, 20}, taken(t, d, template), "was %v", before)
			chained(t, d)
			again := int64(15)
			if quotaBack == coupon.QuotaBackNone {
				again = 0
			}
			require.Equal(t, again, d.Int(t, `SELECT reinstated FROM template_stock`))

			// They end once more, and give back once more.
			d.Exec(t, `UPDATE coupon SET expires_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND, due_at = UTC_TIMESTAMP(3) - INTERVAL 1 SECOND WHERE id < ?`, first+18)
			_, _, err = s.ExpireBatch(t.Context(), triggersFor(first, 18, coupon.OriginLadder), always)
			require.NoError(t, err)
			foldAll(t, s, 100)
			want := int64(20)
			if quotaBack != coupon.QuotaBackNone {
				want = 2
			}
			require.Equal(t, want, taken(t, d, template)[0])
		})
	}
}
