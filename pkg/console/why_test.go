package console_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// Whatever state a coupon is in, there is a reason, and it is usable only where a checkout would have it.
func TestWhyACouponCannotBeUsed(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 11, 12, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		change func(*coupon.Coupon)
		steps  []coupon.Transition
		paused bool
		want   console.Why
	}{
		"usable": {want: console.Why{Usable: true, Code: console.WhyUsable, Until: at(now.Add(time.Hour)), Minimum: 1000, Scopes: []string{"shoes"}}},
		"for ever": {
			change: func(c *coupon.Coupon) { c.ExpiresAt = coupon.Never },
			want:   console.Why{Usable: true, Code: console.WhyUsable, Minimum: 1000, Scopes: []string{"shoes"}},
		},
		"not yet": {
			change: func(c *coupon.Coupon) { c.ValidFrom = now.Add(time.Minute) },
			want:   console.Why{Code: console.WhyNotYetValid, At: at(now.Add(time.Minute)), Until: at(now.Add(time.Hour))},
		},
		"its end is this instant": {
			change: func(c *coupon.Coupon) { c.ExpiresAt = now },
			want:   console.Why{Code: console.WhyEnded, At: at(now)},
		},
		"paused": {
			change: func(c *coupon.Coupon) { c.ExpiresAt = now.Add(-time.Hour) }, paused: true,
			want: console.Why{Code: console.WhyEnded, At: at(now.Add(-time.Hour)), Paused: true},
		},
		"settled": {
			change: func(c *coupon.Coupon) {
				c.Status, c.ExpiresAt, c.Cause = coupon.Expired, now.Add(-time.Hour), coupon.CauseLadder
			},
			want: console.Why{Code: console.WhyExpired, At: at(now.Add(-time.Hour)), Cause: "ladder"},
		},
		"locked": {
			change: func(c *coupon.Coupon) {
				c.Status, c.OrderID, c.LockedAt, c.LockUntil = coupon.Locked, "o-1", now.Add(-time.Minute), now.Add(time.Minute)
			},
			want: console.Why{Code: console.WhyLocked, At: at(now.Add(-time.Minute)), Until: at(now.Add(time.Minute)), Order: "o-1"},
		},
		"a lock that ran out": {
			change: func(c *coupon.Coupon) { c.Status, c.OrderID, c.LockUntil = coupon.Locked, "o-1", now },
			want:   console.Why{Usable: true, Code: console.WhyUsable, Until: at(now.Add(time.Hour)), Minimum: 1000, Scopes: []string{"shoes"}},
		},
		"used": {
			change: func(c *coupon.Coupon) { c.Status, c.OrderID, c.UsedAt = coupon.Used, "o-2", now.Add(-time.Hour) },
			want:   console.Why{Code: console.WhyUsed, At: at(now.Add(-time.Hour)), Order: "o-2"},
		},
		"withdrawn": {
			change: func(c *coupon.Coupon) { c.Status = coupon.Voided },
			steps:  []coupon.Transition{{To: coupon.Unused}, {From: coupon.Unused, To: coupon.Voided, At: now.Add(-time.Hour), Actor: "amy", Reason: "fraud"}},
			want:   console.Why{Code: console.WhyVoided, At: at(now.Add(-time.Hour)), Actor: "amy", Reason: "fraud"},
		},
		"another system's": {
			change: func(c *coupon.Coupon) { c.Observed = true },
			want:   console.Why{Code: console.WhyObserved, Until: at(now.Add(time.Hour))},
		},
		"another system's, and over": {
			change: func(c *coupon.Coupon) { c.Observed, c.ExpiresAt = true, now.Add(-time.Hour) },
			want:   console.Why{Code: console.WhyObserved, Until: at(now.Add(-time.Hour))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := coupon.Coupon{}
			c.ValidFrom = now.Add(-time.Hour)
			c.Status, c.ExpiresAt = coupon.Unused, now.Add(time.Hour)
			c.Terms.Offer.MinSpend, c.Terms.Offer.Scopes = 1000, []string{"shoes"}
			if tc.change != nil {
				tc.change(&c)
			}
			if tc.want.Scopes == nil {
				tc.want.Scopes = []string{}
			}
			require.Equal(t, tc.want, console.Explain(&c, tc.steps, now, tc.paused))
		})
	}
}

func at(t time.Time) *time.Time { return &t }
