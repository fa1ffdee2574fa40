package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Coupon gives a coupon, an archived one too.
func (c *Client) Coupon(ctx context.Context, id string) (out Coupon, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"coupons", id}, into: &out})
	return out, err
}

// Timeline gives every transition of a coupon, the grant first.
func (c *Client) Timeline(ctx context.Context, id string) ([]Step, error) {
	var out struct {
		Steps []Step `json:"steps"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: []string{"coupons", id, "timeline"}, into: &out})
	return out.Steps, err
}

// CouponByGrantKey gives the coupon that a grant key stands for.
func (c *Client) CouponByGrantKey(ctx context.Context, issuer, key string) (out Coupon, err error) {
	query := url.Values{}
	set(query, "issuer", issuer)
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"grants", key}, query: query, into: &out})
	return out, err
}

// WalletQuery asks for a page of a user's coupons.
type WalletQuery struct {
	State State // empty: every state
	Limit int   // 0: the server's default
	Page  string
}

// UserCoupons gives a page of a user's coupons: those of one state by their ends.
func (c *Client) UserCoupons(ctx context.Context, userID string, q WalletQuery) (out Page, err error) {
	query := url.Values{}
	set(query, "state", string(q.State))
	set(query, "page_token", q.Page)
	setLimit(query, q.Limit)
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"users", userID, "coupons"}, query: query, into: &out})
	return out, err
}

// Summary is a user's wallet in figures.
type Summary struct {
	Now     time.Time  `json:"now"`
	Usable  int        `json:"usable"`
	Ending  int        `json:"ending_within_24h"`
	NextEnd *time.Time `json:"next_end"`
	Value   []Money    `json:"value"`
	More    bool       `json:"more"` // there are more coupons than were counted
}

// Money is an amount in minor units of its currency.
type Money struct {
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// Summary gives how many coupons a user can use, and when the next one ends.
func (c *Client) Summary(ctx context.Context, userID string) (out Summary, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"users", userID, "coupons", "summary"}, into: &out})
	return out, err
}

// Basket is what a coupon is to be used for.
type Basket struct {
	Amount   int64    `json:"amount"` // minor units
	Currency string   `json:"currency"`
	Scopes   []string `json:"scopes,omitempty"` // categories, shops
	Items    []Item   `json:"items,omitempty"`  // instead of Scopes: how much of the amount each part is
}

// Item is a part of a basket.
type Item struct {
	Amount int64    `json:"amount"`
	Scopes []string `json:"scopes,omitempty"`
}

// Choice is the best coupon for a basket, and why the others are not.
type Choice struct {
	Now    time.Time `json:"now"`
	Best   *Offered  `json:"best"`   // nil: none is usable
	Others []Offered `json:"others"` // usable ones first
	More   bool      `json:"more"`   // there are more than were looked at, or are shown
}

// Offered is what one coupon would do for a basket.
type Offered struct {
	Coupon    Coupon `json:"coupon"`
	Usable    bool   `json:"usable"`
	Discount  int64  `json:"discount"`
	AppliesTo int64  `json:"applies_to"` // of the amount
	Reason    Code   `json:"reason"`     // why it is not the best; empty for the best
}

// Best chooses among a user's coupons.
func (c *Client) Best(ctx context.Context, userID string, b Basket) (out Choice, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"users", userID, "coupons", "best"}, body: b, into: &out})
	return out, err
}

// Validity says whether a user could use a coupon now, and what for.
type Validity struct {
	Now       time.Time `json:"now"`
	Usable    bool      `json:"usable"`
	Code      Code      `json:"code"` // why not
	State     State     `json:"state"`
	Discount  int64     `json:"discount"`
	AppliesTo int64     `json:"applies_to"` // of the amount
	Coupon    Coupon    `json:"coupon"`
}

// Validate asks whether a user could use a coupon now, for an order if there is one already: its own lock is no obstacle.
// Without a basket only the coupon is looked at.
func (c *Client) Validate(ctx context.Context, couponID, userID, orderID string, b *Basket) (out Validity, err error) {
	body := struct {
		UserID   string   `json:"user_id"`
		OrderID  string   `json:"order_id,omitempty"`
		Amount   *int64   `json:"amount,omitempty"`
		Currency string   `json:"currency,omitempty"`
		Scopes   []string `json:"scopes,omitempty"`
		Items    []Item   `json:"items,omitempty"`
	}{UserID: userID, OrderID: orderID}
	if b != nil {
		body.Amount, body.Currency, body.Scopes, body.Items = &b.Amount, b.Currency, b.Scopes, b.Items
	}
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"coupons", couponID, "validate"}, body: body, into: &out})
	return out, err
}

func set(q url.Values, name, value string) {
	if value != "" {
		q.Set(name, value)
	}
}

func setLimit(q url.Values, limit int) {
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
}

func setTime(q url.Values, name string, at time.Time) {
	if !at.IsZero() {
		q.Set(name, at.Format(time.RFC3339))
	}
}
