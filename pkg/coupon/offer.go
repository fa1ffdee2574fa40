package coupon

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// OfferKind says what a coupon takes off.
type OfferKind string

// The kinds of offer.
const (
	OfferAmount  OfferKind = "amount"  // Terms.Value minor units
	OfferPercent OfferKind = "percent" // a part of the amount, up to a cap
)

// MaxValue is the most that one coupon is worth, in minor units. Nine million such coupons can be added up, which is what
// a wallet's summary and a day's statistics do.
const MaxValue = 1_000_000_000_000

// MaxBasisPoints is everything: 100 %.
const MaxBasisPoints = 10_000

// Offer is what a coupon is worth at checkout. Money is integer minor units of the terms' currency.
type Offer struct {
	Kind        OfferKind // OfferAmount by default
	BasisPoints int64     // percent: hundredths of a percent, 1 to MaxBasisPoints
	Cap         int64     // percent: at most this much off; 0: no cap
	MinSpend    int64     // the least amount it applies to; 0: any
	Scopes      []string  // what it applies to (categories, shops); empty: everything
}

// Bounds of an offer's scopes.
const (
	MaxScopes = 32
	MaxScope  = 64 // bytes
)

// Defaults fills in what was not said: an amount off, a live lock is honoured for half an hour, no quota comes back.
func (t Terms) Defaults() Terms {
	if t.Offer.Kind == "" {
		t.Offer.Kind = OfferAmount
	}
	if t.LatePay == "" {
		t.LatePay, t.LateWindow = HonourLock, DefaultLateWindow
	}
	if t.QuotaBack == "" {
		t.QuotaBack = QuotaBackNone
	}
	return t
}

// Validate reports every fault of terms that have their defaults, each beginning with the field's name.
func (t Terms) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if t.Value < 0 || t.Value > MaxValue {
		bad("value: must be between 0 and %d minor units, got %d", MaxValue, t.Value)
	}
	if !currency(t.Currency) {
		bad("currency: must be three capital letters of ISO 4217, got %q", t.Currency)
	}
	if !t.Precision.Valid() {
		bad("precision: must be exact, standard or relaxed, got %q", t.Precision)
	}
	if t.LatePay != HonourLock && t.LatePay != Strict {
		bad("late_pay_policy: must be honour_lock or strict, got %q", t.LatePay)
	}
	if t.LateWindow < 0 || t.LateWindow > MaxLateWindow || t.LateWindow%time.Second != 0 {
		bad("late_pay_window: must be whole seconds between 0s and %s, got %s", MaxLateWindow, t.LateWindow)
	}
	if t.QuotaBack != QuotaBackNone && t.QuotaBack != QuotaBackTotal && t.QuotaBack != QuotaBackTotalAndUser {
		bad("quota_back: must be none, total or total_and_user, got %q", t.QuotaBack)
	}
	if err := t.Reminders.Validate(); err != nil {
		bad("reminders: %w", err)
	}
	return errors.Join(append(errs, t.Offer.Validate())...)
}

// Validate reports every fault, each beginning with the field's name.
func (o Offer) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch o.Kind {
	case OfferAmount:
		if o.BasisPoints != 0 || o.Cap != 0 {
			bad("basis_points, cap: belong to a percent offer, got %d and %d", o.BasisPoints, o.Cap)
		}
	case OfferPercent:
		if o.BasisPoints < 1 || o.BasisPoints > MaxBasisPoints {
			bad("basis_points: must be between 1 and %d, got %d", MaxBasisPoints, o.BasisPoints)
		}
		if o.Cap < 0 {
			bad("cap: must be 0 (none) or more minor units, got %d", o.Cap)
		}
	default:
		bad("offer: must be amount or percent, got %q", o.Kind)
	}
	if o.MinSpend < 0 {
		bad("min_spend: must be 0 or more minor units, got %d", o.MinSpend)
	}
	if len(o.Scopes) > MaxScopes {
		bad("scopes: must be at most %d, got %d", MaxScopes, len(o.Scopes))
	}
	for _, s := range o.Scopes {
		if s == "" || len(s) > MaxScope || !utf8.ValidString(s) {
			bad("scopes: each must have 1 to %d bytes of UTF-8, got %q", MaxScope, s)
		}
	}
	return errors.Join(errs...)
}
