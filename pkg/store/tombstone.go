package store

import (
	"context"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// Those of long ago are removed by PruneTombstones.
//
//nolint:gochecknoglobals // statements are constants
var stmtTombstone = define("act.tombstone", `INSERT INTO order_tombstone (coupon_id, order_id, closed, refunded, created_at)
	VALUES (?,?,?,?,UTC_TIMESTAMP(3)) ON DUPLICATE KEY UPDATE closed = GREATEST(closed, VALUES(closed)), refunded = GREATEST(refunded, VALUES(refunded))`)

// buryOrder remembers that an order is closed (release) or refunded (refund), for each of its coupons, whether or not it
// exists: what comes for the order later, out of order, must take nothing. Rows are written in the order of ids, so that
// two of them wait for one another.
func (s *Store) buryOrder(ctx context.Context, tx *txn, o coupon.Order) error {
	closed, refunded := o.Verb == coupon.VerbRelease, o.Verb == coupon.VerbRefund
	if !closed && !refunded {
		return nil
	}
	args := make([]any, 0, 4*len(o.CouponIDs))
	for _, id := range slices.Sorted(slices.Values(o.CouponIDs)) {
		args = append(args, id, []byte(o.OrderID), closed, refunded)
	}
	_, err := s.exec(ctx, tx, stmtTombstone.rows(len(o.CouponIDs)), args...)
	return err
}
