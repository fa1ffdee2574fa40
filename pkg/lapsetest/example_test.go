package lapsetest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/client"
	"github.com/lapsehq/lapse/pkg/lapsetest"
)

// checkout is what an integrator has: the part of a shop that asks Lapse.
type checkout struct {
	lapse *client.Client
}

// pay takes what a coupon takes off, and uses it up; without it, if it cannot be used any more.
func (c checkout) pay(ctx context.Context, order, user, couponID string, amount int64) (int64, error) {
	ask := client.Order{UserID: user, CouponIDs: []string{couponID}}
	used, err := c.lapse.Redeem(ctx, order, ask)
	switch {
	case client.IsCode(err, client.CodeExpired):
		return amount, nil
	case err != nil:
		return 0, err
	}
	return amount - used.Coupons[0].Value, nil
}

// TestCheckoutTakesNoExpiredCoupon is what a test of an integrator's looks like: nothing runs but this process, and a week is
// over at once.
func TestCheckoutTakesNoExpiredCoupon(t *testing.T) {
	t.Parallel()
	lapse := lapsetest.New(t)
	ctx, c := t.Context(), lapse.Client()

	spring, err := c.CreateTemplate(ctx, client.Terms{
		Name: "spring", Rule: client.Rule{Kind: "days_after", Days: 7, Zone: "Asia/Shanghai"}, Value: 500, Currency: "CNY", Reason: "a test",
	})
	require.NoError(t, err)
	got, err := c.Grants(ctx,
		client.Grant{GrantKey: "welcome-1", TemplateID: spring.TemplateID, UserID: "mei"},
		client.Grant{GrantKey: "welcome-2", TemplateID: spring.TemplateID, UserID: "mei"},
	)
	require.NoError(t, err)

	shop := checkout{lapse: c}
	pays, err := shop.pay(ctx, "order-1", "mei", got[0].CouponID, 2000)
	require.NoError(t, err)
	require.EqualValues(t, 1500, pays)

	events := lapse.Advance(8 * 24 * time.Hour) // time goes by, with everything that comes in it
	pays, err = shop.pay(ctx, "order-2", "mei", got[1].CouponID, 2000)
	require.NoError(t, err)
	require.EqualValues(t, 2000, pays, "its end has passed")

	// What the shop's consumers would hear meanwhile: reminders, and the end.
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	require.Equal(t, []string{"coupon.expiring.v1", "coupon.expiring.v1", "coupon.expiring.v1", "coupon.expired.v1"}, types)
	var data struct {
		CouponID string    `json:"coupon_id"`
		Expired  time.Time `json:"expired_at"`
	}
	require.NoError(t, events[3].Data(&data))
	require.Equal(t, got[1].CouponID, data.CouponID)
	require.Equal(t, *got[1].ExpiresAt, data.Expired, "on the second")
}
