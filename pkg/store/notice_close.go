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
	stmtWindowNext = define("notice.window_next", `SELECT UTC_TIMESTAMP(3), (SELECT due_at FROM notice_window
		WHERE kind = ? ORDER BY due_at LIMIT 1)`)
	stmtWindowClaim = define("notice.window_claim", `SELECT id, user_id, items, open_mark IS NULL, opened_at, last_item_at, UTC_TIMESTAMP(3)
		FROM notice_window FORCE INDEX (notice_window_due)
		WHERE kind = ? AND due_at <= UTC_TIMESTAMP(3) ORDER BY due_at LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtWindowWait = define("notice.window_wait", `UPDATE notice_window SET due_at = GREATEST(CAST(? AS DATETIME(3)),
		LEAST(last_item_at + INTERVAL ? MICROSECOND, opened_at + INTERVAL ? MICROSECOND)) WHERE id IN (?)`)
	// An item stands if its event still tells of the coupon's present state, wherever that is kept.
	stmtItemsFallen = define("notice.items_fallen", `SELECT i.window_id, i.event_id, c.id IS NULL AND a.id IS NULL FROM notice_item i
		LEFT JOIN coupon c ON c.id = i.coupon_id
		LEFT JOIN coupon_archive a ON c.id IS NULL AND a.id = i.coupon_id
		WHERE i.window_id IN (?) AND (COALESCE(c.id, a.id) IS NULL OR COALESCE(c.status, a.status) <> 4 OR COALESCE(c.version, a.version) <> i.version)`)
	stmtItemDrop    = define("notice.item_drop", `UPDATE notice_item SET dropped = ? WHERE event_id IN (?)`)
	stmtWindowClose = define("notice.window_close", `UPDATE notice_window SET open_mark = NULL, due_at = '9999-12-31', closed_at = UTC_TIMESTAMP(3),
		closed_by = ? WHERE id IN (?) AND closed_at IS NULL`)
	stmtNoticeInsert = define("notice.insert", `INSERT INTO notice
		(window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at, settled_at)
		VALUES (?,?,?,?,?,'pending','',1,UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND,UTC_TIMESTAMP(3),NULL)`)
	stmtNoticeEmpty = define("notice.insert_empty", `INSERT INTO notice
		(window_id, channel, user_id, kind, items, state, reason, attempts, try_at, created_at, settled_at)
		VALUES (?,?,?,?,0,'suppressed','empty',0,'9999-12-31',UTC_TIMESTAMP(3),UTC_TIMESTAMP(3))`)
	stmtNoticeClaim = define("notice.claim", `SELECT window_id, user_id, kind, items, attempts FROM notice FORCE INDEX (notice_try)
		WHERE channel = ? AND try_at <= UTC_TIMESTAMP(3) ORDER BY try_at LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtNoticeLease = define("notice.lease", `UPDATE notice SET try_at = UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND, attempts = attempts + 1
		WHERE channel = ? AND window_id IN (?)`)
	stmtNoticePending = define("notice.pending", `SELECT window_id FROM notice WHERE channel = ? AND window_id IN (?) AND state = 'pending'
		ORDER BY window_id FOR UPDATE`)
	stmtNoticeSent = define("notice.sent", `UPDATE notice SET state = 'sent', try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3)
		WHERE channel = ? AND window_id IN (?) AND state = 'pending'`)
	stmtInboxInsert = define("notice.inbox_insert", `INSERT INTO inbox (user_id, window_id, kind, items, texts, created_at, read_at)
		VALUES (?,?,?,?,?,UTC_TIMESTAMP(3),NULL)`)
)

const closeItems = 20_000 // members of one closing transaction at most, so that it stays short; one window may be more

// claimed is a due window that this transaction has locked.
type claimed struct {
	id     uint64
	user   string
	items  int
	sealed bool // full: no item can join
	by     string
}

// CloseNotices closes windows that are due: what has joined by now is their members, those whose coupon's state has
// changed since drop out, and a notice for each channel is recorded before anyone sends it; recorded as suppressed
// if no member stands. Several pods share the windows without waiting for each other.
func (s *Store) CloseNotices(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error) {
	c, err := s.closing(ctx, p)
	if err != nil || c.Next.IsZero() || c.Next.After(c.Now) {
		return c, err
	}
	err = s.tx(ctx, "close notices", func(ctx context.Context, tx *txn) error {
		c = coupon.Closing{Now: c.Now, Suppressed: make(map[string]int)}
		due, err := s.claimWindows(ctx, tx, p, &c)
		if err != nil || len(due) == 0 {
			return err
		}
		c.Windows = len(due)
		standing, err := s.standing(ctx, tx, due)
		if err != nil {
			return err
		}
		if err := s.closeWindows(ctx, tx, due); err != nil {
			return err
		}
		return s.insertNotices(ctx, tx, p, due, standing, &c)
	})
	if err != nil {
		return coupon.Closing{}, err
	}
	next, err := s.closing(ctx, p)
	if err != nil {
		next = c // what was closed counts; the next look will tell the error
	}
	c.Now, c.Next = next.Now, next.Next
	return c, nil
}

