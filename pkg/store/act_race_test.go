package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestActSixtyFourOrdersLockOneCoupon(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	plantUnused(t, d, 1, 1, 3600)
	var won, lost atomic.Int64
	inParallel(64, func(i int) {
		_, out, err := pods[i%2].Act(t.Context(), ask(coupon.VerbLock, fmt.Sprint("order ", i), 1))
		switch {
		case err != nil:
			t.Error(err)
		case out[0].Refused == "" && !out[0].Repeated:
			won.Add(1)
		case out[0].Refused == coupon.CodeLockedByOther && out[0].Coupon.Status == coupon.Locked:
			lost.Add(1)
		}
	})
	require.EqualValues(t, 1, won.Load())
	require.EqualValues(t, 63, lost.Load())
	require.EqualValues(t, 2, d.Int(t, `SELECT version FROM coupon`))
	requireReplays(t, d)
}

// Orders that want the same coupons in other sequences neither deadlock nor share them.
func TestActAllOrNoneUnderContention(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	plantUnused(t, d, 1, 10, 3600)
	seed := testenv.Seed(t)
	inParallel(8, func(i int) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		order := fmt.Sprint("order ", i)
		for range 30 {
			var ids []uint64
			for _, n := range r.Perm(10)[:1+r.IntN(10)] {
				ids = append(ids, uint64(n+1))
			}
			_, out, err := pods[i%2].Act(t.Context(), ask(coupon.VerbLock, order, ids...))
			if err != nil {
				t.Error(err)
				return
			}
			moved, refusals := 0, 0
			for _, a := range out {
				if a.Refused != "" {
					refusals++
				} else if a.Coupon.Status == coupon.Locked {
					moved++
				}
			}
			if refusals > 0 && moved > 0 || refusals == 0 && moved != len(ids) {
				t.Errorf("%d moved, %d refused of %d", moved, refusals, len(ids))
			}
			if refusals == 0 {
				if _, _, err := pods[i%2].Act(t.Context(), ask(coupon.VerbRelease, order, ids...)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	require.EqualValues(t, 10, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 1`))
	requireReplays(t, d)
}

// One hanging transaction delays its own coupon alone, however many ask for it, and nobody waits for it twice.
func TestActHeldRow(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	d.Config.LockWait, d.Config.MaxOpen = time.Second, 4
	s := d.Store(t)
	plantUnused(t, d, 1, 3, 3600)
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // ends the lock
	_, err = tx.ExecContext(t.Context(), `SELECT id FROM coupon WHERE id = 2 FOR UPDATE`)
	require.NoError(t, err)

	var waited, free sync.WaitGroup
	asking := make(chan struct{}, 32)
	for i := range 32 {
		waited.Go(func() {
			asking <- struct{}{}
			if _, _, err := s.Act(t.Context(), ask(coupon.VerbLock, fmt.Sprint(i), 2)); !errors.Is(err, coupon.ErrContention) {
				t.Errorf("want contention, got %v", err)
			}
		})
	}
	for range 32 {
		<-asking
	}
	var others atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	free.Go(func() {
		for ctx.Err() == nil {
			for _, verb := range []coupon.Verb{coupon.VerbLock, coupon.VerbRelease} {
				if _, out, err := s.Act(t.Context(), ask(verb, "a", 3, 1)); err != nil || out[0].Refused != "" {
					t.Errorf("%v %v", out, err)
				}
			}
			others.Add(1)
		}
	})
	waited.Wait()
	cancel()
	free.Wait()
	require.Greater(t, others.Load(), int64(2), "the pool was left to others")

	each := ask(coupon.VerbLock, "e", 1, 2, 3)
	each.Each = true
	_, _, err = s.Act(t.Context(), each)
	require.ErrorIs(t, err, coupon.ErrContention)
	require.EqualValues(t, 2, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE order_id = 'e' AND id IN (1,3)`), "those that can be had")
	require.NoError(t, tx.Rollback())
	out := act(t, s, each)
	require.True(t, out[0].Repeated)
	require.False(t, out[1].Repeated)
	require.Equal(t, coupon.Locked, out[1].Coupon.Status)
	requireReplays(t, d)
}

// A long wait for the row does not make the decision old: the end passed meanwhile, so the lock is refused.
func TestActDecidesAfterTheWait(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plantUnused(t, d, 1, 1, 2)
	tx, err := d.SQL.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer tx.Rollback() //nolint:errcheck // ends the lock
	_, err = tx.ExecContext(t.Context(), `SELECT id FROM coupon WHERE id = 1 FOR UPDATE`)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { refused(t, s, ask(coupon.VerbLock, "a", 1), coupon.CodeExpired) })
	_, err = tx.ExecContext(t.Context(), `SELECT SLEEP(GREATEST(0, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), (SELECT expires_at FROM coupon WHERE id = 1)) / 1000000 + 0.005))`)
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	wg.Wait()
}

// Redeem against expiry in the same second: one of them wins, and row, history, event and answer agree.
func TestActRedeemAgainstExpiry(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	const n = 400
	plantUnused(t, d, 1, n, 2)
	d.Exec(t, `UPDATE coupon SET expires_at = (SELECT m FROM (SELECT MIN(expires_at) m FROM coupon) x), due_at = expires_at`)
	d.Exec(t, `UPDATE coupon_history SET expires_at = (SELECT m FROM (SELECT MIN(expires_at) m FROM coupon) x), due_at = expires_at`)
	d.Exec(t, `SELECT SLEEP(GREATEST(0, TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), (SELECT MIN(expires_at) FROM coupon)) / 1000000 - 0.25))`)

	used := make([]bool, n+1)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for id := w + 1; id <= n; id += 4 {
				_, out, err := pods[w%2].Act(t.Context(), ask(coupon.VerbRedeem, "o", uint64(id)))
				switch {
				case err != nil:
					t.Error(err)
				case out[0].Refused == "":
					used[id] = true
				case out[0].Refused != coupon.CodeExpired:
					t.Error(out[0].Refused)
				}
			}
		})
	}
	wg.Go(func() {
		for t.Context().Err() == nil {
			_, out, err := pods[0].ExpireBatch(t.Context(), triggersFor(1, n, coupon.OriginLadder), always)
			if err != nil {
				t.Error(err)
				return
			}
			left := 0
			for _, r := range out {
				if r.Busy || r.Decision.Action == coupon.Reschedule || r.Decision.Action == coupon.Drop && r.Decision.Reason == coupon.DropStale {
					left++
				}
			}
			if left == 0 {
				return
			}
		}
	})
	wg.Wait()
	wins := 0
	for id := 1; id <= n; id++ {
		want := coupon.Expired
		if used[id] {
			want = coupon.Used
			wins++
		}
		require.EqualValues(t, want, d.Int(t, `SELECT status FROM coupon WHERE id = ? AND version = 2`, id), "coupon %d", id)
	}
	t.Logf("%d of %d were redeemed", wins, n)
	requireReplays(t, d)
}

