package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// termsFlags say what a coupon takes off and how it is paid late; what is not given stays as it is.
type termsFlags struct {
	Offer       *string        `help:"What it takes off: amount (its value) or percent." placeholder:"amount"`
	BasisPoints *int64         `help:"Of a percent offer: hundredths of a percent, 1250 is 12.5 %."`
	Cap         *int64         `help:"Of a percent offer: the most it takes off, in minor units; 0: no cap."`
	MinSpend    *int64         `help:"The least amount it applies to, in minor units; 0: any."`
	Scopes      []string       `name:"scope" sep:"none" help:"What it applies to, such as a category; may be repeated. None, or an empty one to take those of before away: everything."`
	LatePay     *string        `help:"Whether an order that holds a live lock may pay past the end: honour_lock or strict." placeholder:"honour_lock"`
	LateWindow  *time.Duration `help:"How far past the end a lock may reach." placeholder:"30m"`
	QuotaBack   *string        `help:"What an expired or voided coupon gives back of the quota: none, total or total_and_user." placeholder:"none"`
	Reminders   *string        `help:"At which of the installation's offsets before the end users are told, such as --reminders=-3d,-30m; none for none, an empty one for all." placeholder:"OFFSETS"`
}

// apply sets what was given.
func (f *termsFlags) apply(t *coupon.Terms) {
	*t = t.Defaults()
	if f.Offer != nil {
		t.Offer.Kind = coupon.OfferKind(*f.Offer)
	}
	set(&t.Offer.BasisPoints, f.BasisPoints)
	set(&t.Offer.Cap, f.Cap)
	set(&t.Offer.MinSpend, f.MinSpend)
	switch {
	case len(f.Scopes) == 1 && f.Scopes[0] == "":
		t.Offer.Scopes = nil
	case len(f.Scopes) > 0:
		t.Offer.Scopes = f.Scopes
	}
	if f.LatePay != nil {
		t.LatePay = coupon.LatePay(*f.LatePay)
	}
	set(&t.LateWindow, f.LateWindow)
	if f.QuotaBack != nil {
		t.QuotaBack = coupon.QuotaBack(*f.QuotaBack)
	}
	if f.Reminders != nil {
		t.Reminders = coupon.Picks(*f.Reminders)
	}
}

// termsJSON are the terms beside the value, as --json prints them.
type termsJSON struct {
	Offer       string   `json:"offer"`
	BasisPoints int64    `json:"basis_points"`
	Cap         int64    `json:"cap"`       // minor units; 0: none
	MinSpend    int64    `json:"min_spend"` // minor units; 0: any
	Scopes      []string `json:"scopes"`    // empty: everything
	LatePay     string   `json:"late_pay_policy"`
	LateWindow  string   `json:"late_pay_window"`
	QuotaBack   string   `json:"quota_back"`
	Reminders   string   `json:"reminders"` // empty: at all of the installation's offsets
}

func termsOf(t coupon.Terms) termsJSON {
	return termsJSON{
		Offer: string(t.Offer.Kind), BasisPoints: t.Offer.BasisPoints, Cap: t.Offer.Cap, MinSpend: t.Offer.MinSpend,
		Scopes: append([]string{}, t.Offer.Scopes...), LatePay: string(t.LatePay), LateWindow: t.LateWindow.String(), QuotaBack: string(t.QuotaBack),
		Reminders: string(t.Reminders),
	}
}

// remindersText is a template's pick for people.
func remindersText(p coupon.Picks) string {
	switch p {
	case "":
		return "at all of the installation's offsets"
	case coupon.PickNone:
		return "none"
	default:
		return strings.ReplaceAll(string(p), ",", ", ")
	}
}

// offerText is an offer for people.
func offerText(t coupon.Terms) string {
	text := money(t.Value, t.Currency) + " off"
	if t.Offer.Kind == coupon.OfferPercent {
		text = fmt.Sprintf("%d.%02d %% off", t.Offer.BasisPoints/100, t.Offer.BasisPoints%100)
		if t.Offer.Cap > 0 {
			text += ", at most " + money(t.Offer.Cap, t.Currency)
		}
	}
	if t.Offer.MinSpend > 0 {
		text += ", from " + money(t.Offer.MinSpend, t.Currency)
	}
	if len(t.Offer.Scopes) > 0 {
		text += ", for " + strings.Join(t.Offer.Scopes, ", ")
	}
	return text
}
