package coupon_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/pkg/coupon"
)

func money(t *rapid.T, label string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(0, 20), rapid.Int64Range(0, 100_000), rapid.Int64Range(math.MaxInt64-20, math.MaxInt64), rapid.Int64Range(0, math.MaxInt64),
	).Draw(t, label)
}

func someScopes(t *rapid.T, label string) []string {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"shoes", "hats", "books"}), 0, 2, rapid.ID[string]).Draw(t, label)
}

func someCoupon(t *rapid.T, id uint64) coupon.Coupon {
	c := coupon.Coupon{
		Row: coupon.Row{
			ID: id, Status: coupon.Status(rapid.IntRange(1, 5).Draw(t, "status")), Version: 1,
			ValidFrom: now.Add(time.Duration(rapid.IntRange(-3, 1).Draw(t, "valid")) * time.Hour),
			ExpiresAt: now.Add(time.Duration(rapid.IntRange(-1, 3).Draw(t, "ends")) * time.Hour),
			LatePay:   rapid.SampledFrom([]coupon.LatePay{coupon.HonourLock, coupon.Strict}).Draw(t, "late"), LateWindow: time.Hour,
		},
		Terms: coupon.Terms{
			Value: money(t, "value"), Currency: rapid.SampledFrom([]string{"CNY", "CNY", "CNY", "USD"}).Draw(t, "currency"),
			Offer: coupon.Offer{Kind: coupon.OfferAmount, Scopes: someScopes(t, "applies")},
		},
	}
	if rapid.Bool().Draw(t, "percent") {
		c.Terms.Offer.Kind = coupon.OfferPercent
		c.Terms.Offer.BasisPoints = rapid.Int64Range(1, coupon.MaxBasisPoints).Draw(t, "points")
		c.Terms.Offer.Cap = rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "cap")
	}
	if rapid.Bool().Draw(t, "minimum") {
		c.Terms.Offer.MinSpend = money(t, "min")
	}
	switch c.Status {
	case coupon.Locked:
		c.OrderID = rapid.SampledFrom([]string{"mine", "other"}).Draw(t, "holder")
		c.LockUntil = now.Add(time.Duration(rapid.IntRange(-1, 2).Draw(t, "until")) * time.Hour)
	case coupon.Used:
		c.OrderID = rapid.SampledFrom([]string{"mine", "other"}).Draw(t, "user")
	case coupon.Unused, coupon.Expired, coupon.Voided:
	}
	return c
}

func someCart(t *rapid.T) coupon.Cart {
	c := coupon.Cart{Amount: money(t, "amount"), Currency: "CNY", OrderID: rapid.SampledFrom([]string{"", "mine"}).Draw(t, "order")}
	if rapid.Bool().Draw(t, "by scopes") {
		c.Scopes = someScopes(t, "in the cart")
		return c
	}
	rest := c.Amount
	for range rapid.IntRange(0, 3).Draw(t, "items") {
		part := rapid.Int64Range(0, rest).Draw(t, "part")
		c.Items = append(c.Items, coupon.Item{Amount: part, Scopes: someScopes(t, "of the item")})
		rest -= part
	}
	return c
}

// exact is the discount by arithmetic that cannot overflow.
func exact(t coupon.Terms, base int64) *big.Int {
	off := big.NewInt(t.Value)
	if t.Offer.Kind == coupon.OfferPercent {
		off.Mul(big.NewInt(base), big.NewInt(t.Offer.BasisPoints))
		off.Div(off, big.NewInt(coupon.MaxBasisPoints))
		if limit := big.NewInt(t.Offer.Cap); limit.Sign() > 0 && off.Cmp(limit) > 0 {
			off = limit
		}
	}
	if amount := big.NewInt(base); off.Cmp(amount) > 0 {
		off = amount
	}
	return off
}

