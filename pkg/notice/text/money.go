package text

import (
	"strings"

	"golang.org/x/text/currency"
	"golang.org/x/text/message"
	"golang.org/x/text/number"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// sum is what the "money" template may use.
type sum struct {
	Currency string // three capital letters, or empty if it is not so
	Symbol   string // the locale's
	Code     bool   // Symbol is Currency
	Number   string // with the locale's separators and as many decimals as the currency has
}

// digits is how many decimals ISO 4217 gives a currency's minor unit. CLDR's differ: they say what is customary, and money is stored
// in ISO's units.
func digits(code string) int {
	switch code {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3
	case "CLF", "UYW":
		return 4
	default:
		return 2
	}
}

func sumOf(p *message.Printer, point string, a coupon.Amount) sum {
	s := sum{Currency: a.Currency}
	if !isCode(a.Currency) {
		s.Currency = "" // whatever it is, it does not belong into a text
	}
	if unit, err := currency.ParseISO(s.Currency); err == nil {
		s.Symbol = p.Sprint(currency.Symbol(unit))
	}
	if s.Symbol == "" || s.Symbol == "***" { // CLDR's for what it does not know
		s.Symbol = s.Currency
	}
	s.Code = s.Symbol == s.Currency && s.Symbol != ""

	minor, sign := uint64(a.Minor), ""
	if a.Minor < 0 {
		minor, sign = -minor, "-"
	}
	unit, n := uint64(1), digits(s.Currency)
	for range n {
		unit *= 10
	}
	s.Number = sign + p.Sprint(number.Decimal(minor/unit))
	if n > 0 {
		s.Number += point + p.Sprint(number.Decimal(minor%unit, number.MinIntegerDigits(n), number.NoSeparator()))
	}
	return s
}

// decimalPoint is what the locale writes between a number's whole and its decimals.
func decimalPoint(p *message.Printer) string {
	whole, tenths := p.Sprint(number.Decimal(1)), p.Sprint(number.Decimal(5))
	return strings.TrimSuffix(strings.TrimPrefix(p.Sprint(number.Decimal(1.5)), whole), tenths)
}

func isCode(text string) bool {
	return len(text) == 3 && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
