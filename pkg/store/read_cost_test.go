package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// costOf gives the rows that the engine reads for fn, which may use one connection only.
func costOf(t testing.TB, s *store.Store, fn func()) int {
	t.Helper()
	s.Pool().SetMaxOpenConns(1)
	look := func() int {
		c, err := s.Pool().Conn(t.Context())
		require.NoError(t, err)
		n := handlerReads(t, c)
		require.NoError(t, c.Close())
		return n
	}
	first := look()
	before := look()
	fn()
	return look() - before - (before - first)
}

// Whatever ten thousand coupons are in and wherever a page stands among them, it costs a page.
func TestAPageOfABigWalletCostsAPage(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	const each, page = 2000, 100
	var rows []plantRow
	add := func(n int, r plantRow, ends func(i int) int) {
		for i := range n {
			r.id, r.user, r.batch, r.ends = len(rows)+1, "u", "b", ends(i)
			rows = append(rows, r)
		}
	}
	apart := func(from, step int) func(int) int { return func(i int) int { return from + step*i } }
	// Runs of those that a sweep has settled and of those that it has not.
	runs := func(from int) func(int) int { return func(i int) int { return from + i%500 + i/500*1000 } }
	add(each, plantRow{status: coupon.Unused}, func(int) int { return 5000 })                      // one end
	add(each, plantRow{status: coupon.Unused}, runs(-100_000))                                     // ended, not settled
	add(each, plantRow{status: coupon.Expired}, runs(-99_500))                                     //
	add(each, plantRow{status: coupon.Expired, archived: true}, apart(-900_000, 7))                // long ago
	add(10, plantRow{status: coupon.Locked, lock: -5}, apart(4995, 1))                             // run out
	add(10, plantRow{status: coupon.Locked, lock: 900}, apart(4995, 1))                            // live
	add(10, plantRow{status: coupon.Locked, lock: -5}, apart(-100_000, 600))                       // run out, ended
	add(each, plantRow{status: coupon.Used}, func(int) int { return -3000 })                       //
	add(each, plantRow{status: coupon.Used, archived: true}, func(i int) int { return -4000 + i }) //
	plantRows(t, d, rows)
	d.Exec(t, `ANALYZE TABLE coupon, coupon_archive`)
	read := func(q coupon.WalletQuery) (next string) {
		cost := costOf(t, s, func() {
			p, err := s.Wallet(t.Context(), q)
			require.NoError(t, err)
			next = p.Next
		})
		most := q.Limit + 20
		if q.State == 0 {
			most += 10 // where a section ends, each of its streams says so
		}
		require.LessOrEqual(t, cost, most, "%v", q)
		return next
	}
	for _, state := range append([]coupon.Status{0}, allStates...) {
		q := coupon.WalletQuery{UserID: "u", State: state, Limit: page}
		read(q) // fills the cache of terms
		for pages := 0; ; pages++ {
			if q.After = read(q); q.After == "" {
				break
			}
			require.Less(t, pages, 200)
		}
	}
	cost := costOf(t, s, func() {
		sum, err := s.WalletSummary(t.Context(), "u", 24*time.Hour)
		require.NoError(t, err)
		require.True(t, sum.More)
		require.Equal(t, 1000, sum.Usable)
	})
	require.LessOrEqual(t, cost, 1000+20)
	for _, q := range []coupon.ListQuery{
		{Batch: "b"},
		{Template: 1, State: coupon.Voided},
		{State: coupon.Expired},
		{State: coupon.Unused, EndsFrom: time.Now()},
		{State: coupon.Unused, EndsTo: time.Now().Add(time.Hour), Template: 1},
	} {
		q.Limit = page
		for range 5 {
			cost := costOf(t, s, func() {
				p, err := s.List(t.Context(), q)
				require.NoError(t, err)
				q.After = p.Next
			})
			require.LessOrEqual(t, cost, page+20, "%v", q)
		}
	}
}
