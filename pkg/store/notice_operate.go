package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// An operator's list of notices is a merge of a few streams, each a range of one index that ends in the primary key: by user
// and kind, or by state, or the table itself. Windows' ids grow, so newest first is their order backwards. What an index
// does not hold is looked at afterwards, so that a page costs a page.
const noticeColumns = `window_id, channel, user_id, kind, slot, items, state, reason, next_channels, attempts, try_at, not_after, created_at,
		settled_at, ref`

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticesOfUser = define("list.notices_user", `SELECT `+noticeColumns+` FROM notice FORCE INDEX (notice_user) WHERE user_id = ? AND kind = ?
		AND window_id <= ? AND (window_id < ? OR channel < ?) ORDER BY window_id DESC, channel DESC LIMIT ?`)
	stmtNoticesOfState = define("list.notices_state", `SELECT `+noticeColumns+` FROM notice FORCE INDEX (notice_state) WHERE state = ?
		AND window_id <= ? AND (window_id < ? OR channel < ?) ORDER BY window_id DESC, channel DESC LIMIT ?`)
	stmtNoticesOfAll = define("list.notices", `SELECT `+noticeColumns+` FROM notice FORCE INDEX (PRIMARY)
		WHERE window_id <= ? AND (window_id < ? OR channel < ?) ORDER BY window_id DESC, channel DESC LIMIT ?`)

	stmtWindowShow = define("list.notice_window", `SELECT UTC_TIMESTAMP(3), id, user_id, kind, remind_at, slot, late, items, opened_at, last_item_at,
		due_at, notify_at, ends_at, closed_at, closed_by FROM notice_window WHERE id = ?`)
	stmtWindowItems = define("list.notice_items", `SELECT event_id, coupon_id, version, expires_at, value, currency, dropped, added_at FROM notice_item
		WHERE window_id = ? ORDER BY event_id LIMIT ?`)
	stmtWindowNotices = define("list.notice_channels", `SELECT `+noticeColumns+` FROM notice WHERE window_id = ? ORDER BY created_at, channel`)
	stmtNoticeUser    = define("read.notice_user", `SELECT user_id FROM notice WHERE window_id = ? AND channel = ?`)

	stmtNoticeResendLock = define("notice.resend_lock", `SELECT user_id, state, reason, attempts, not_after, UTC_TIMESTAMP(3) FROM notice
		WHERE window_id = ? AND channel = ? FOR UPDATE`)
	stmtNoticeResend = define("notice.resend", `UPDATE notice SET state = 'pending', reason = '', try_at = UTC_TIMESTAMP(3), settled_at = NULL
		WHERE window_id = ? AND channel = ? AND state = ?`)
)

// noticePlace is where a notice stands in the list: the greatest first.
type noticePlace struct {
	window  uint64
	channel coupon.Channel
}

func (p noticePlace) compare(o noticePlace) int {
	return cmp.Or(cmp.Compare(o.window, p.window), cmp.Compare(o.channel, p.channel))
}

// NoticeList gives a page of notices for an operator, newest windows first. Errors: those of NoticeQuery.Validate,
// coupon.ErrPosition.
func (s *Store) NoticeList(ctx context.Context, q coupon.NoticeQuery) (coupon.NoticePage, error) {
	if err := q.Validate(); err != nil {
		return coupon.NoticePage{}, fmt.Errorf("list notices: %w", err)
	}
	query := fmt.Sprintf("notices %q %q %s %s %q %d", q.User, q.States, q.Kind, q.Channel, q.Reason, unixMilli(q.Since))
	from := noticePlace{window: 1<<63 - 1, channel: "~"} // no channel's name comes after it
	if q.After != "" {
		at, err := parsePosition(q.After, query)
		if err != nil || int(at.section) >= len(coupon.Channels()) {
			return coupon.NoticePage{}, fmt.Errorf("list notices: %w", coupon.ErrPosition)
		}
		from = noticePlace{window: at.id, channel: coupon.Channels()[at.section]}
	}
	rows, err := s.noticeRows(ctx, &q, from)
	if err != nil {
		return coupon.NoticePage{}, fmt.Errorf("list notices: %w", err)
	}
	page := coupon.NoticePage{}
	if page.Now, err = s.Now(ctx); err != nil {
		return coupon.NoticePage{}, fmt.Errorf("list notices: %w", err)
	}
	if len(rows) > q.Limit {
		rows = rows[:q.Limit]
		last := &rows[q.Limit-1]
		section := slices.Index(coupon.Channels(), last.Channel)
		if section < 0 {
			return coupon.NoticePage{}, fmt.Errorf("list notices: notice %s: %w", last.ID(), coupon.ErrIntegrity)
		}
		page.Next = position{section: uint8(section), place: place{at: epoch, id: last.WindowID}}.token(query)
	}
	for i := range rows {
		if q.Admits(&rows[i]) {
			page.Notices = append(page.Notices, rows[i])
		}
	}
	return page, nil
}

