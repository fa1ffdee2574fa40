package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// BenchmarkReconcile reconciles 200 000 used coupons of as many users, with three steps each. Run with -benchtime 1x.
func BenchmarkReconcile(b *testing.B) {
	const n = 200_000
	d := testenv.NewDatabase(b)
	s := newShop(b, d, d.Store(b))
	ids, err := s.issue(b.Context(), s.templates[0], "first", 1)
	require.NoError(b, err)
	require.NoError(b, s.act(b.Context(), coupon.VerbLock, "o", ids[0]))
	require.NoError(b, s.act(b.Context(), coupon.VerbRedeem, "o", ids[0]))
	columns := `template_id, revision, batch_id, status, version, valid_from, expires_at, due_at, granted_at, order_id, used_at`
	for have := 1; have < n; have *= 2 {
		d.Exec(b, fmt.Sprintf(`INSERT INTO coupon (id, user_id, %s) SELECT id + %d, CONCAT('w', id + %d), %s FROM coupon WHERE id <= %d`,
			columns, have, have, columns, min(have, n-have)))
	}
	past := `version, from_status, to_status, cause, at, expires_at, due_at, order_id, actor, reason, trigger_id, origin, trace, lock_until, previous`
	d.Exec(b, `INSERT INTO coupon_history (coupon_id, `+past+`) SELECT c.id, h.version, from_status, to_status, cause, at, h.expires_at, h.due_at, h.order_id, actor, reason,
		trigger_id, origin, trace, h.lock_until, previous FROM coupon c JOIN coupon_history h ON h.coupon_id = ? WHERE c.id <> h.coupon_id`, ids[0])
	d.Exec(b, `INSERT INTO grant_key SELECT 'bench', id, id, REPEAT('x', 32) FROM coupon`)
	d.Exec(b, `INSERT INTO user_quota SELECT template_id, user_id, 1 FROM coupon WHERE id > 1`)
	d.Exec(b, `UPDATE template_stock SET taken = ? WHERE template_id = ?`, n, s.templates[0])
	d.Exec(b, `INSERT INTO ledger_seen SELECT coupon_id, version FROM coupon_history`)
	d.Exec(b, `INSERT INTO template_stats (template_id, day, granted, locked, used, granted_value, used_value)
		SELECT ?, DATE(UTC_TIMESTAMP(3)), ?, ?, ?, ?, ?`, s.templates[0], n, n, n, 500*n, 500*n)
	d.Exec(b, `INSERT INTO setting (name, value, updated_at) VALUES ('ledger.seed', 'done', UTC_TIMESTAMP(3))`)
	d.Exec(b, `DELETE FROM outbox`)
	d.Exec(b, `ANALYZE TABLE coupon, coupon_history, ledger_seen, grant_key, user_quota`)
	for b.Loop() {
		began := time.Now()
		rep, err := reconcile.Reconcile(b.Context(), config(func(c *reconcile.Config) { c.Range = 50_000 }), s.Store, reconcile.Ask{})
		require.NoError(b, err)
		require.Empty(b, text(rep))
		require.EqualValues(b, n, rep.Coupons)
		b.ReportMetric(n/time.Since(began).Seconds(), "coupons/s")
	}
}
