package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// The end that a reader sees is the asked one; only the due instant is spread, in the row, the history and the trigger,
// and the trigger carries the end.
func TestIssueSpreadsTheDueInstantAlone(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	ends := time.Date(2035, 10, 31, 16, 0, 0, 0, time.UTC)
	const n = 200
	for _, p := range []coupon.Precision{coupon.Exact, coupon.Standard, coupon.Relaxed} {
		template := create(t, s, func(c *coupon.Template) { c.Terms.Precision = p })
		grants := make([]coupon.Grant, n)
		for i := range grants {
			grants[i] = grant(template, "u", fmt.Sprintf("%s%d", p, i))
			grants[i].ExpiresAt = ends
		}
		answers, err := s.Issue(t.Context(), grants)
		require.NoError(t, err)
		for i, a := range answers {
			require.Equal(t, ends, a.ExpiresAt)
			var end, due time.Time
			require.NoError(t, db.SQL.QueryRowContext(t.Context(), `SELECT expires_at, due_at FROM coupon WHERE id = ?`, a.CouponID).Scan(&end, &due))
			require.Equal(t, ends, end)
			require.Equal(t, coupon.DueAt(ends, p, "shop", grants[i].Key), due)
		}
		seconds := db.Int(t, `SELECT COUNT(DISTINCT due_at) FROM coupon WHERE template_id = ?`, template)
		t.Logf("%s: %d coupons end at one instant, due at %d", p, n, seconds)
		require.LessOrEqual(t, seconds, int64(p.Slots()))
		require.Equal(t, p != coupon.Exact, seconds > 1)
	}
	consistent(t, db)
	require.EqualValues(t, 3*n, db.Int(t, `SELECT COUNT(*) FROM outbox o JOIN coupon c ON c.id = o.coupon_id
		WHERE o.lane = 0 AND o.deliver_at = c.due_at AND o.body LIKE '%"at":"2035-10-31T16:00:00Z"%'`))
	require.Zero(t, db.Int(t, `SELECT COUNT(*) FROM outbox o JOIN coupon c ON c.id = o.coupon_id
		JOIN coupon_template t ON t.id = c.template_id WHERE o.lane = 0 AND o.class <> IF(t.prec_class = 'exact', 'x', 'r')`))

	never := issueOne(t, s, coupon.Grant{
		Issuer: "shop", Key: "never", TemplateID: create(t, s, func(c *coupon.Template) { c.Terms.Precision = coupon.Relaxed }),
		UserID: "u", ExpiresAt: coupon.Never,
	})
	require.EqualValues(t, 1, db.Int(t, `SELECT COUNT(*) FROM coupon WHERE id = ? AND due_at = '9999-12-31'`, never.CouponID))
}

// Between its end and its due instant a coupon is ended for everybody: whoever rings expires it, and nobody is owed for it.
func TestAnEndedCouponExpiresBeforeItIsDueWhenSomebodyRings(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 2, coupon.Unused, past, "NULL")
	d.Exec(t, `UPDATE coupon SET due_at = expires_at + INTERVAL 500 SECOND`)

	n, _, err := s.Overdue(t.Context(), time.Second)
	require.NoError(t, err)
	require.Zero(t, n, "not overdue before it is due")
	now, err := s.Now(t.Context())
	require.NoError(t, err)
	swept, err := s.SweepBatch(t.Context(), false, now, coupon.Cursor{}, 10, always)
	require.NoError(t, err)
	require.Empty(t, swept.Settled, "the sweep leaves it until it is due")

	_, out, err := s.ExpireBatch(t.Context(), triggersFor(1, 1, coupon.OriginLazy), always)
	require.NoError(t, err)
	require.Equal(t, coupon.Expire, out[0].Decision.Action)
	require.EqualValues(t, 1, d.Int(t, `SELECT COUNT(*) FROM coupon WHERE status = 4 AND expire_cause = 'lazy'`))
}

// A trigger that comes before the end waits for the due instant, not for the end.
func TestATriggerBeforeTheEndIsSentOnToTheDueInstant(t *testing.T) {
	t.Parallel()
	d := testenv.NewDatabase(t)
	s := d.Store(t)
	plant(t, d, 1, 1, coupon.Unused, "'2035-10-31 16:00:00'", "NULL")
	d.Exec(t, `UPDATE coupon SET due_at = expires_at + INTERVAL 123 SECOND`)
	ends := time.Date(2035, 10, 31, 16, 0, 0, 0, time.UTC)
	_, out, err := s.ExpireBatch(t.Context(), []coupon.Trigger{{Kind: coupon.KindExpire, CouponID: 1, At: ends}}, always)
	require.NoError(t, err)
	require.Equal(t, coupon.Reschedule, out[0].Decision.Action)
	require.Equal(t, ends.Add(123*time.Second), out[0].Decision.Until)
}