// slow is the answer for one coupon, written down again in another way: nil if it cannot be used.
func slow(cart coupon.Cart, c coupon.Coupon) *big.Int {
	ended, early := !now.Before(c.ExpiresAt), now.Before(c.ValidFrom)
	free := c.Status == coupon.Unused || (c.Status == coupon.Locked && !now.Before(c.LockUntil))
	held := c.Status == coupon.Locked && now.Before(c.LockUntil) && c.OrderID == cart.OrderID
	ownRunOut := c.Status == coupon.Locked && !now.Before(c.LockUntil) && c.OrderID == cart.OrderID
	usable := (free && !ended && (!early || ownRunOut)) || (held && (!ended || c.LatePay == coupon.HonourLock))
	if !usable || c.Terms.Currency != cart.Currency {
		return nil
	}
	base, fits := new(big.Int), false
	meets := func(in []string) bool {
		return slices.ContainsFunc(in, func(s string) bool { return slices.Contains(c.Terms.Offer.Scopes, s) })
	}
	switch {
	case len(c.Terms.Offer.Scopes) == 0, len(cart.Items) == 0 && meets(cart.Scopes):
		base, fits = big.NewInt(cart.Amount), true
	default:
		for _, item := range cart.Items {
			if meets(item.Scopes) {
				base.Add(base, big.NewInt(item.Amount))
				fits = true
			}
		}
	}
	if !fits || base.Cmp(big.NewInt(c.Terms.Offer.MinSpend)) < 0 {
		return nil
	}
	return exact(c.Terms, base.Int64())
}

func TestTheBestEqualsBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cart := someCart(t)
		require.NoError(t, cart.Validate())
		coupons := make([]coupon.Coupon, rapid.IntRange(0, 6).Draw(t, "coupons"))
		for i := range coupons {
			coupons[i] = someCoupon(t, uint64(i+1))
		}
		quotes, best := coupon.Best(cart, coupons, now)
		require.Len(t, quotes, len(coupons))
		most := new(big.Int)
		for i, c := range coupons {
			q, want := quotes[i], slow(cart, c)
			require.Equal(t, c.ID, q.CouponID)
			require.Equal(t, want != nil, q.Usable, "%+v %+v", q, c)
			require.LessOrEqual(t, q.Off, q.Base)
			require.LessOrEqual(t, q.Base, cart.Amount)
			require.GreaterOrEqual(t, q.Off, int64(0))
			require.Equal(t, i == best, q.Reason == "", "every other has a reason")
			if want == nil {
				require.Zero(t, q.Off)
				continue
			}
			require.Equal(t, want.String(), big.NewInt(q.Off).String())
			if want.Cmp(most) > 0 {
				most = want
			}
		}
		require.Equal(t, most.Sign() > 0, best >= 0, "nothing is spent for nothing")
		if best >= 0 {
			require.Equal(t, most.String(), big.NewInt(quotes[best].Off).String())
			for i, q := range quotes {
				if i == best || q.Off != quotes[best].Off {
					continue
				}
				a, b := coupons[best], coupons[i]
				require.True(t, a.ExpiresAt.Before(b.ExpiresAt) || (a.ExpiresAt.Equal(b.ExpiresAt) && a.ID < b.ID), "of equals the one that ends first")
			}
		}

		// The order of the list is nothing to the answer.
		mixed := slices.Clone(coupons)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		again, other := coupon.Best(cart, mixed, now)
		byID := func(a, b coupon.Quote) int { return int(a.CouponID) - int(b.CouponID) }
		if best >= 0 {
			require.Equal(t, quotes[best], again[other])
		} else {
			require.Equal(t, -1, other)
		}
		require.ElementsMatch(t, quotes, again)
		require.True(t, slices.IsSortedFunc(quotes, byID))
	})
}

func TestMoreToPayNeverMeansLessOff(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cart := someCart(t)
		cart.Items = nil
		c := someCoupon(t, 1)
		before := cart.Quote(&c, now)
		cart.Amount = rapid.Int64Range(cart.Amount, math.MaxInt64).Draw(t, "more")
		after := cart.Quote(&c, now)
		require.GreaterOrEqual(t, after.Off, before.Off)
		require.True(t, after.Usable || !before.Usable)
		// Nor ever more than the difference: what is left to pay does not fall when the cart grows.
		if before.Usable {
			require.LessOrEqual(t, after.Off-before.Off, after.Base-before.Base)
		}
	})
}

func TestWhatIsOffForEveryAmount(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64().Draw(t, "amount")
		terms := coupon.Terms{Value: rapid.Int64().Draw(t, "value"), Offer: coupon.Offer{
			Kind:        rapid.SampledFrom([]coupon.OfferKind{coupon.OfferAmount, coupon.OfferPercent, ""}).Draw(t, "kind"),
			BasisPoints: rapid.Int64().Draw(t, "points"), Cap: rapid.Int64().Draw(t, "cap"),
		}}
		off := terms.Off(amount) // of any number that the type holds
		require.GreaterOrEqual(t, off, int64(0))
		require.LessOrEqual(t, off, max(amount, 0))
	})
}