// closing reads the clock and the next instant: all that a look at nothing costs.
func (s *Store) closing(ctx context.Context, p coupon.ClosePlan) (coupon.Closing, error) {
	var c coupon.Closing
	var next sql.Null[time.Time]
	err := s.queryRow(ctx, s.sql, stmtWindowNext, []any{&c.Now, &next}, string(p.Kind))
	if !coupon.IsNever(next.V) {
		c.Next = next.V
	}
	return c, err
}

// claimWindows locks windows whose time to look has come, puts those off that may not close yet, and gives the others.
func (s *Store) claimWindows(ctx context.Context, tx querier, p coupon.ClosePlan, c *coupon.Closing) ([]claimed, error) {
	var due []claimed
	var wait []any
	seen, members := 0, 0
	err := s.query(ctx, tx, stmtWindowClaim, func(r *sql.Rows) error {
		var w claimed
		var user []byte
		var opened, last time.Time
		if err := r.Scan(&w.id, &user, &w.items, &w.sealed, &opened, &last, &c.Now); err != nil {
			return err
		}
		seen++
		w.user, w.by = string(user), coupon.ClosedBySize
		if !w.sealed && w.items < p.Rules.MaxItems {
			var at time.Time
			if at, w.by = p.Rules.ClosesAt(opened, last); at.After(c.Now) {
				wait = append(wait, w.id)
				return nil
			}
		}
		if len(due) > 0 && members+w.items > closeItems {
			c.More = true // stays due
			return nil
		}
		members += w.items
		due = append(due, w)
		return nil
	}, string(p.Kind), p.Limit)
	if err != nil {
		return nil, err
	}
	c.More = c.More || seen == p.Limit
	notBefore := p.Rules.NotBefore
	if notBefore.IsZero() {
		notBefore = time.Unix(0, 0).Add(48 * time.Hour)
	}
	args := []any{notBefore.UTC(), p.Rules.Quiet.Microseconds(), p.Rules.MaxAge.Microseconds()}
	return due, s.updateExactly(ctx, tx, stmtWindowWait, args, wait)
}

// standing counts for each window the members that still stand, and records why the others do not.
func (s *Store) standing(ctx context.Context, tx querier, due []claimed) (map[uint64]int, error) {
	count := make(map[uint64]int, len(due))
	ids := make([]any, len(due))
	for i := range due {
		ids[i] = due[i].id
		count[due[i].id] = due[i].items
	}
	var changed, absent []any
	for part := range slices.Chunk(ids, inList) {
		err := s.query(ctx, tx, stmtItemsFallen.in(len(part)), func(r *sql.Rows) error {
			var id uint64
			var event []byte
			var gone bool
			if err := r.Scan(&id, &event, &gone); err != nil {
				return err
			}
			count[id]--
			if gone {
				absent = append(absent, event)
			} else {
				changed = append(changed, event)
			}
			return nil
		}, part...)
		if err != nil {
			return nil, err
		}
	}
	if err := s.updateExactly(ctx, tx, stmtItemDrop, []any{"changed"}, changed); err != nil {
		return nil, err
	}
	return count, s.updateExactly(ctx, tx, stmtItemDrop, []any{"absent"}, absent)
}

