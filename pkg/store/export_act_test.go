package store

// Turns lets one caller at a time ask for a coupon.
type Turns = turns

// Take and Give are its two ends.
var (
	Take = (*turns).take
	Give = (*turns).give
)

// Waiting is how many coupons are being asked for.
func (ts *turns) Waiting() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.m)
}
