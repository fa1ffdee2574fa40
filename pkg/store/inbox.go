package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// What users read. The rows of the inbox and the popups stand in one table, in the order in which they were written. A popup is
// read when it is handed out, so that one index finds both: what is unread, and the popups that wait and are still of use.
//
//nolint:gochecknoglobals // statements are constants
var (
	stmtInboxList = define("read.inbox", `SELECT id, window_id, display, kind, items, texts, created_at, valid_until, read_at FROM inbox FORCE INDEX (PRIMARY)
		WHERE user_id = ? AND id < ? ORDER BY id DESC LIMIT ?`)
	stmtInboxUnread = define("read.inbox_unread", `SELECT COUNT(*) FROM (SELECT 1 FROM inbox FORCE INDEX (inbox_waiting)
		WHERE user_id = ? AND display = '' AND read_at IS NULL LIMIT ?) u`)
	stmtInboxRead = define("read.inbox_mark", `UPDATE inbox FORCE INDEX (PRIMARY) SET read_at = UTC_TIMESTAMP(3)
		WHERE user_id = ? AND display = '' AND read_at IS NULL AND id IN (?)`)
	stmtInboxReadTo = define("read.inbox_mark_to", `UPDATE inbox FORCE INDEX (inbox_waiting) SET read_at = UTC_TIMESTAMP(3)
		WHERE user_id = ? AND display = '' AND read_at IS NULL AND id <= ? ORDER BY valid_until, id LIMIT ?`)
	stmtPopupAny = define("read.popup_any", `SELECT COUNT(*) FROM (SELECT 1 FROM inbox FORCE INDEX (inbox_waiting)
		WHERE user_id = ? AND display = 'popup' AND read_at IS NULL AND valid_until > UTC_TIMESTAMP(3) LIMIT 1) p`)
	stmtPopupLock = define("read.popup_lock", `SELECT id, window_id, display, kind, items, texts, created_at, valid_until, read_at FROM inbox FORCE INDEX (inbox_waiting)
		WHERE user_id = ? AND display = 'popup' AND read_at IS NULL AND valid_until > UTC_TIMESTAMP(3) ORDER BY valid_until LIMIT ? FOR UPDATE SKIP LOCKED`)
	// Of each window that has members: popupStands, popupMay, or else 0.
	stmtPopupStands = define("read.popup_stands", `SELECT i.window_id, MAX(CASE WHEN c.id IS NULL OR c.status NOT IN (1, 2) THEN 0
		WHEN c.status = 1 OR c.lock_until <= UTC_TIMESTAMP(3) THEN 2 ELSE 1 END)
		FROM notice_item i FORCE INDEX (PRIMARY) LEFT JOIN coupon c ON c.id = i.coupon_id AND c.expires_at = i.expires_at
		WHERE i.window_id IN (?) AND i.dropped = '' GROUP BY i.window_id`)
	stmtPopupHand = define("read.popup_hand", `UPDATE inbox FORCE INDEX (PRIMARY) SET handed_at = UTC_TIMESTAMP(3), read_at = UTC_TIMESTAMP(3)
		WHERE user_id = ? AND read_at IS NULL AND id IN (?)`)
)

const (
	unreadMost = 1000 // counted at most
	readStep   = 1000 // rows marked by one statement
	// popupSpare is how many popups that cannot be handed out, or are of no use, do not stand in the way of those behind them.
	popupSpare = 100
)

// How a popup's coupons stand.
const (
	popupMay    = 1 // one is locked for an order, and may be free again
	popupStands = 2 // one is still to end as was said
)

// Inbox lists a user's rows, newest first, those before the id (0: from the newest on). Popups are not among them, but are
// looked at: a page may have fewer rows than the limit, even none, while next says where the next one begins; 0: there is none.
func (s *Store) Inbox(ctx context.Context, user string, before uint64, limit int) (items []coupon.InboxItem, next uint64, err error) {
	if before == 0 || before > 1<<63-1 {
		before = 1<<63 - 1
	}
	looked := 0
	err = s.query(ctx, s.sql, stmtInboxList, func(r *sql.Rows) error {
		it, err := scanInbox(r)
		if looked++; looked > limit {
			next = before
			return err
		}
		if before = it.ID; !it.Popup {
			items = append(items, it.InboxItem)
		}
		return err
	}, []byte(user), before, limit+1)
	if err != nil {
		return nil, 0, err
	}
	return items, next, nil
}

