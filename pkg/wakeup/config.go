package wakeup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Config says who is at risk, and what they are offered.
type Config struct {
	// Offset is the reminder whose windows are asked: one of the fleet's. Empty: nobody is told of. Default -1d.
	Offset string `koanf:"offset"`
	// Recent is how long ago the last browsing or cart may be. Default 72h.
	Recent time.Duration `koanf:"recent"`
	// Offers: the first that matches what is at risk names the kind of offer; none does: banner. Default none.
	Offers []Offer `koanf:"offers"`
	// Template is what whoever is offered a grant is granted, once for a day; 0: others do that, or nobody. Default 0.
	Template uint64 `koanf:"template"`
}

// Offer is a kind of offer and what must be at risk for it.
type Offer struct {
	Offer    string `koanf:"offer"`     // grant, discount or banner
	MinValue int64  `koanf:"min_value"` // the coupons of the currency are worth so much together, in minor units
	Currency string `koanf:"currency"`  // ISO 4217; may be left out if min_value is 0
}

// maxOffers bounds the list.
const maxOffers = 100

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config { return Config{Offset: "-1d", Recent: 72 * time.Hour} }

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Offset != "" {
		if _, err := coupon.ParseOffset(c.Offset); err != nil {
			bad("offset: %w", err)
		}
	}
	if c.Recent < time.Minute || c.Recent > 90*24*time.Hour {
		bad("recent: must be between 1m and 2160h, got %s", c.Recent)
	}
	if len(c.Offers) > maxOffers {
		bad("offers: must have at most %d, got %d", maxOffers, len(c.Offers))
	}
	granted := false
	for i, o := range c.Offers {
		granted = granted || o.Offer == coupon.OfferGrant
		if !slices.Contains(coupon.AtRiskOffers(), o.Offer) {
			bad("offers[%d].offer: must be %s, got %q", i, strings.Join(coupon.AtRiskOffers(), ", "), o.Offer)
		}
		if o.MinValue < 0 {
			bad("offers[%d].min_value: must be 0 or more, got %d", i, o.MinValue)
		}
		if o.Currency != "" && !isCurrency(o.Currency) || o.Currency == "" && o.MinValue > 0 {
			bad("offers[%d].currency: must be like CNY, got %q", i, o.Currency)
		}
	}
	if c.Template != 0 && !granted {
		bad("template: is never granted, since none of offers is a grant, got %d", c.Template)
	}
	return errors.Join(errs...)
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// offer is what is to be offered to whom that is at risk.
func (c *Config) offer(totals []coupon.Amount) string {
	for _, o := range c.Offers {
		if o.MinValue == 0 && o.Currency == "" {
			return o.Offer
		}
		for _, t := range totals {
			if t.Currency == o.Currency && t.Minor >= o.MinValue {
				return o.Offer
			}
		}
	}
	return coupon.OfferBanner
}
