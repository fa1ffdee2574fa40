package store

import (
	"context"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticeDelivered = define("notice.delivered", `UPDATE notice SET state = 'delivered', reason = '', try_at = '9999-12-31',
		settled_at = LEAST(GREATEST(CAST(? AS DATETIME(3)), created_at), UTC_TIMESTAMP(3)) WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeRefused = define("notice.refused", `UPDATE notice SET state = 'failed', reason = ?, try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3),
		counted_on = NULL WHERE channel = ? AND window_id IN (?)`)
)

const receiptRows = 100 // of one transaction: they hold their rows for as long as it takes

// NoticeReceipts records what providers say of notices that they took. Delivered is the last word, also after a failure; a
// failure of one that was not delivered lets the next channel tell. Repeats change nothing. Of each it is said whether such a
// notice was ever handed out to a provider. They are recorded a hundred in a transaction: after an error some may be, and the same again
// completes them.
func (s *Store) NoticeReceipts(ctx context.Context, rs []coupon.Receipt) (known []bool, err error) {
	for part := range slices.Chunk(rs, receiptRows) {
		var some []bool
		err := s.tx(ctx, "notice receipts", func(ctx context.Context, tx *txn) error {
			var err error
			some, err = s.noticeReceipts(ctx, tx, part)
			return err
		})
		if err != nil {
			return nil, err
		}
		known = append(known, some...)
	}
	return known, nil
}

func (s *Store) noticeReceipts(ctx context.Context, tx *txn, rs []coupon.Receipt) ([]bool, error) {
	windows, held := make(map[coupon.Channel][]uint64), make(map[coupon.Channel]map[uint64]*heldNotice)
	for i := range rs {
		windows[rs[i].Channel] = append(windows[rs[i].Channel], rs[i].WindowID)
	}
	for _, channel := range coupon.Channels() { // one order of locks
		if len(windows[channel]) == 0 {
			continue
		}
		var err error
		if held[channel], err = s.held(ctx, tx, channel, windows[channel]); err != nil {
			return nil, err
		}
	}
	known, last := make([]bool, len(rs)), make(map[*heldNotice]*coupon.Receipt)
	var order []*heldNotice
	for i := range rs {
		r := &rs[i]
		h := held[r.Channel][r.WindowID]
		known[i] = h != nil && r.Channel.Provided() && h.Attempt > 0 && h.state != coupon.NoticeSuppressed
		if !known[i] || h.state == coupon.NoticeDelivered || h.state == coupon.NoticeFailed && !r.Delivered {
			continue
		}
		if last[h] == nil {
			order = append(order, h)
		}
		if last[h], h.state = r, coupon.NoticeFailed; r.Delivered {
			h.state = coupon.NoticeDelivered
		}
	}
	return known, s.recordReceipts(ctx, tx, order, last)
}

// recordReceipts writes the last word on each notice, those that are alike by one statement.
func (s *Store) recordReceipts(ctx context.Context, tx *txn, order []*heldNotice, last map[*heldNotice]*coupon.Receipt) error {
	type like struct {
		channel   coupon.Channel
		delivered bool
		reason    string
		at        time.Time
	}
	by := make(map[like][]any)
	var kinds []like
	var failed []*heldNotice
	for _, h := range order {
		r := last[h]
		k := like{channel: r.Channel, delivered: r.Delivered}
		if r.Delivered {
			k.at = latest(r.At.UTC())
		} else {
			k.reason = clip(r.Reason, maxNoticeReason)
			failed = append(failed, h)
			if err := s.giveBack(ctx, tx, h); err != nil {
				return err
			}
		}
		if by[k] == nil {
			kinds = append(kinds, k)
		}
		by[k] = append(by[k], h.WindowID)
	}
	for _, k := range kinds {
		st, first := stmtNoticeRefused, any(k.reason)
		if k.delivered {
			st, first = stmtNoticeDelivered, k.at
		}
		if err := s.updateExactly(ctx, tx, st, []any{first, string(k.channel)}, by[k]); err != nil {
			return err
		}
	}
	_, err := s.fallBack(ctx, tx, failed)
	return err
}