// noticeRows reads one row more than the limit from each stream, and merges them.
func (s *Store) noticeRows(ctx context.Context, q *coupon.NoticeQuery, from noticePlace) ([]coupon.NoticeRow, error) {
	var rows []coupon.NoticeRow
	read := func(st Statement, prefix ...any) error {
		return s.query(ctx, s.sql, st, func(r *sql.Rows) error {
			n, err := scanNotice(r)
			rows = append(rows, n)
			return err
		}, append(prefix, from.window, from.window, string(from.channel), q.Limit+1)...)
	}
	var err error
	switch {
	case q.User != "":
		kinds := coupon.NoticeKinds()
		if q.Kind != "" {
			kinds = []coupon.NoticeKind{q.Kind}
		}
		for _, k := range kinds {
			if err = read(stmtNoticesOfUser, []byte(q.User), string(k)); err != nil {
				return nil, err
			}
		}
	case len(q.States) > 0:
		for _, state := range slices.Compact(slices.Sorted(slices.Values(q.States))) {
			if err = read(stmtNoticesOfState, string(state)); err != nil {
				return nil, err
			}
		}
	default:
		err = read(stmtNoticesOfAll)
	}
	slices.SortFunc(rows, func(a, b coupon.NoticeRow) int {
		return noticePlace{a.WindowID, a.Channel}.compare(noticePlace{b.WindowID, b.Channel})
	})
	return rows[:min(len(rows), q.Limit+1)], err
}

func scanNotice(r *sql.Rows) (coupon.NoticeRow, error) {
	var n coupon.NoticeRow
	var user, slot, ref []byte
	var settled sql.NullTime
	err := r.Scan(&n.WindowID, &n.Channel, &user, &n.Kind, &slot, &n.Items, &n.State, &n.Reason, &n.Next, &n.Attempts, &n.TryAt, &n.NotAfter,
		&n.CreatedAt, &settled, &ref)
	n.UserID, n.Slot, n.Ref, n.SettledAt = string(user), string(slot), string(ref), settled.Time
	return n, err
}

// NoticeShow reads a window with what it holds and what became of it; coupon.ErrNotFound when there is no such window.
func (s *Store) NoticeShow(ctx context.Context, window uint64) (coupon.NoticeWindow, error) {
	var w coupon.NoticeWindow
	err := s.snapshot(ctx, func(ctx context.Context, q querier) error {
		w = coupon.NoticeWindow{}
		var user, slot []byte
		var notify, ends, closed sql.NullTime
		err := s.queryRow(ctx, q, stmtWindowShow, []any{
			&w.Now, &w.ID, &user, &w.Kind, &w.Offset, &slot, &w.Late, &w.Items, &w.OpenedAt, &w.LastAt, &w.DueAt, &notify, &ends, &closed, &w.ClosedBy,
		}, window)
		if err != nil {
			return err
		}
		w.UserID, w.Slot, w.NotifyAt, w.EndsAt, w.ClosedAt = string(user), string(slot), notify.Time, ends.Time, closed.Time
		err = s.query(ctx, q, stmtWindowItems, func(r *sql.Rows) error {
			var m coupon.NoticeMember
			var event []byte
			err := r.Scan(&event, &m.CouponID, &m.Version, &m.EndsAt, &m.Value, &m.Currency, &m.Dropped, &m.AddedAt)
			m.EventID = string(event)
			w.Members = append(w.Members, m)
			return err
		}, window, coupon.MaxPage)
		if err != nil {
			return err
		}
		slices.SortStableFunc(w.Members, func(a, b coupon.NoticeMember) int { return a.EndsAt.Compare(b.EndsAt) })
		return s.query(ctx, q, stmtWindowNotices, func(r *sql.Rows) error {
			n, err := scanNotice(r)
			w.Notices = append(w.Notices, n)
			return err
		}, window)
	})
	if err != nil {
		return coupon.NoticeWindow{}, fmt.Errorf("show notice window %d: %w", window, err)
	}
	return w, nil
}

// NoticeUser gives whose notice it is; coupon.ErrNotFound when there is no such notice.
func (s *Store) NoticeUser(ctx context.Context, window uint64, channel coupon.Channel) (string, error) {
	var user []byte
	if err := s.queryRow(ctx, s.sql, stmtNoticeUser, []any{&user}, window, string(channel)); err != nil {
		return "", fmt.Errorf("user of a notice: %w", err)
	}
	return string(user), nil
}

// ResendNotice has a notice that failed, was suppressed or whose outcome is unknown sent again, at once. The last step
// before sending decides anew: what does not stand any more, quiet hours, caps and opt-outs hold as ever. Who did it and
// why is recorded. Errors: coupon.ErrNotFound, coupon.ErrConflict of a notice in another state or of no use any more.
func (s *Store) ResendNotice(ctx context.Context, window uint64, channel coupon.Channel, actor, reason string) error {
	id := coupon.NoticeID(window, channel)
	return s.tx(ctx, "resend notice", func(ctx context.Context, tx *txn) error {
		var user []byte
		var state coupon.NoticeState
		var was string
		var attempts int
		var notAfter, now time.Time
		if err := s.queryRow(ctx, tx, stmtNoticeResendLock, []any{&user, &state, &was, &attempts, &notAfter, &now}, window, string(channel)); err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		if !state.Resendable() {
			return fmt.Errorf("%s is %s: only what failed, was suppressed or is unknown is sent again: %w", id, state, coupon.ErrConflict)
		}
		if !notAfter.After(now) {
			return fmt.Errorf("%s has been of no use since %s: %w", id, notAfter.UTC().Format(time.RFC3339), coupon.ErrConflict)
		}
		err := s.updateExactlyOne(ctx, tx, stmtNoticeResend, window, string(channel), string(state))
		if err != nil {
			return err
		}
		return s.recordDeed(ctx, tx, Deed{
			Actor: actor, Reason: reason, Action: "notice.resend", Subject: id,
			Detail: map[string]any{"state": state, "reason": was, "attempts": attempts},
		})
	})
}

// updateExactlyOne changes one row, which the transaction has locked.
func (s *Store) updateExactlyOne(ctx context.Context, tx querier, st Statement, args ...any) error {
	n, err := s.exec(ctx, tx, st, args...)
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: %d rows instead of 1: %w", st.Name, n, coupon.ErrContention)
	}
	return err
}
