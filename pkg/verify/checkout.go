package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// checkout is the verification of the coupon's whole life, by HTTP and by order events.
type checkout struct {
	cfg   Config
	index uint64
}

// sections in the order in which they run.
func (w *checkout) sections() []section {
	return []section{
		{"parallel-locks", "of many at once, as many get it as there are coupons", w.parallelLocks},
		{"journeys", "whatever a coupon went through, it expires on time by the ladder", w.journeys},
		{"redeem-against-expiry", "10 000 coupons redeemed around their ends are used or expired, never both", w.redeemAgainstExpiry},
		{"orders-apart", "no order frees another one's coupon, and a row that is held delays that coupon alone", w.ordersApart},
		{"moved-ends", "a moved end is the end: one expiry, at the new one; a lock until the last millisecond", w.movedEnds},
		{"zones", "the ends of days across gaps and overlaps", w.zones},
		{"wallet", "10 000 coupons of a user, page by page", w.wallet},
		{"bad-input", "bad requests are answered clearly and write nothing", w.badInput},
		{"order-events", "paid, closed, failed and refunded in every order, repeated", w.orderEvents},
		{"lazy", "without an expirer an ended coupon is shown expired all the same", w.lazy},
		{"kill-locks", "1 000 live locks, every worker killed, one expirer back", w.killLocks},
		{"speed", "lock and redeem over HTTP against the bare transactions; one hot template", w.speed},
		{"broker-away", "300 lock + redeem a second, and no broker for two minutes", w.brokerAway},
	}
}

// CheckoutSections names the sections of the checkout, in order.
func CheckoutSections() []string {
	var names []string
	for _, s := range (&checkout{}).sections() {
		names = append(names, s.name)
	}
	return names
}

// validateOnly reports sections that are not among names.
func (c Config) validateOnly(names []string) error {
	var errs []error
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			errs = append(errs, fmt.Errorf("only: must be of %s, got %q", strings.Join(names, ", "), name))
		}
	}
	return errors.Join(errs...)
}

// Checkout verifies the coupon's whole life. Its error and its result are as those of Walk.
func Checkout(ctx context.Context, cfg Config) (Result, error) {
	if err := cfg.validateOnly(CheckoutSections()); err != nil {
		return cfg.result("checkout"), err
	}
	w := &checkout{cfg: cfg}
	return cfg.verify(ctx, "checkout", w.sections(), func(i int) { w.index = uint64(i) })
}