func TestUsableIsWhatTheVerbsSay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := someCoupon(t, 1)
		order := rapid.SampledFrom([]string{"mine", "third"}).Draw(t, "order")
		code := coupon.Usable(c.Row, order, now)
		redeem := coupon.Apply(c.Row, coupon.Ask{Verb: coupon.VerbRedeem, OrderID: order}, now)
		require.Equal(t, code == "", len(redeem.Steps) > 0)
		lock := coupon.Apply(c.Row, coupon.Ask{Verb: coupon.VerbLock, OrderID: order, LockFor: time.Hour}, now)
		if order == "third" {
			require.Equal(t, lock.Refused, code, "whom the lock is refused is told the same beforehand")
		}
	})
}

func TestEveryReason(t *testing.T) {
	t.Parallel()
	unused := coupon.Row{ID: 7, Status: coupon.Unused, Version: 1, ValidFrom: now.Add(-time.Hour), ExpiresAt: now.Add(time.Hour), LatePay: coupon.HonourLock}
	terms := coupon.Terms{Value: 500, Currency: "CNY", Offer: coupon.Offer{Kind: coupon.OfferAmount}}
	cart := coupon.Cart{Amount: 2000, Currency: "CNY", Scopes: []string{"shoes"}, OrderID: "mine"}
	row := func(f func(*coupon.Row)) coupon.Row { r := unused; f(&r); return r }
	of := func(o coupon.Offer) coupon.Terms { t := terms; t.Offer = o; return t }
	for _, c := range []struct {
		name  string
		row   coupon.Row
		terms coupon.Terms
		off   int64
		want  coupon.Code
	}{
		{"free", unused, terms, 500, ""},
		{"ended, unsettled", row(func(r *coupon.Row) { r.ExpiresAt = now }), terms, 0, coupon.CodeExpired},
		{"ends next", row(func(r *coupon.Row) { r.ExpiresAt = now.Add(time.Millisecond) }), terms, 500, ""},
		{"not begun", row(func(r *coupon.Row) { r.ValidFrom = now.Add(time.Millisecond) }), terms, 0, coupon.CodeNotYetValid},
		{"begins now", row(func(r *coupon.Row) { r.ValidFrom = now }), terms, 500, ""},
		{"held by another", row(func(r *coupon.Row) { r.Status, r.OrderID, r.LockUntil = coupon.Locked, "o", now.Add(time.Second) }), terms, 0, coupon.CodeLockedByOther},
		{"held by another, run out", row(func(r *coupon.Row) { r.Status, r.OrderID, r.LockUntil = coupon.Locked, "o", now }), terms, 500, ""},
		{"held by this order", row(func(r *coupon.Row) { r.Status, r.OrderID, r.LockUntil = coupon.Locked, "mine", now.Add(time.Second) }), terms, 500, ""},
		{"held by this order past the end", row(func(r *coupon.Row) {
			r.Status, r.OrderID, r.LockUntil, r.ExpiresAt = coupon.Locked, "mine", now.Add(time.Second), now
		}), terms, 500, ""},
		{"held by this order past the end, strict", row(func(r *coupon.Row) {
			r.Status, r.OrderID, r.LockUntil, r.ExpiresAt, r.LatePay = coupon.Locked, "mine", now.Add(time.Second), now, coupon.Strict
		}), terms, 0, coupon.CodeExpired},
		{"used by another", row(func(r *coupon.Row) { r.Status, r.OrderID = coupon.Used, "o" }), terms, 0, coupon.CodeAlreadyUsed},
		{"used by this order", row(func(r *coupon.Row) { r.Status, r.OrderID = coupon.Used, "mine" }), terms, 0, coupon.CodeAlreadyUsed},
		{"withdrawn", row(func(r *coupon.Row) { r.Status = coupon.Voided }), terms, 0, coupon.CodeVoided},
		{"expired", row(func(r *coupon.Row) { r.Status = coupon.Expired }), terms, 0, coupon.CodeExpired},
		{"for others", unused, of(coupon.Offer{Kind: coupon.OfferAmount, Scopes: []string{"hats"}}), 0, coupon.CodeScopeMismatch},
		{"for these", unused, of(coupon.Offer{Kind: coupon.OfferAmount, Scopes: []string{"hats", "shoes"}}), 500, ""},
		{"too little", unused, of(coupon.Offer{Kind: coupon.OfferAmount, MinSpend: 2001}), 0, coupon.CodeMinSpend},
		{"just enough", unused, of(coupon.Offer{Kind: coupon.OfferAmount, MinSpend: 2000}), 500, ""},
		{"a third of a third", unused, of(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 3333}), 666, ""},
		{"capped", unused, of(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 3333, Cap: 100}), 100, ""},
		{"all of it", unused, of(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 10_000}), 2000, ""},
		{"too little for a minor unit", unused, of(coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 4}), 0, coupon.CodeNothingOff},
	} {
		k := coupon.Coupon{Row: c.row, Terms: c.terms}
		quotes, best := coupon.Best(cart, []coupon.Coupon{k}, now)
		require.Equal(t, c.want, quotes[0].Reason, c.name)
		require.Equal(t, c.off, quotes[0].Off, c.name)
		require.Equal(t, c.want == "", best == 0, c.name)
		require.Equal(t, c.want == "" || c.want == coupon.CodeNothingOff, quotes[0].Usable, c.name)
	}
	dollars := terms
	dollars.Currency = "USD"
	usd := cart.Quote(&coupon.Coupon{Row: unused, Terms: dollars}, now)
	require.Equal(t, coupon.CodeCurrencyMismatch, usd.Reason)
}

