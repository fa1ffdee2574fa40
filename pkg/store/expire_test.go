package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func always(time.Time) error { return nil }

// plant inserts n coupons by plain SQL, ids first…first+n-1, ending at the SQL expression, with their grant history.
func plant(t testing.TB, d testenv.Database, first, n int, status coupon.Status, ends, lockUntil string) {
	t.Helper()
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, created_at, actor, reason)
		VALUES (1,1,'t','{"kind":"never"}',500,'CNY','exact',UTC_TIMESTAMP(3),'test','') ON DUPLICATE KEY UPDATE id = id`)
	for n > 0 {
		k := min(n, 1000)
		var rows, history []string
		for id := first; id < first+k; id++ {
			order := "NULL"
			if status == coupon.Locked {
				order = "'o1'"
			}
			rows = append(rows, fmt.Sprintf("(%d,1,1,'','u%d',%d,1,UTC_TIMESTAMP(3),%s,%s,UTC_TIMESTAMP(3),%s,%s)", id, id%7, status, ends, ends, lockUntil, order))
			history = append(history, fmt.Sprintf("(%d,1,0,1,'grant',UTC_TIMESTAMP(3),%s,%s,'','','','','','',NULL,NULL)", id, ends, ends))
		}
		d.Exec(t, `INSERT INTO coupon (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at, lock_until, order_id) VALUES `+strings.Join(rows, ","))
		d.Exec(t, `INSERT INTO coupon_history VALUES `+strings.Join(history, ","))
		first, n = first+k, n-k
	}
}

const (
	past   = "UTC_TIMESTAMP(3) - INTERVAL 10 SECOND"
	future = "UTC_TIMESTAMP(3) + INTERVAL 1 HOUR"
)

func triggersFor(first, n int, origin coupon.Origin) []coupon.Trigger {
	ts := make([]coupon.Trigger, n)
	for i := range ts {
		ts[i] = coupon.Trigger{Kind: coupon.KindExpire, CouponID: uint64(first + i), At: time.Now(), Origin: origin, ID: "v"}
	}
	return ts
}

func TestExpireBatchSettlesOnce(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 300, coupon.Unused, past, "NULL")
	plant(t, d, 301, 50, coupon.Locked, past, past)     // lock ran out, ended
	plant(t, d, 351, 50, coupon.Locked, future, past)   // lock ran out, not ended
	plant(t, d, 401, 50, coupon.Locked, past, future)   // live lock shields
	plant(t, d, 451, 50, coupon.Used, past, "NULL")     // settled
	plant(t, d, 501, 50, coupon.Unused, future, "NULL") // not ended
	written := s.OutboxWritten()

	ts := append(triggersFor(1, 560, coupon.OriginLadder), triggersFor(1, 300, coupon.OriginLazy)...) // with repeats and absent ones
	now, out, err := s.ExpireBatch(t.Context(), ts, always)
	require.NoError(t, err)
	require.Len(t, out, 860)
	require.WithinDuration(t, time.Now(), now, 5*time.Second)
	select {
	case <-written:
	default:
		require.Fail(t, "the commit did not wake the relay")
	}
	count := map[string]int{}
	for _, r := range out {
		count[r.Decision.Action.String()+r.Decision.Reason]++
	}
	require.Equal(t, map[string]int{
		"expire": 350, "unlock": 50, "drop" + coupon.DropLocked: 50, "drop" + coupon.DropSettled: 350,
		"drop" + coupon.DropStale: 50, "drop" + coupon.DropAbsent: 10,
	}, count)
	require.EqualValues(t, 350, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND expired_at IS NOT NULL AND version = 2 AND order_id IS NULL`))
	require.EqualValues(t, 300, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE expire_cause = 'ladder'`))
	require.EqualValues(t, 50, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE expire_cause = 'lock'`))
	require.EqualValues(t, 50, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE id BETWEEN 351 AND 400 AND status = 1 AND lock_until IS NULL AND version = 2`))
	require.EqualValues(t, 400, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version = 2`))
	require.EqualValues(t, 350, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1 AND routing_key = 'coupon.expired'`))
	require.EqualValues(t, 50, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 0 AND coupon_id BETWEEN 351 AND 400`), "what became unused again has a trigger")
	require.EqualValues(t, 600, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE due_at = expires_at AND expires_at IS NOT NULL`)+50, "the act of expiring leaves the end alone")

	_, out, err = s.ExpireBatch(t.Context(), ts[:400], always)
	require.NoError(t, err)
	for _, r := range out {
		require.NotEqual(t, coupon.Expire, r.Decision.Action)
	}
	require.EqualValues(t, 400, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE version = 2`))
}

