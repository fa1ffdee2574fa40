package text

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Whatever the amount, the currency and the locale: a sum is shown to its last minor unit, and no digit is added or lost.
func TestMoneyIsShownToItsLastMinorUnit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := message.NewPrinter(rapid.SampledFrom([]language.Tag{language.English, language.SimplifiedChinese, language.German, language.French}).Draw(t, "locale"))
		a := coupon.Amount{
			Minor:    rapid.OneOf(rapid.Int64(), rapid.Int64Range(-100_000, 100_000), rapid.SampledFrom([]int64{0, math.MinInt64, math.MaxInt64})).Draw(t, "minor"),
			Currency: rapid.SampledFrom([]string{"CNY", "USD", "EUR", "JPY", "KWD", "CLF", "XXX", "QQQ", "", "cny", "{{}}"}).Draw(t, "currency"),
		}
		point := decimalPoint(p)
		s := sumOf(p, point, a)
		if isCode(a.Currency) {
			require.Equal(t, a.Currency, s.Currency)
			require.NotEmpty(t, s.Symbol)
		} else {
			require.Empty(t, s.Currency)
		}
		n := digits(s.Currency)
		if n > 0 {
			at := strings.LastIndex(s.Number, point)
			require.Len(t, s.Number[at+len(point):], n, "%q", s.Number)
		}
		shown := strings.Map(func(r rune) rune {
			if r < '0' || r > '9' {
				return -1
			}
			return r
		}, s.Number)
		minor := big.NewInt(a.Minor)
		require.Equal(t, minor.Sign() < 0, strings.HasPrefix(s.Number, "-"), "%q", s.Number)
		want := minor.Abs(minor).String()
		require.Equal(t, strings.Repeat("0", max(0, n+1-len(want)))+want, shown, "%+v is %q", a, s.Number)
	})
}
