package reconcile

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The states of an order in an export.
const (
	orderPaid     = "paid"
	orderClosed   = "closed"
	orderRefunded = "refunded"
)

// order is a line of an export: the order's last state, and when it took it.
type order struct {
	OrderID   string    `json:"order_id"`
	State     string    `json:"state"`
	CouponIDs []string  `json:"coupon_ids"`
	At        time.Time `json:"at"`

	ids []uint64
}

const (
	ordersChunk = 200     // of up to ten coupons each
	longestLine = 1 << 20 // of an export
)

// orders holds an export against the coupons, a chunk at a time.
func (r *run) orders(ctx context.Context, rep *Report) error {
	lines := bufio.NewScanner(r.Export)
	lines.Buffer(make([]byte, 0, 64<<10), longestLine)
	var chunk []order
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		o, err := parseOrder(line)
		if err != nil {
			return fmt.Errorf("orders: line %d: %w", n, err)
		}
		if o.At.After(r.fence.Now.Add(-r.Orders)) {
			rep.Young++
			continue
		}
		rep.Orders++
		if chunk = append(chunk, o); len(chunk) == ordersChunk {
			if err := r.orderChunk(ctx, chunk); err != nil {
				return err
			}
			chunk = chunk[:0]
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("orders: line %d: %w", n+1, err)
	}
	return r.orderChunk(ctx, chunk)
}

func parseOrder(line []byte) (order, error) {
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return o, fmt.Errorf("must be an object with order_id, state, coupon_ids and at: %w", err)
	}
	var errs []error
	if o.OrderID == "" || len(o.OrderID) > coupon.MaxText {
		errs = append(errs, fmt.Errorf("order_id: must have 1 to %d bytes, got %q", coupon.MaxText, o.OrderID))
	}
	if o.State != orderPaid && o.State != orderClosed && o.State != orderRefunded {
		errs = append(errs, fmt.Errorf("state: must be %s, %s or %s, got %q", orderPaid, orderClosed, orderRefunded, o.State))
	}
	if len(o.CouponIDs) < 1 || len(o.CouponIDs) > coupon.MaxOrderCoupons {
		errs = append(errs, fmt.Errorf("coupon_ids: must be 1 to %d, got %d", coupon.MaxOrderCoupons, len(o.CouponIDs)))
	}
	if o.At.IsZero() {
		errs = append(errs, errors.New("at: must be an instant, RFC 3339 with a zone"))
	}
	for _, text := range o.CouponIDs {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("coupon_ids: must be ids, got %q", text))
		}
		o.ids = append(o.ids, id)
	}
	return o, errors.Join(errs...)
}

func (r *run) orderChunk(ctx context.Context, chunk []order) error {
	byID := make(map[uint64]*coupon.Coupon)
	var ids []uint64
	for i := range chunk {
		ids = append(ids, chunk[i].ids...)
	}
	for len(ids) > 0 {
		n := min(len(ids), coupon.MaxPage)
		cs, _, err := r.books.Coupons(ctx, ids[:n])
		if err != nil {
			return err
		}
		for i := range cs {
			byID[cs[i].ID] = &cs[i]
		}
		ids = ids[n:]
	}
	for i := range chunk {
		for _, id := range chunk[i].ids {
			if err := r.order(ctx, &chunk[i], id, byID[id]); err != nil {
				return err
			}
		}
	}
	return nil
}

// order holds one order against one of its coupons.
func (r *run) order(ctx context.Context, o *order, id uint64, c *coupon.Coupon) error {
	f := coupon.Finding{Subject: fmt.Sprintf("order %s coupon %d", o.OrderID, id), Found: "no such coupon"}
	var mine bool
	if c != nil {
		if !r.about(c.Terms.TemplateID) {
			return nil
		}
		mine = c.OrderID == o.OrderID
		if f.Found = c.Status.String(); c.OrderID != "" {
			f.Found += " by order " + c.OrderID
		}
	} else if r.Template != 0 {
		return nil
	}
	switch {
	case o.State == orderPaid && (c == nil || c.Status != coupon.Used || !mine):
		f.Kind, f.Expected = coupon.FindPaid, "used by it, since it is paid"
	case o.State == orderClosed && mine && (c.Status == coupon.Locked || c.Status == coupon.Used):
		f.Kind, f.Expected = coupon.FindClosed, "not held or used by it, since it is closed"
	case o.State == orderRefunded && mine && c.Status == coupon.Used:
		f.Kind, f.Expected = coupon.FindRefunded, "not used by it, since it is refunded"
	default:
		return nil
	}
	if o.State == orderPaid && c != nil {
		if refunded, err := r.refundedLater(ctx, o, id); err != nil || refunded {
			return err
		}
	}
	r.found.add(f)
	return nil
}

// refundedLater reports whether the order gave the coupon back after it was paid: the export is older than that.
func (r *run) refundedLater(ctx context.Context, o *order, id uint64) (bool, error) {
	steps, err := r.books.Timeline(ctx, id)
	if errors.Is(err, coupon.ErrNotFound) {
		return false, nil
	}
	for i := range steps {
		if steps[i].From == coupon.Used && steps[i].OrderID == o.OrderID && steps[i].At.After(o.At) {
			return true, err
		}
	}
	return false, err
}
