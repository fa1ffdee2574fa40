package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticeSent = define("notice.sent", `UPDATE notice SET state = 'sent', reason = '', try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3)
		WHERE channel = ? AND window_id IN (?) AND state = 'pending'`)
	stmtInboxInsert = define("notice.inbox_insert", `INSERT INTO inbox (user_id, window_id, kind, display, items, texts, created_at, valid_until, read_at)
		VALUES (?,?,?,?,?,?,UTC_TIMESTAMP(3),?,NULL)`)
	stmtInboxList = define("notice.inbox_list", `SELECT id, window_id, kind, items, texts, created_at, valid_until, read_at FROM inbox
		WHERE user_id = ? AND id < ? AND display = '' ORDER BY id DESC LIMIT ?`)
	stmtInboxUnread = define("notice.inbox_unread", `SELECT COUNT(*) FROM (SELECT id FROM inbox
		WHERE user_id = ? AND display = '' AND read_at IS NULL LIMIT ?) u`)
	stmtInboxRead = define("notice.inbox_read", `UPDATE inbox SET read_at = UTC_TIMESTAMP(3)
		WHERE user_id = ? AND display = '' AND read_at IS NULL AND id IN (?)`)
	stmtInboxReadTo = define("notice.inbox_read_to", `UPDATE inbox SET read_at = UTC_TIMESTAMP(3)
		WHERE user_id = ? AND display = '' AND read_at IS NULL AND id <= ?`)
	stmtPopupAny = define("notice.popup_any", `SELECT COUNT(*) FROM (SELECT id FROM inbox
		WHERE user_id = ? AND display = 'popup' AND handed_at IS NULL AND valid_until > UTC_TIMESTAMP(3) LIMIT 1) p`)
	stmtPopupLock = define("notice.popup_lock", `SELECT id, window_id, kind, items, texts, created_at, valid_until, read_at FROM inbox
		WHERE user_id = ? AND display = 'popup' AND handed_at IS NULL AND valid_until > UTC_TIMESTAMP(3) ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtPopupHand = define("notice.popup_hand", `UPDATE inbox SET handed_at = UTC_TIMESTAMP(3) WHERE user_id = ? AND handed_at IS NULL AND id IN (?)`)
)

const (
	displayPopup = "popup"
	unreadMost   = 1000 // counted at most
)

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

// Inbox lists a user's rows, newest first, those before the id (0: from the newest on). Popups are not among them.
func (s *Store) Inbox(ctx context.Context, user string, before uint64, limit int) ([]coupon.InboxItem, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	var items []coupon.InboxItem
	err := s.query(ctx, s.sql, stmtInboxList, func(r *sql.Rows) error {
		it, err := scanInbox(r, coupon.ChannelInbox)
		items = append(items, it)
		return err
	}, []byte(user), before, limit)
	if err != nil {
		return nil, err
	}
	return items, nil
}

func scanInbox(r *sql.Rows, channel coupon.Channel) (coupon.InboxItem, error) {
	it := coupon.InboxItem{Popup: channel == coupon.ChannelPopup}
	var window uint64
	var texts []byte
	var read sql.Null[time.Time]
	if err := r.Scan(&it.ID, &window, &it.Kind, &it.Items, &texts, &it.CreatedAt, &it.ValidUntil, &read); err != nil {
		return it, err //nolint:wrapcheck // by query
	}
	it.NoticeID, it.ReadAt = coupon.NoticeID(window, channel), read.V
	if err := json.Unmarshal(texts, &it.Texts); err != nil {
		return it, fmt.Errorf("texts of an inbox row: %w", err)
	}
	return it, nil
}

// InboxUnread counts what a user has not read, popups not among it; a thousand at most.
func (s *Store) InboxUnread(ctx context.Context, user string) (int, error) {
	n := 0
	err := s.queryRow(ctx, s.sql, stmtInboxUnread, []any{&n}, []byte(user), unreadMost)
	return n, err
}

// InboxRead marks rows of a user as read: those of the ids (900 at most), or with nil all up to the one and with it. It gives
// how many were not read before.
func (s *Store) InboxRead(ctx context.Context, user string, ids []uint64, upTo uint64) (int, error) {
	if ids == nil {
		n, err := s.exec(ctx, s.sql, stmtInboxReadTo, []byte(user), min(upTo, 1<<63-1))
		return int(n), err
	}
	if len(ids) == 0 {
		return 0, nil
	}
	if len(ids) > inList {
		return 0, fmt.Errorf("mark as read: at most %d ids, got %d", inList, len(ids))
	}
	args := []any{[]byte(user)}
	for _, id := range ids {
		args = append(args, id)
	}
	n, err := s.exec(ctx, s.sql, stmtInboxRead.in(len(ids)), args...)
	return int(n), err
}

// TakePopups hands out the user's popups that were not handed out before and are still of use, the oldest first. Of callers at
// the same time one gets each.
func (s *Store) TakePopups(ctx context.Context, user string, limit int) ([]coupon.InboxItem, error) {
	waiting := 0
	if err := s.queryRow(ctx, s.sql, stmtPopupAny, []any{&waiting}, []byte(user)); err != nil || waiting == 0 {
		return nil, err
	}
	var items []coupon.InboxItem
	err := s.tx(ctx, "take popups", func(ctx context.Context, tx *txn) error {
		items = nil
		var ids []any
		err := s.query(ctx, tx, stmtPopupLock, func(r *sql.Rows) error {
			it, err := scanInbox(r, coupon.ChannelPopup)
			items = append(items, it)
			ids = append(ids, it.ID)
			return err
		}, []byte(user), limit)
		if err != nil {
			return err
		}
		return s.updateExactly(ctx, tx, stmtPopupHand, []any{[]byte(user)}, ids)
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}