// Random verbs of several orders on few coupons with short lives and locks, on two pods, against expiry and sweep: the
// histories never leave the table, no update is lost, and each replays to its row.
func TestActRandomHistories(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	pods := []*store.Store{d.Store(t), d.Store(t)}
	const n = 24
	for i := range 6 {
		plantUnused(t, d, 1+4*i, 4, 2+i*i)
	}
	d.Exec(t, `UPDATE coupon_template SET late_pay_window = 1, late_pay_policy = 'strict', quota_back = 'total'`)
	seed := testenv.Seed(t)
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	var answers [8]map[string]int
	var wg sync.WaitGroup
	for w := range answers {
		answers[w] = make(map[string]int)
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				o := randomOrder(r, n)
				_, out, err := pods[w%2].Act(t.Context(), o)
				if err != nil && !errors.Is(err, coupon.ErrContention) {
					t.Error(err)
					return
				}
				for _, a := range out {
					answers[w][fmt.Sprint(o.Verb, " ", a.Refused, a.Repeated)]++
				}
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, _, err := pods[0].ExpireBatch(t.Context(), triggersFor(1, n, coupon.OriginLadder), always); err != nil && !errors.Is(err, coupon.ErrContention) {
				t.Error(err)
			}
			for _, locks := range []bool{false, true} {
				now, err := pods[1].Now(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := pods[1].SweepBatch(t.Context(), locks, now, coupon.Cursor{}, 10, always); err != nil && !errors.Is(err, coupon.ErrContention) {
					t.Error(err)
				}
			}
		}
	})
	wg.Wait()
	seen := make(map[string]int)
	for _, m := range answers {
		for k, v := range m {
			seen[k] += v
		}
	}
	t.Log(seen)
	requireReplays(t, d)
	require.Greater(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history`), int64(100))
	require.Positive(t, d.Int(t, `SELECT COUNT(*) FROM coupon_history WHERE from_status = 2 AND cause = 'lock'`), "locks ran out")
}

func randomOrder(r *rand.Rand, n int) coupon.Order {
	verbs := []coupon.Verb{
		coupon.VerbLock, coupon.VerbLock, coupon.VerbLock, coupon.VerbRenew, coupon.VerbRedeem, coupon.VerbRelease, coupon.VerbRefund,
		coupon.VerbRefund, coupon.VerbExtend,
	}
	o := ask(verbs[r.IntN(len(verbs))], string(rune('a'+r.IntN(4))))
	for _, i := range r.Perm(n)[:1+r.IntN(3)] {
		o.CouponIDs = append(o.CouponIDs, uint64(i+1))
	}
	o.Each = r.IntN(3) == 0
	o.LockFor = time.Second
	o.EndsAt = time.Now().Add(time.Duration(1+r.IntN(4)) * time.Second).Truncate(time.Second)
	if r.IntN(2000) == 0 {
		o.Verb, o.BreakLock = coupon.VerbVoid, true
	}
	if !o.Verb.OfOrder() {
		o.OrderID = ""
	}
	return o
}
