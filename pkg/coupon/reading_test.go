package coupon_test

import (
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Offsets and ids of notices are part of other ids: what is read says the same when it is written.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"-3d", "-90d", "-91d", "-1d@10:00", "-1h@10:00", "-0s", "-7776000s", "-1d@24:00", "3d", "", "123-sms", "0-sms", "-sms", "18446744073709551616-push", "1-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := coupon.ParseOffset(text)
		if err == nil {
			require.Equal(t, text, o.Name)
			require.True(t, o.Local || o.Before > 0 && o.Before <= 90*24*time.Hour)
			require.False(t, o.Local && (o.Days < 1 || o.Clock < 0 || o.Clock >= 24*time.Hour))
			require.GreaterOrEqual(t, o.Reach(), o.Before)
			_, err = coupon.ParseOffsets([]string{text, text})
			require.Error(t, err, "named twice")
		}
		if window, channel, err := coupon.ParseNoticeID(text); err == nil {
			require.Contains(t, coupon.Channels(), channel)
			again, of, err := coupon.ParseNoticeID(coupon.NoticeID(window, channel))
			require.NoError(t, err)
			require.Equal(t, window, again)
			require.Equal(t, channel, of)
		}
	})
}

// Money: terms that are taken are worth what arithmetic without bounds says, and never more than what is paid.
func FuzzMoney(f *testing.F) {
	f.Add(int64(500), "CNY", "amount", int64(0), int64(0), int64(0), int64(1000))
	f.Add(int64(0), "USD", "percent", int64(10_000), int64(0), int64(1), int64(1)<<62)
	f.Add(int64(-1), "cny", "percent", int64(10_001), int64(-1), int64(-1), int64(-1))
	f.Add(int64(1), "元", "", int64(1), int64(1), int64(1), int64(0))
	iso := regexp.MustCompile(`^[A-Z]{3}$`)
	f.Fuzz(func(t *testing.T, value int64, currency, kind string, points, limit, least, amount int64) {
		terms := coupon.Terms{
			Value: value, Currency: currency, Precision: coupon.Exact,
			Offer: coupon.Offer{Kind: coupon.OfferKind(kind), BasisPoints: points, Cap: limit, MinSpend: least},
		}.Defaults()
		cart := coupon.Cart{Amount: amount, Currency: currency}
		if err := terms.Validate(); err != nil {
			for _, fault := range strings.Split(err.Error(), "\n") {
				require.Regexp(t, `^[a-z_, ]+: `, fault)
			}
			return
		}
		require.Regexp(t, iso, currency)
		if cart.Validate() != nil {
			return
		}
		c := coupon.Coupon{Row: coupon.Row{ID: 1, Status: coupon.Unused, Version: 1, ExpiresAt: coupon.Never}, Terms: terms}
		quotes, _ := coupon.Best(cart, []coupon.Coupon{c}, now)
		q := quotes[0]
		require.Equal(t, amount >= least, q.Usable, "%+v", q)
		if q.Usable {
			require.Zero(t, exact(terms, amount).Cmp(big.NewInt(q.Off)), "%+v", q)
			require.True(t, q.Off >= 0 && q.Off <= amount)
		}
	})
}