func TestExpireBatchRace(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	a, b := d.Store(t), d.Store(t)
	plant(t, d, 1, 500, coupon.Unused, past, "NULL")
	var wg sync.WaitGroup
	for _, s := range []interface {
		ExpireBatch(ctx context.Context, ts []coupon.Trigger, allow func(time.Time) error) (time.Time, []coupon.Settlement, error)
	}{a, b, a, b} {
		wg.Go(func() {
			rest := triggersFor(1, 500, coupon.OriginLadder)
			for len(rest) > 0 && t.Context().Err() == nil {
				_, out, err := s.ExpireBatch(t.Context(), rest, always)
				if err != nil {
					require.ErrorIs(t, err, coupon.ErrContention)
					continue
				}
				var again []coupon.Trigger
				for i, r := range out {
					if r.Busy {
						again = append(again, rest[i])
					}
				}
				rest = again
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 500, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND version = 2`))
	require.EqualValues(t, 500, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE to_status = 4`))
	require.EqualValues(t, 500, d.Int(t, `SELECT COUNT(DISTINCT msg_id) FROM outbox WHERE lane = 1`))
	require.EqualValues(t, 500, d.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1`))
}

// One hanging checkout must not stall 499 others.
func TestExpireBatchForeignLock(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 500, coupon.Unused, past, "NULL")
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // ends the lock
	_, err = tx.ExecContext(t.Context(), `SELECT id FROM coupon WHERE id = 250 FOR UPDATE`)
	require.NoError(t, err)

	_, out, err := s.ExpireBatch(t.Context(), triggersFor(1, 500, coupon.OriginLadder), always)
	require.NoError(t, err)
	for i, r := range out {
		require.Equal(t, i == 249, r.Busy)
	}
	require.EqualValues(t, 499, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4`))
}

func TestExpireBatchRefusedByGuardChangesNothing(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 10, coupon.Unused, past, "NULL")
	no := errors.New("clock")
	_, _, err := s.ExpireBatch(t.Context(), triggersFor(1, 10, coupon.OriginLadder), func(time.Time) error { return no })
	require.ErrorIs(t, err, no)
	_, err = s.SweepBatch(t.Context(), false, time.Now(), coupon.Cursor{}, 10, func(time.Time) error { return no })
	require.ErrorIs(t, err, no)
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4`))
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM outbox`))
}

