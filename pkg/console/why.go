package console

import (
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Why is whether a coupon can be used at an instant, and why not. The page says it in a sentence of its language.
type Why struct {
	Usable  bool       `json:"usable"`
	Code    WhyCode    `json:"code"`
	At      *time.Time `json:"at"`      // of the code: when it began, ended, was used; null: not known, or never
	Until   *time.Time `json:"until"`   // of a lock: its end; of a usable or observed coupon: its end; null: it has none
	Order   string     `json:"order"`   // that holds it or has used it
	Cause   string     `json:"cause"`   // of an expiry that was settled
	Actor   string     `json:"actor"`   // who withdrew it
	Reason  string     `json:"reason"`  // why
	Paused  bool       `json:"paused"`  // an operator has paused its expiry; it is over all the same
	Minimum int64      `json:"minimum"` // of a usable coupon: what must be spent, minor units; 0: nothing
	Scopes  []string   `json:"scopes"`  // of a usable coupon: what it is for; none: everything
}

// WhyCode is the reason in one word.
type WhyCode string

// The reasons.
const (
	WhyUsable      WhyCode = "usable"
	WhyNotYetValid WhyCode = "not_yet_valid"
	WhyEnded       WhyCode = "ended"   // it is over, and no worker has settled that yet
	WhyExpired     WhyCode = "expired" // settled
	WhyLocked      WhyCode = "locked"
	WhyUsed        WhyCode = "used"
	WhyVoided      WhyCode = "voided"
	WhyObserved    WhyCode = "observed" // another system owns it still: every verb refuses it, whatever its state
)

// Explain says whether the coupon can be used at now, the database's clock.
func Explain(c *coupon.Coupon, steps []coupon.Transition, now time.Time, paused bool) Why {
	w := Why{Order: c.OrderID, Scopes: []string{}}
	if c.Observed {
		w.Code, w.Until = WhyObserved, known(c.ExpiresAt)
		return w
	}
	switch seen := c.Seen(now); seen {
	case coupon.Unused:
		w.Order = ""
		if c.ValidFrom.After(now) {
			w.Code, w.At, w.Until = WhyNotYetValid, known(c.ValidFrom), known(c.ExpiresAt)
			return w
		}
		w.Usable, w.Code, w.Until = true, WhyUsable, known(c.ExpiresAt)
		w.Minimum = c.Terms.Offer.MinSpend
		w.Scopes = append(w.Scopes, c.Terms.Offer.Scopes...)
	case coupon.Locked:
		w.Code, w.At, w.Until = WhyLocked, known(c.LockedAt), known(c.LockUntil)
	case coupon.Used:
		w.Code, w.At = WhyUsed, known(c.UsedAt)
	case coupon.Expired:
		w.Code, w.At, w.Order = WhyExpired, known(c.ExpiresAt), ""
		if c.Status == coupon.Expired {
			w.Cause = string(c.Cause)
		} else {
			w.Code, w.Paused = WhyEnded, paused
		}
	case coupon.Voided:
		w.Code, w.Order = WhyVoided, ""
		for i := range steps {
			if s := &steps[i]; s.To == coupon.Voided {
				w.At, w.Actor, w.Reason = known(s.At), s.Actor, s.Reason
			}
		}
	default:
		w.Code = WhyCode(seen.String())
	}
	return w
}

func known(t time.Time) *time.Time {
	if t.IsZero() || coupon.IsNever(t) {
		return nil
	}
	t = t.UTC()
	return &t
}
