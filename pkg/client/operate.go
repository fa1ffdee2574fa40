package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// ListQuery asks for coupons as an operator lists them; at least one of template, batch and state.
type ListQuery struct {
	TemplateID string
	BatchID    string
	State      State     // as stored: a passed end counts once a worker has settled it
	EndsFrom   time.Time // inclusive; zero: no bound
	EndsTo     time.Time // exclusive; zero: no bound
	Limit      int
	Page       string
}

func (q ListQuery) values() url.Values {
	v := url.Values{}
	set(v, "template_id", q.TemplateID)
	set(v, "batch_id", q.BatchID)
	set(v, "state", string(q.State))
	setTime(v, "ends_from", q.EndsFrom)
	setTime(v, "ends_to", q.EndsTo)
	setLimit(v, q.Limit)
	set(v, "page_token", q.Page)
	return v
}

// Coupons lists coupons for an operator.
func (c *Client) Coupons(ctx context.Context, q ListQuery) (out Page, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: []string{"coupons"}, query: q.values(), into: &out})
	return out, err
}

// CouponsCSV writes a whole list as CSV, head line first; q.Limit and q.Page do not matter. What was written before an error
// stays written.
func (c *Client) CouponsCSV(ctx context.Context, q ListQuery, to io.Writer) error {
	q.Limit, q.Page = 0, ""
	return c.do(ctx, call{method: http.MethodGet, path: []string{"coupons.csv"}, query: q.values(), stream: func(r io.Reader) error {
		if _, err := io.Copy(to, r); err != nil {
			return fmt.Errorf("copying the list: %w", err)
		}
		return nil
	}})
}

// Extend moves a coupon's end, either way; nil: it never ends. The reason goes to the coupon's history.
func (c *Client) Extend(ctx context.Context, id string, expiresAt *time.Time, reason string) (out Coupon, err error) {
	body := struct {
		ExpiresAt *time.Time `json:"expires_at"`
		Reason    string     `json:"reason"`
	}{expiresAt, reason}
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"coupons", id, "extend"}, body: body, into: &out, mutates: true})
	return out, err
}

// Void withdraws a coupon; under a live lock only with breakLock.
func (c *Client) Void(ctx context.Context, id, reason string, breakLock bool) (out Coupon, err error) {
	body := struct {
		Reason    string `json:"reason"`
		BreakLock bool   `json:"break_lock,omitempty"`
	}{reason, breakLock}
	err = c.do(ctx, call{method: http.MethodPost, path: []string{"coupons", id, "void"}, body: body, into: &out, mutates: true})
	return out, err
}
