package coupon

import "time"

// RedeemRefused says that an order is paid whose coupon it cannot have: somebody must reconcile the two.
type RedeemRefused struct {
	CouponID   uint64
	OrderID    string
	UserID     string // whom the order named, else whose coupon it is; empty if neither is known
	TemplateID uint64 // zero if there is no such coupon; then Currency is empty, too
	Code       Code
	State      Status // as a reader sees it; zero if there is no such coupon
	Value      int64  // what it would have been worth, minor units
	Currency   string
	At         time.Time // the database's clock
	Trace      string    // W3C traceparent, may be empty
}
