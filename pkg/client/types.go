package client

import "time"

// State of a coupon, as a reader must see it now.
type State string

// The states.
const (
	Unused  State = "unused"
	Locked  State = "locked"
	Used    State = "used"
	Expired State = "expired"
	Voided  State = "voided"
)

// Coupon is a coupon as the API shows it. A nil instant is null: an end that never comes, an act that has not happened.
type Coupon struct {
	CouponID    string     `json:"coupon_id"`
	TemplateID  string     `json:"template_id"`
	Revision    uint32     `json:"revision"`
	BatchID     string     `json:"batch_id"`
	UserID      string     `json:"user_id"`
	State       State      `json:"state"`        // as seen now: a passed end counts, whether or not a worker has come by
	StoredState State      `json:"stored_state"` // in the row
	Version     uint32     `json:"version"`
	ValidFrom   time.Time  `json:"valid_from"`
	ExpiresAt   *time.Time `json:"expires_at"`
	GrantedAt   time.Time  `json:"granted_at"`
	LockedAt    *time.Time `json:"locked_at"`
	LockUntil   *time.Time `json:"lock_until"`
	OrderID     string     `json:"order_id"`
	UsedAt      *time.Time `json:"used_at"`
	ExpiredAt   *time.Time `json:"expired_at"`
	ExpireCause string     `json:"expire_cause"`
	Value       int64      `json:"value"` // minor units
	Currency    string     `json:"currency"`
	Offer       Offer      `json:"offer"`
	Archived    bool       `json:"archived"`
	Observed    bool       `json:"observed"` // another system's still: nothing here moves it
}

// Offer is what a coupon takes off. Money is integer minor units.
type Offer struct {
	Kind        string   `json:"kind,omitempty"`         // amount (default) or percent
	BasisPoints int64    `json:"basis_points,omitempty"` // percent: hundredths of a percent
	Cap         int64    `json:"cap,omitempty"`          // percent: at most this much; 0: no cap
	MinSpend    int64    `json:"min_spend,omitempty"`
	Scopes      []string `json:"scopes,omitempty"` // empty: everything
}

// Page is part of a list.
type Page struct {
	Now     time.Time `json:"now"`
	Coupons []Coupon  `json:"coupons"`
	Next    string    `json:"next_page_token"` // for the next page; empty: there is none
}

// Step is one transition of a coupon's life.
type Step struct {
	Version   uint32     `json:"version"`
	From      State      `json:"from"` // empty for the grant
	To        State      `json:"to"`
	Cause     string     `json:"cause"`
	At        time.Time  `json:"at"`
	ExpiresAt *time.Time `json:"expires_at"`
	OrderID   string     `json:"order_id"`
	LockUntil *time.Time `json:"lock_until"`
	Previous  *time.Time `json:"previous_expires_at"`
	Actor     string     `json:"actor"`
	Reason    string     `json:"reason"`
	TriggerID string     `json:"trigger_id"`
	Origin    string     `json:"origin"`
}