func scanInbox(r *sql.Rows) (inboxRow, error) {
	var it inboxRow
	var display string
	var texts []byte
	var read sql.Null[time.Time]
	if err := r.Scan(&it.ID, &it.window, &display, &it.Kind, &it.Items, &texts, &it.CreatedAt, &it.ValidUntil, &read); err != nil {
		return it, err //nolint:wrapcheck // by query
	}
	channel := coupon.ChannelInbox
	if it.Popup = display == displayPopup; it.Popup {
		channel = coupon.ChannelPopup
	}
	it.NoticeID, it.ReadAt = coupon.NoticeID(it.window, channel), read.V
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

// InboxRead marks rows of a user as read: those of the ids (900 at most), or with nil all up to the one and with it, in steps;
// after an error some may be marked. It gives how many were not read before.
func (s *Store) InboxRead(ctx context.Context, user string, ids []uint64, upTo uint64) (int, error) {
	if ids == nil {
		return s.inboxReadTo(ctx, user, min(upTo, 1<<63-1))
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

func (s *Store) inboxReadTo(ctx context.Context, user string, upTo uint64) (read int, err error) {
	for {
		n, err := s.exec(ctx, s.sql, stmtInboxReadTo, []byte(user), upTo, readStep)
		if read += int(n); err != nil || n < readStep {
			return read, err
		}
	}
}

// TakePopups hands out the user's popups that were not handed out before and are still of use, those that end first. Of
// callers at the same time one gets each. A reminder none of whose coupons is to end any more as it says is not handed out; while
// the last of them is locked for an order it waits.
func (s *Store) TakePopups(ctx context.Context, user string, limit int) ([]coupon.InboxItem, error) {
	waiting := 0
	if err := s.queryRow(ctx, s.sql, stmtPopupAny, []any{&waiting}, []byte(user)); err != nil || waiting == 0 {
		return nil, err
	}
	var items []coupon.InboxItem
	err := s.tx(ctx, "take popups", func(ctx context.Context, tx *txn) error {
		items = nil
		var ids []any
		found, reminders, err := s.lockPopups(ctx, tx, user, limit)
		if err != nil || len(found) == 0 {
			return err
		}
		stands := make(map[uint64]int)
		if len(reminders) > 0 {
			err = s.query(ctx, tx, stmtPopupStands.in(len(reminders)), func(r *sql.Rows) error {
				var window uint64
				var how int
				err := r.Scan(&window, &how)
				stands[window] = how
				return err
			}, reminders...)
			if err != nil {
				return err
			}
		}
		for i := range found {
			how, known := stands[found[i].window]
			if known && how == popupMay {
				continue
			}
			if !known || how == popupStands {
				if len(items) == limit {
					break
				}
				items = append(items, found[i].InboxItem)
			}
			ids = append(ids, found[i].ID)
		}
		return s.updateExactly(ctx, tx, stmtPopupHand, []any{[]byte(user)}, ids)
	})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// inboxRow is a row with the window that it is of.
type inboxRow struct {
	coupon.InboxItem
	window uint64
}

// lockPopups gives the popups that wait, and more than are asked for, locked, and the windows of those that are reminders.
func (s *Store) lockPopups(ctx context.Context, tx querier, user string, limit int) (found []inboxRow, reminders []any, err error) {
	err = s.query(ctx, tx, stmtPopupLock, func(r *sql.Rows) error {
		row, err := scanInbox(r)
		if found = append(found, row); row.Kind == coupon.NoticeExpiring {
			reminders = append(reminders, row.window)
		}
		return err
	}, []byte(user), max(limit, min(limit+popupSpare, inList)))
	return found, reminders, err
}
