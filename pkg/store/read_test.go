package store_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

var allStates = []coupon.Status{coupon.Unused, coupon.Locked, coupon.Used, coupon.Expired, coupon.Voided}

// plantRow is a coupon to insert by plain SQL, with seconds from now on.
type plantRow struct {
	id       int
	user     string
	batch    string
	template int
	status   coupon.Status
	valid    int
	ends     int // 0: never
	lock     int // locked: until
	archived bool
}

// plantRows inserts coupons whose instants are relative to one instant of the database's, which it gives.
func plantRows(t testing.TB, d testenv.Database, rows []plantRow) time.Time {
	t.Helper()
	d.Exec(t, `INSERT INTO coupon_template (id, revision, name, rule, value, currency, prec_class, late_pay_policy, late_pay_window, created_at, actor, reason)
		VALUES (1,1,'t','{"kind":"never"}',500,'CNY','exact','strict',60,UTC_TIMESTAMP(3),'test',''),
		(2,1,'u','{"kind":"never"}',300,'EUR','relaxed','honour_lock',1800,UTC_TIMESTAMP(3),'test','')
		ON DUPLICATE KEY UPDATE id = id`)
	var now time.Time
	require.NoError(t, d.SQL.QueryRowContext(t.Context(), `SELECT UTC_TIMESTAMP(0)`).Scan(&now))
	at := func(seconds int) string {
		return now.Add(time.Duration(seconds) * time.Second).Format("'2006-01-02 15:04:05'")
	}
	for _, archived := range []bool{false, true} {
		var values []string
		for _, r := range rows {
			if r.archived != archived {
				continue
			}
			ends := "'9999-12-31 00:00:00'"
			if r.ends != 0 {
				ends = at(r.ends)
			}
			lock := "NULL,NULL,NULL,NULL,NULL"
			if r.status == coupon.Locked {
				lock = fmt.Sprintf("%s,%s,'o%d','honour_lock',900", at(-60), at(r.lock), r.id)
			}
			if r.status == coupon.Used {
				lock = fmt.Sprintf("NULL,NULL,'o%d',NULL,NULL", r.id)
			}
			row := fmt.Sprintf("%d,%d,1,'%s','%s',%d,1,%s,%s,%s,%s,%s", r.id, max(1, r.template), r.batch, r.user, r.status, at(r.valid), ends, ends, at(-100), lock)
			if archived {
				row += "," + at(0)
			}
			values = append(values, "("+row+")")
		}
		table, extra := "coupon", ""
		if archived {
			table, extra = "coupon_archive", ", archived_at"
		}
		for part := range slices.Chunk(values, 2000) {
			d.Exec(t, `INSERT INTO `+table+` (id, template_id, revision, batch_id, user_id, status, version, valid_from, expires_at, due_at, granted_at,
				locked_at, lock_until, order_id, late_pay_policy, late_pay_window`+extra+`) VALUES `+strings.Join(part, ","))
		}
	}
	return now
}

// wallet reads every page.
func wallet(t require.TestingT, s *store.Store, ctx testing.TB, q coupon.WalletQuery) (all []coupon.Coupon, pages int) {
	for {
		p, err := s.Wallet(ctx.Context(), q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(p.Coupons), q.Limit)
		for i := range p.Coupons {
			if q.State != 0 {
				require.Equal(t, q.State, p.Coupons[i].Seen(p.Now))
			}
		}
		all, pages = append(all, p.Coupons...), pages+1
		if p.Next == "" {
			return all, pages
		}
		require.NotEqual(t, q.After, p.Next)
		q.After = p.Next
	}
}

// seenAs is what a reader must be shown, by brute force.
func (r plantRow) seenAs() coupon.Status {
	ended := r.ends != 0 && r.ends <= 0
	switch {
	case r.status == coupon.Locked && r.lock > 0:
		return coupon.Locked
	case (r.status == coupon.Unused || r.status == coupon.Locked) && ended:
		return coupon.Expired
	case r.status == coupon.Locked:
		return coupon.Unused
	default:
		return r.status
	}
}

// expectWallet gives the ids of a user's coupons of the states, in order.
func expectWallet(rows []plantRow, user string, states ...coupon.Status) (ids []uint64) {
	for _, state := range states {
		var part []plantRow
		for _, r := range rows {
			if r.user == user && r.seenAs() == state {
				part = append(part, r)
			}
		}
		end := func(r plantRow) int {
			if r.ends == 0 {
				return 1 << 40
			}
			return r.ends
		}
		slices.SortFunc(part, func(a, b plantRow) int {
			c := cmp.Or(cmp.Compare(end(a), end(b)), cmp.Compare(a.id, b.id))
			if state == coupon.Expired {
				return -c
			}
			return c
		})
		for _, r := range part {
			ids = append(ids, uint64(r.id))
		}
	}
	return ids
}

func idsOf(cs []coupon.Coupon) (ids []uint64) {
	for i := range cs {
		ids = append(ids, cs[i].ID)
	}
	return ids
}

func TestWalletIsWhatBruteForceSees(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	rapid.Check(t, func(rt *rapid.T) {
		d.Exec(t, `DELETE FROM coupon`)
		d.Exec(t, `DELETE FROM coupon_archive`)
		// Few ends, so that many are equal; none so near that it passes meanwhile.
		ends := rapid.SampledFrom([]int{-9000, -8000, -7000, -300, 5000, 6000, 7000, 0})
		n := rapid.IntRange(0, 60).Draw(rt, "coupons")
		weighted := rapid.SampledFrom(append([]coupon.Status{coupon.Unused, coupon.Unused, coupon.Locked, coupon.Expired, coupon.Expired}, allStates...))
		rows := make([]plantRow, n)
		for i := range rows {
			r := plantRow{id: i + 1, user: rapid.SampledFrom([]string{"u", "u", "u", "v"}).Draw(rt, "user"), status: weighted.Draw(rt, "status")}
			r.ends = ends.Draw(rt, "ends")
			r.lock = rapid.SampledFrom([]int{-200, 4000}).Draw(rt, "lock")
			if r.status >= coupon.Used {
				r.archived = rapid.Bool().Draw(rt, "archived")
			}
			rows[i] = r
		}
		plantRows(t, d, rows)
		limit := rapid.IntRange(1, 25).Draw(rt, "limit")
		for _, state := range allStates {
			got, pages := wallet(rt, s, t, coupon.WalletQuery{UserID: "u", State: state, Limit: limit})
			want := expectWallet(rows, "u", state)
			require.Equal(rt, want, idsOf(got), state)
			require.LessOrEqual(rt, pages, n+1)
			for _, c := range got {
				require.Equal(rt, rows[c.ID-1].archived, c.Archived)
				require.Equal(rt, "u", c.UserID)
			}
		}
		got, _ := wallet(rt, s, t, coupon.WalletQuery{UserID: "u", Limit: limit})
		require.Equal(rt, expectWallet(rows, "u", allStates...), idsOf(got))

		usable, more, now, err := s.Usable(t.Context(), "u", 1000)
		require.NoError(rt, err)
		require.False(rt, more)
		require.WithinDuration(rt, time.Now(), now, time.Minute)
		require.Equal(rt, expectWallet(rows, "u", coupon.Unused), idsOf(usable))
		sum, err := s.WalletSummary(t.Context(), "u", 5500*time.Second)
		require.NoError(rt, err)
		require.Equal(rt, len(usable), sum.Usable)
	})
}
