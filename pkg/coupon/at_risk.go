package coupon

// What an at-risk user may be offered, as AtRisk.Offer says it.
const (
	OfferGrant    = "grant"    // a coupon of the wake-up template
	OfferDiscount = "discount" // something off what is in the cart
	OfferBanner   = "banner"   // a word on the page
)

// AtRiskOffers lists them, the dearest first.
func AtRiskOffers() []string { return []string{OfferGrant, OfferDiscount, OfferBanner} }

// AtRiskID is the id of the event that tells of it: once for a user and a day, however many windows close.
func (a *AtRisk) AtRiskID() string { return a.UserID + ":" + a.Day + ":at_risk" }