// A row whose history is already taken cannot be changed: the batch is rolled back whole and says so.
func TestExpireBatchBadRow(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 20, coupon.Unused, past, "NULL")
	d.Exec(t, `INSERT INTO coupon_history SELECT coupon_id, 2, 1, 5, 'admin', at, expires_at, due_at, '', '', '', '', '', '', NULL, NULL FROM coupon_history WHERE coupon_id = 7`)
	_, _, err := s.ExpireBatch(t.Context(), triggersFor(1, 20, coupon.OriginLadder), always)
	require.ErrorIs(t, err, coupon.ErrIntegrity)
	require.EqualValues(t, 0, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4`))
	_, err = s.SweepBatch(t.Context(), false, time.Now(), coupon.Cursor{}, 20, always)
	require.ErrorIs(t, err, coupon.ErrIntegrity)
}

func TestSweepShares(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	a, b := d.Store(t), d.Store(t)
	plant(t, d, 1, 3000, coupon.Unused, past, "NULL")
	plant(t, d, 3001, 200, coupon.Locked, future, past)
	plant(t, d, 3301, 100, coupon.Unused, future, "NULL")
	var wg sync.WaitGroup
	var mu sync.Mutex
	handled := 0
	for _, s := range []*struct {
		sweep func(locks bool, at coupon.Cursor) (coupon.Swept, error)
	}{
		{func(locks bool, at coupon.Cursor) (coupon.Swept, error) {
			return a.SweepBatch(t.Context(), locks, time.Now(), at, 100, always)
		}},
		{func(locks bool, at coupon.Cursor) (coupon.Swept, error) {
			return b.SweepBatch(t.Context(), locks, time.Now(), at, 100, always)
		}},
	} {
		wg.Go(func() {
			for _, locks := range []bool{false, true} {
				var at coupon.Cursor
				for more := true; more; {
					res, err := s.sweep(locks, at)
					require.NoError(t, err)
					mu.Lock()
					handled += len(res.Settled)
					mu.Unlock()
					at, more = res.Next, len(res.Settled) > 0
				}
			}
		})
	}
	wg.Wait()
	require.Equal(t, 3200, handled, "no row twice, none left")
	require.EqualValues(t, 3000, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND expire_cause = 'sweep'`))
	require.EqualValues(t, 300, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1`))
}

func TestMarkIsTheLeastOfRecentOnes(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	mark, now, err := s.Mark(t.Context())
	require.NoError(t, err)
	require.Equal(t, now, mark, "no mark at all is now")
	early, late := now.Add(-time.Minute).Truncate(time.Millisecond), now.Add(-time.Second).Truncate(time.Millisecond)
	require.NoError(t, s.PutMark(t.Context(), "q1", "pod1", late))
	require.NoError(t, s.PutMark(t.Context(), "q1", "pod2", early))
	mark, _, err = s.Mark(t.Context())
	require.NoError(t, err)
	require.Equal(t, early, mark)
	d.Exec(t, `INSERT INTO setting (name, value, updated_at) VALUES ('mark.q1.odd', 'garbage', UTC_TIMESTAMP(3))`)
	d.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 16 SECOND WHERE name LIKE 'mark.%pod2'`)
	mark, _, err = s.Mark(t.Context())
	require.NoError(t, err)
	require.Equal(t, late, mark)
}

func BenchmarkExpireBatch(b *testing.B) {
	d := testenv.NewDatabase(b)
	s := d.Store(b)
	next := 1
	for b.Loop() {
		b.StopTimer()
		plant(b, d, next, 500, coupon.Unused, past, "NULL")
		ts := triggersFor(next, 500, coupon.OriginLadder)
		next += 500
		b.StartTimer()
		_, _, err := s.ExpireBatch(b.Context(), ts, always)
		require.NoError(b, err)
	}
	b.ReportMetric(500*float64(b.N)/b.Elapsed().Seconds(), "coupons/s")
}

// A coupon that a lock shielded became due with the end of its lock. The ladder's mark and the lateness are told by that:
// told by its own end, one such coupon would hold the sweep back by as long as the lock outlived it.
func TestALockedCouponIsDueWhenItsLockEnds(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 1, coupon.Locked, "'2026-01-01 00:00:00'", "'2026-01-01 00:30:00'")
	plant(t, d, 2, 1, coupon.Locked, "'2026-01-01 00:30:00'", "'2026-01-01 00:10:00'")
	plant(t, d, 3, 1, coupon.Unused, "'2026-01-01 00:30:00'", "NULL")
	_, out, err := s.ExpireBatch(t.Context(), triggersFor(1, 3, coupon.OriginLadder), always)
	require.NoError(t, err)
	for i := range out {
		require.Equal(t, coupon.Expire, out[i].Decision.Action)
		require.Equal(t, time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC), out[i].DueAt, i)
	}
}

func TestPrunePodsClearsAwayWhatTheyLeft(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	before := d.Int(t, `SELECT COUNT(*) FROM setting`)
	for _, name := range []string{"mark.due.gone", "relay.gone", "mark.due.here", "relay.here", "clock.gone", "accepted_clock"} {
		d.Exec(t, `INSERT INTO setting VALUES (?, '1', UTC_TIMESTAMP(3) - INTERVAL 25 HOUR)`, name)
	}
	d.Exec(t, `UPDATE setting SET updated_at = UTC_TIMESTAMP(3) - INTERVAL 23 HOUR WHERE name LIKE '%.here'`)
	require.NoError(t, s.PrunePods(t.Context()))
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM setting WHERE name LIKE '%.here'`))
	require.Equal(t, before+3, d.Int(t, `SELECT COUNT(*) FROM setting`))
}
