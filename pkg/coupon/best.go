package coupon

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"
	"unicode/utf8"
)

// Why a coupon of a wallet is not the one to take. The codes of its state are those of the verbs.
const (
	CodeCurrencyMismatch Code = "currency_mismatch" // it is of another currency than the cart
	CodeScopeMismatch    Code = "scope_mismatch"    // nothing that it applies to is in the cart
	CodeMinSpend         Code = "min_spend"         // too little of what it applies to is in the cart
	CodeLessOff          Code = "less_off"          // usable, and another is better
	CodeNothingOff       Code = "nothing_off"       // usable, and it would be spent for nothing
)

// Bounds of a cart.
const (
	MaxCartScopes = 256
	MaxItems      = 256
)

// Cart is what is to be paid, as far as a coupon needs to know it.
type Cart struct {
	Amount   int64    // minor units, all of it
	Currency string   // ISO 4217
	Scopes   []string // what is in it (categories, shops); not with Items
	// Items says how much of the amount each thing in the cart is. If it is given, a coupon that applies to some scopes
	// takes off and asks its minimum of the items that have one of them; else of the whole amount. What is in no item
	// (freight, say) is in no scope.
	Items   []Item
	OrderID string // the order it is to become, if known: a lock that this order holds is no obstacle
}

// Item is a part of a cart.
type Item struct {
	Amount int64 // minor units
	Scopes []string
}

// Validate reports every fault of a cart that somebody gave, each beginning with the field's name.
func (c Cart) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	scopes := func(field string, ss []string) {
		if len(ss) > MaxCartScopes {
			bad("%s: must be at most %d, got %d", field, MaxCartScopes, len(ss))
		}
		for _, s := range ss {
			if s == "" || len(s) > MaxScope || !utf8.ValidString(s) {
				bad("%s: each must have 1 to %d bytes of UTF-8, got %d", field, MaxScope, len(s))
				return
			}
		}
	}
	if c.Amount < 0 {
		bad("amount: must be 0 or more minor units, got %d", c.Amount)
	}
	if !currency(c.Currency) {
		bad("currency: must be three capital letters of ISO 4217, got %q", c.Currency)
	}
	scopes("scopes", c.Scopes)
	if len(c.Items) > 0 && len(c.Scopes) > 0 {
		bad("scopes: must not be given with items, whose scopes count")
	}
	if len(c.Items) > MaxItems {
		bad("items: must be at most %d, got %d", MaxItems, len(c.Items))
		return errors.Join(errs...)
	}
	rest := max(c.Amount, 0)
	for i, item := range c.Items {
		field := fmt.Sprintf("items[%d]", i)
		scopes(field+".scopes", item.Scopes)
		switch {
		case item.Amount < 0:
			bad("%s.amount: must be 0 or more minor units, got %d", field, item.Amount)
		case item.Amount > rest:
			bad("%s.amount: must leave the items' sum within amount (%d), got %d", field, c.Amount, item.Amount)
			return errors.Join(errs...)
		default:
			rest -= item.Amount
		}
	}
	if len(c.OrderID) > MaxText || !utf8.ValidString(c.OrderID) {
		bad("order_id: must have 0 to %d bytes of UTF-8, got %d", MaxText, len(c.OrderID))
	}
	return errors.Join(errs...)
}

// Quote is what one coupon would do for a cart.
type Quote struct {
	CouponID uint64
	Usable   bool
	Off      int64 // minor units of the cart's currency: 0 to Base; 0 unless usable
	Base     int64 // the part of the cart's amount that it applies to; 0 to the amount
	Reason   Code  // why it is not to be taken; empty for the best one, and for a single usable one
}

// Best says what each coupon would take off the cart at the instant now, in the order given, and which to take: the
// one that takes off most; of equals the one that ends first, then that of the lowest id. best is an index into
// quotes, -1 if no coupon takes anything off.
func Best(cart Cart, coupons []Coupon, now time.Time) (quotes []Quote, best int) {
	quotes, best = make([]Quote, len(coupons)), -1
	for i := range coupons {
		quotes[i] = cart.Quote(&coupons[i], now)
		if quotes[i].Off > 0 && (best < 0 || better(quotes[i], quotes[best], &coupons[i], &coupons[best])) {
			best = i
		}
	}
	for i := range quotes {
		switch {
		case !quotes[i].Usable || i == best:
		case quotes[i].Off == 0:
			quotes[i].Reason = CodeNothingOff
		default:
			quotes[i].Reason = CodeLessOff
		}
	}
	return quotes, best
}

func better(a, b Quote, ca, cb *Coupon) bool {
	switch {
	case a.Off != b.Off:
		return a.Off > b.Off
	case !ca.ExpiresAt.Equal(cb.ExpiresAt):
		return ca.ExpiresAt.Before(cb.ExpiresAt)
	default:
		return ca.ID < cb.ID
	}
}

// Quote says what one coupon would take off the cart at the instant now. Whether it is usable at all is what the verbs
// would say: see Usable.
func (c Cart) Quote(k *Coupon, now time.Time) Quote {
	q := Quote{CouponID: k.ID, Reason: Usable(k.Row, c.OrderID, now)}
	if q.Reason != "" {
		return q
	}
	if k.Terms.Currency != c.Currency {
		q.Reason = CodeCurrencyMismatch
		return q
	}
	base, fits := c.applies(k.Terms.Offer.Scopes)
	q.Base = base
	switch {
	case !fits:
		q.Reason = CodeScopeMismatch
	case base < k.Terms.Offer.MinSpend:
		q.Reason = CodeMinSpend
	default:
		q.Usable, q.Off = true, k.Terms.Off(base)
	}
	return q
}

// Usable is empty if an order could redeem the coupon at the instant now, else the refusal that it would meet. order
// may be empty: an order that holds nothing.
func Usable(row Row, order string, now time.Time) Code {
	v := Apply(row, Ask{Verb: VerbRedeem, OrderID: order}, now)
	if v.Repeat {
		return CodeAlreadyUsed // once, by this very order
	}
	return v.Refused
}

// applies gives the part of the amount that has one of the scopes, and whether anything has.
func (c Cart) applies(scopes []string) (base int64, fits bool) {
	whole := max(c.Amount, 0)
	switch {
	case len(scopes) == 0:
		return whole, true
	case len(c.Items) == 0:
		if share(c.Scopes, scopes) {
			return whole, true
		}
		return 0, false
	}
	for _, item := range c.Items {
		if share(item.Scopes, scopes) {
			fits = true
			base += min(max(item.Amount, 0), whole-base) // never above the whole, so it cannot overflow
		}
	}
	return base, fits
}

func share(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// Off is what the terms take off an amount, minor units, ignoring what it applies to and its minimum: never below 0, never
// above the amount. A part of a minor unit is not given.
func (t Terms) Off(amount int64) int64 {
	amount = max(amount, 0)
	if t.Offer.Kind != OfferPercent {
		return min(max(t.Value, 0), amount)
	}
	part := uint64(min(max(t.Offer.BasisPoints, 0), MaxBasisPoints))
	// The product has up to 77 bits; its upper half is less than part, so less than the divisor.
	high, low := bits.Mul64(uint64(amount), part)
	if high >= MaxBasisPoints {
		return amount
	}
	off, _ := bits.Div64(high, low, MaxBasisPoints)
	if limit := t.Offer.Cap; limit > 0 {
		return min(int64(off), limit)
	}
	return int64(off)
}