func TestItemsSayHowMuchIsInScope(t *testing.T) {
	t.Parallel()
	cart := coupon.Cart{Amount: 10_000, Currency: "CNY", Items: []coupon.Item{
		{Amount: 3000, Scopes: []string{"shoes", "shop 1"}}, {Amount: 4000, Scopes: []string{"hats", "shop 1"}}, {Amount: 1000},
	}}
	require.NoError(t, cart.Validate())
	row := coupon.Row{ID: 7, Status: coupon.Unused, Version: 1, ValidFrom: now.Add(-time.Hour), ExpiresAt: now.Add(time.Hour)}
	for _, c := range []struct {
		offer     coupon.Offer
		base, off int64
		reason    coupon.Code
	}{
		{coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000}, 10_000, 1000, ""},
		{coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000, Scopes: []string{"shoes"}}, 3000, 300, ""},
		{coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000, Scopes: []string{"shoes", "shop 1"}}, 7000, 700, ""},
		{coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000, Scopes: []string{"shoes"}, MinSpend: 3001}, 3000, 0, coupon.CodeMinSpend},
		{coupon.Offer{Kind: coupon.OfferPercent, BasisPoints: 1000, Scopes: []string{"books"}}, 0, 0, coupon.CodeScopeMismatch},
	} {
		q := cart.Quote(&coupon.Coupon{Row: row, Terms: coupon.Terms{Currency: "CNY", Offer: c.offer}}, now)
		require.Equal(t, c.base, q.Base)
		require.Equal(t, c.off, q.Off)
		require.Equal(t, c.reason, q.Reason)
	}
}

func TestACartThatIsWrongIsRefused(t *testing.T) {
	t.Parallel()
	err := coupon.Cart{
		Amount: -1, Currency: "cny", Scopes: []string{strings.Repeat("s", 65)}, Items: []coupon.Item{{Amount: -1, Scopes: []string{""}}},
		OrderID: strings.Repeat("o", 129),
	}.Validate()
	for _, want := range []string{
		"amount: must be 0 or more minor units, got -1", `currency: must be three capital letters of ISO 4217, got "cny"`, "scopes: each must have 1 to 64 bytes",
		"scopes: must not be given with items", "items[0].amount: must be 0 or more", "items[0].scopes: each must have", "order_id: must have 0 to 128 bytes",
	} {
		require.ErrorContains(t, err, want)
	}
	over := coupon.Cart{Amount: 5, Currency: "CNY", Items: []coupon.Item{{Amount: 3}, {Amount: math.MaxInt64}}}.Validate()
	require.ErrorContains(t, over, "items[1].amount: must leave the items' sum within amount (5)")
	require.ErrorContains(t, coupon.Cart{Currency: "CNY", Items: make([]coupon.Item, 257)}.Validate(), "items: must be at most 256")
}
