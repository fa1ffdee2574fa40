package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/testenv"
)

// manySteps plants n used coupons with three steps each, keys, counted, of five users' worth of counters each.
func manySteps(t testing.TB, d testenv.Database, n int) {
	t.Helper()
	plantUnused(t, d, 1, n, 36000)
	d.Exec(t, `UPDATE coupon SET status = 3, version = 3, used_at = granted_at, order_id = 'o', user_id = CONCAT('u', id)`)
	for version, steps := range map[int]string{2: "1,2", 3: "2,3"} {
		d.Exec(t, fmt.Sprintf(`INSERT INTO coupon_history SELECT coupon_id, %d, %s, 'order', at, expires_at, due_at, 'o', '', '', '', '', '', NULL, NULL
			FROM coupon_history WHERE version = 1`, version, steps))
	}
	d.Exec(t, `INSERT INTO ledger_seen SELECT coupon_id, version FROM coupon_history`)
	d.Exec(t, `INSERT INTO grant_key SELECT 'shop', CONCAT('k', id), id, REPEAT('x', 32) FROM coupon`)
	d.Exec(t, `INSERT INTO user_quota SELECT template_id, user_id, 1 FROM coupon`)
	d.Exec(t, `INSERT INTO template_stock (template_id, revision, quota, per_user, taken, stopped) VALUES (1,1,0,1,?,0)`, n)
	d.Exec(t, `ANALYZE TABLE coupon, coupon_history, ledger_seen, grant_key, user_quota`)
}

// BenchmarkReconcile reads everything that a reconciliation reads of 200 000 coupons. Run with -benchtime 1x.
func BenchmarkReconcile(b *testing.B) {
	const n = 200_000
	d := testenv.NewDatabase(b)
	s := d.Store(b)
	manySteps(b, d, n)
	const width = 50_000
	ranges := func(b *testing.B, fn func(low, high uint64) error) {
		for low := uint64(0); low < n; low += width {
			require.NoError(b, fn(low, low+width))
		}
	}
	for name, part := range map[string]func(b *testing.B){
		"tally": func(b *testing.B) {
			ranges(b, func(low, high uint64) error { _, err := s.TallyRange(b.Context(), low, high); return err })
		},
		"suspects": func(b *testing.B) {
			ranges(b, func(low, high uint64) error {
				ids, err := s.Suspects(b.Context(), low, high, 100)
				require.Empty(b, ids)
				return err
			})
		},
		"steps": func(b *testing.B) {
			ranges(b, func(low, high uint64) error { _, err := s.StepTallies(b.Context(), low, high, time.Now()); return err })
		},
		"lost": func(b *testing.B) {
			ranges(b, func(low, high uint64) error { _, err := s.LostCoupons(b.Context(), low, high, 100); return err })
		},
		"users": func(b *testing.B) {
			for template, user := uint64(0), ""; ; {
				differ, last, seen, err := s.UserCounts(b.Context(), template, user, 5000)
				require.NoError(b, err)
				require.Empty(b, differ)
				if template, user = last.Template, last.UserID; seen < 5000 {
					return
				}
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				part(b)
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "coupons/s")
		})
	}
}
