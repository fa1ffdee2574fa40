package store

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// RecordRedeemRefused leaves an event for every paid order whose coupon could not be redeemed, all in one transaction.
// Telling the same again sends another event of the same id: consumers drop it.
//
// An error means that nothing was written: coupon.ErrUnavailable, ErrContention, or ErrIntegrity.
func (s *Store) RecordRedeemRefused(ctx context.Context, refusals []coupon.RedeemRefused) error {
	if len(refusals) == 0 {
		return nil
	}
	rows := make([]outboxRow, 0, len(refusals))
	for i := range refusals {
		r := &refusals[i]
		key, id, body, err := s.codec.RedeemRefused(*r)
		if err != nil {
			return fmt.Errorf("encode refusal of a redemption: %w", err)
		}
		rows = append(rows, outboxRow{
			lane: LaneEvent, part: coupon.Partition(r.CouponID), couponID: r.CouponID, msgID: id, key: key, class: ' ', body: body, trace: r.Trace,
		})
	}
	return s.tx(ctx, "redeem_refused", func(ctx context.Context, tx *txn) error {
		return s.writeOutbox(ctx, tx, rows)
	})
}