func (s *Store) closeWindows(ctx context.Context, tx querier, due []claimed) error {
	by := make(map[string][]any, 3)
	for i := range due {
		by[due[i].by] = append(by[due[i].by], due[i].id)
	}
	for _, reason := range []string{coupon.ClosedByQuiet, coupon.ClosedByAge, coupon.ClosedBySize} {
		if err := s.updateExactly(ctx, tx, stmtWindowClose, []any{reason}, by[reason]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) insertNotices(ctx context.Context, tx querier, p coupon.ClosePlan, due []claimed, standing map[uint64]int, c *coupon.Closing) error {
	var told, empty []any
	for i := range due {
		w := &due[i]
		for _, channel := range p.Channels {
			n := coupon.Notice{WindowID: w.id, Channel: channel, UserID: w.user, Kind: p.Kind, Items: standing[w.id]}
			if n.Items > 0 {
				c.Pending = append(c.Pending, n)
				told = append(told, w.id, string(channel), []byte(w.user), string(p.Kind), n.Items, p.Lease.Microseconds())
			} else {
				c.Suppressed[coupon.ReasonEmpty]++
				empty = append(empty, w.id, string(channel), []byte(w.user), string(p.Kind))
			}
		}
	}
	if err := s.insertAll(ctx, tx, stmtNoticeInsert, told, 6); err != nil {
		return err
	}
	return s.insertAll(ctx, tx, stmtNoticeEmpty, empty, 4)
}

// insertAll writes rows of so many arguments each.
func (s *Store) insertAll(ctx context.Context, tx querier, st Statement, args []any, columns int) error {
	for part := range slices.Chunk(args, insertRows*columns) {
		if _, err := s.exec(ctx, tx, st.rows(len(part)/columns), part...); err != nil {
			return err
		}
	}
	return nil
}

// ClaimNotices takes over pending notices of the channel whose lease has run out: those of a pod that died, or that
// failed.
func (s *Store) ClaimNotices(ctx context.Context, channel coupon.Channel, lease time.Duration, limit int) ([]coupon.Notice, error) {
	var ns []coupon.Notice
	err := s.tx(ctx, "claim notices", func(ctx context.Context, tx *txn) error {
		ns = nil
		var ids []any
		err := s.query(ctx, tx, stmtNoticeClaim, func(r *sql.Rows) error {
			n := coupon.Notice{Channel: channel}
			var user []byte
			if err := r.Scan(&n.WindowID, &user, &n.Kind, &n.Items, &n.Attempt); err != nil {
				return err
			}
			n.UserID = string(user)
			ns = append(ns, n)
			ids = append(ids, n.WindowID)
			return nil
		}, string(channel), limit)
		if err != nil {
			return err
		}
		return s.updateExactly(ctx, tx, stmtNoticeLease, []any{lease.Microseconds(), string(channel)}, ids)
	})
	if err != nil {
		return nil, err
	}
	return ns, nil
}

// NoticesSent records what a channel has sent, and gives how many were not recorded before.
func (s *Store) NoticesSent(ctx context.Context, channel coupon.Channel, windows []uint64) (int, error) {
	sent := 0
	for part := range slices.Chunk(windows, inList) {
		args := []any{string(channel)}
		for _, id := range part {
			args = append(args, id)
		}
		n, err := s.exec(ctx, s.sql, stmtNoticeSent.in(len(part)), args...)
		sent += int(n)
		if err != nil {
			return sent, fmt.Errorf("record notices sent: %w", err)
		}
	}
	return sent, nil
}

// DeliverInbox writes the notices that are still pending into their users' inboxes and marks them sent, in one
// transaction: each is there once, whoever else delivers it. It gives how many were written.
func (s *Store) DeliverInbox(ctx context.Context, ms []coupon.NoticeMessage) (int, error) {
	written := 0
	for part := range slices.Chunk(ms, insertRows) {
		n := 0
		err := s.tx(ctx, "deliver inbox", func(ctx context.Context, tx *txn) error {
			var err error
			n, err = s.deliverInbox(ctx, tx, part)
			return err
		})
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func (s *Store) deliverInbox(ctx context.Context, tx querier, ms []coupon.NoticeMessage) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	args := make([]any, 0, len(ms)+1)
	args = append(args, string(coupon.ChannelInbox))
	for i := range ms {
		args = append(args, ms[i].WindowID)
	}
	pending := make(map[uint64]bool, len(ms))
	err := s.query(ctx, tx, stmtNoticePending.in(len(ms)), func(r *sql.Rows) error {
		var id uint64
		err := r.Scan(&id)
		pending[id] = true
		return err
	}, args...)
	if err != nil {
		return 0, err
	}
	var rows, ids []any
	for i := range ms {
		m := &ms[i]
		if !pending[m.WindowID] {
			continue
		}
		pending[m.WindowID] = false
		texts, err := json.Marshal(m.Texts)
		if err != nil {
			return 0, fmt.Errorf("encode texts: %w", err)
		}
		rows = append(rows, []byte(m.UserID), m.WindowID, string(m.Kind), m.Items, string(texts))
		ids = append(ids, m.WindowID)
	}
	if err := s.insertAll(ctx, tx, stmtInboxInsert, rows, 5); err != nil {
		return 0, err
	}
	return len(ids), s.updateExactly(ctx, tx, stmtNoticeSent, []any{string(coupon.ChannelInbox)}, ids)
}

func decodeTexts(b []byte, into *map[string]coupon.NoticeText) error {
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("texts of an inbox row: %w", err)
	}
	return nil
}
