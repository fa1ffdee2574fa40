package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestRecordRedeemRefused(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	s := db.Store(t)
	wake := s.OutboxWritten()
	require.NoError(t, s.RecordRedeemRefused(t.Context(), nil))
	require.Empty(t, wake)

	longest := coupon.RedeemRefused{
		CouponID: 1<<64 - 1, OrderID: strings.Repeat("过", 42) + "oo", UserID: strings.Repeat("u", 128), Code: coupon.CodeLockedByOther, At: time.Now(),
	}
	other := coupon.RedeemRefused{CouponID: 18, OrderID: "o", Code: coupon.CodeNotFound, At: time.Now()}
	for range 2 { // told again: the same ids
		require.NoError(t, s.RecordRedeemRefused(t.Context(), []coupon.RedeemRefused{longest, other}))
		require.Len(t, wake, 1)
		<-wake
	}
	require.EqualValues(t, 4, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE lane = 1 AND routing_key = 'coupon.redeem_refused'`))
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(DISTINCT msg_id) FROM outbox`))
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE part = 15 AND coupon_id = 18446744073709551615`))
	require.EqualValues(t, 2, db.Int(t, `SELECT COUNT(*) FROM outbox WHERE part = 2 AND msg_id = '18:o:redeem_refused'`))

	require.ErrorContains(t, s.RecordRedeemRefused(t.Context(), []coupon.RedeemRefused{{CouponID: 1}}), "was not refused")
}
