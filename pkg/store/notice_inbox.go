package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticeSent = define("notice.sent", `UPDATE notice SET state = 'sent', reason = '', try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3)
		WHERE channel = ? AND window_id IN (?) AND state = 'pending'`)
	stmtInboxInsert = define("notice.inbox_insert", `INSERT INTO inbox (user_id, window_id, kind, display, items, texts, created_at, valid_until, read_at)
		VALUES (?,?,?,?,?,?,UTC_TIMESTAMP(3),?,NULL)`)
)

const displayPopup = "popup"

// DeliverInbox writes the notices (of the inbox and of popups) that are still pending into their users' inboxes and marks them
// sent, in one transaction: each is there once, whoever else delivers it. It gives how many were written.
func (s *Store) DeliverInbox(ctx context.Context, es []coupon.InboxEntry) (int, error) {
	written := 0
	for part := range slices.Chunk(es, insertRows) {
		n := 0
		err := s.tx(ctx, "deliver inbox", func(ctx context.Context, tx *txn) error {
			n = 0
			for _, channel := range []coupon.Channel{coupon.ChannelInbox, coupon.ChannelPopup} {
				k, err := s.deliverInbox(ctx, tx, channel, part)
				if err != nil {
					return err
				}
				n += k
			}
			return nil
		})
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func (s *Store) deliverInbox(ctx context.Context, tx querier, channel coupon.Channel, es []coupon.InboxEntry) (int, error) {
	var windows []uint64
	for i := range es {
		if es[i].Channel == channel {
			windows = append(windows, es[i].WindowID)
		}
	}
	held, err := s.held(ctx, tx, channel, windows)
	if err != nil {
		return 0, err
	}
	display := ""
	if channel == coupon.ChannelPopup {
		display = displayPopup
	}
	var rows, ids []any
	for i := range es {
		e := &es[i]
		h := held[e.WindowID]
		if e.Channel != channel || h == nil || h.state != coupon.NoticePending {
			continue
		}
		delete(held, e.WindowID)
		texts, err := json.Marshal(e.Texts)
		if err != nil {
			return 0, fmt.Errorf("encode texts: %w", err)
		}
		until := e.ValidUntil
		if until.IsZero() {
			until = coupon.Never
		}
		rows = append(rows, []byte(e.UserID), e.WindowID, string(e.Kind), display, e.Items, string(texts), until.UTC())
		ids = append(ids, e.WindowID)
	}
	if err := s.insertAll(ctx, tx, stmtInboxInsert, rows, 7); err != nil {
		return 0, err
	}
	return len(ids), s.updateExactly(ctx, tx, stmtNoticeSent, []any{string(channel)}, ids)
}
