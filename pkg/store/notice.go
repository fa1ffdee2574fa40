package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The protocol of windows. Whoever adds an item and whoever closes a window first locks the window's row by its
// primary key, and believes open_mark only then; so an item is in its window before the window is counted, or it
// opens the next one. An event's id is looked for after its user's window is locked: the same event belongs to the
// same user, so two pods that got it one after the other cannot both find it missing. Users are worked in order.

//nolint:gochecknoglobals // statements are constants
var (
	stmtItemsKnown = define("notice.known", `SELECT event_id FROM notice_item WHERE event_id IN (?)`)
	stmtWindowFind = define("notice.window_find", `SELECT id FROM notice_window WHERE kind = ? AND open_mark = 1 AND user_id IN (?)`)
	stmtWindowLock = define("notice.window_lock", `SELECT id, user_id, items, open_mark IS NOT NULL FROM notice_window
		WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtWindowOpen = define("notice.window_open", `INSERT INTO notice_window
		(user_id, kind, open_mark, items, opened_at, last_item_at, due_at, closed_by)
		VALUES (?,?,1,0,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND,'') ON DUPLICATE KEY UPDATE id = id`)
	stmtItemInsert = define("notice.item_insert", `INSERT INTO notice_item
		(window_id, event_id, coupon_id, version, expires_at, value, currency, dropped, added_at)
		VALUES (?,?,?,?,?,?,?,'',UTC_TIMESTAMP(3))`)
	stmtWindowGrow = define("notice.window_grow", `UPDATE notice_window SET items = items + ?, last_item_at = UTC_TIMESTAMP(3)
		WHERE id IN (?) AND open_mark = 1`)
	stmtWindowSeal = define("notice.window_seal", `UPDATE notice_window SET open_mark = NULL, due_at = UTC_TIMESTAMP(3), closed_by = 'size'
		WHERE id IN (?) AND open_mark = 1`)
)

const inList = 900 // members of one IN list: beyond a thousand MariaDB loses the order of the index

// CollectNotices puts the items into their users' windows of the kind, opening those that are missing and closing to
// more items those that are full. Items whose event id is known are left out. It gives the number added; after an
// error nothing was.
func (s *Store) CollectNotices(ctx context.Context, kind coupon.NoticeKind, r coupon.WindowRules, items []coupon.NoticeItem) (int, error) {
	items = distinctItems(items)
	if len(items) == 0 {
		return 0, nil
	}
	added := 0
	err := s.tx(ctx, "collect notices", func(ctx context.Context, tx *txn) error {
		c := collection{s: s, tx: tx, kind: kind, rules: r, windows: make(map[string]window)}
		var err error
		added, err = c.run(ctx, items)
		if errors.Is(err, coupon.ErrConflict) {
			// The same event came in by another transaction in this very moment; the next try finds it.
			return fmt.Errorf("%w: %w", coupon.ErrContention, err)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return added, nil
}

// distinctItems orders items by user and leaves out repeats.
func distinctItems(items []coupon.NoticeItem) []coupon.NoticeItem {
	out := make([]coupon.NoticeItem, 0, len(items))
	seen := make(map[string]bool, len(items))
	for i := range items {
		if !seen[items[i].EventID] {
			seen[items[i].EventID] = true
			out = append(out, items[i])
		}
	}
	slices.SortStableFunc(out, func(a, b coupon.NoticeItem) int { return cmp.Compare(a.UserID, b.UserID) })
	return out
}

// window is an open window whose row this transaction has locked.
type window struct {
	id    uint64
	items int
}

// collection is one transaction that collects.
type collection struct {
	s       *Store
	tx      *txn
	kind    coupon.NoticeKind
	rules   coupon.WindowRules
	windows map[string]window // by user
}

func (c *collection) run(ctx context.Context, items []coupon.NoticeItem) (int, error) {
	if err := c.lockWindows(ctx, usersOf(items)); err != nil {
		return 0, err
	}
	items, err := c.unknown(ctx, items)
	if err != nil {
		return 0, err
	}
	added := len(items)
	opened, err := c.openWindows(ctx, items)
	if err != nil {
		return 0, err
	}
	if opened {
		// What was looked for before its window was locked is looked for again.
		again, err := c.unknown(ctx, items)
		if err != nil {
			return 0, err
		}
		if len(again) != len(items) {
			return 0, fmt.Errorf("an event came in twice at once: %w", coupon.ErrContention)
		}
	}
	for len(items) > 0 {
		if items, err = c.fill(ctx, items); err != nil {
			return 0, err
		}
		if _, err = c.openWindows(ctx, items); err != nil {
			return 0, err
		}
	}
	return added, nil
}

// lockWindows finds the users' open windows and locks their rows.
func (c *collection) lockWindows(ctx context.Context, users []string) error {
	for users := range slices.Chunk(users, inList) {
		args := make([]any, 0, len(users)+1)
		args = append(args, string(c.kind))
		for _, u := range users {
			args = append(args, []byte(u))
		}
		var ids []any
		err := c.s.query(ctx, c.tx, stmtWindowFind.in(len(users)), func(r *sql.Rows) error {
			var id uint64
			err := r.Scan(&id)
			ids = append(ids, id)
			return err
		}, args...)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			continue
		}
		err = c.s.query(ctx, c.tx, stmtWindowLock.in(len(ids)), func(r *sql.Rows) error {
			var w window
			var user []byte
			var open bool
			if err := r.Scan(&w.id, &user, &w.items, &open); err != nil {
				return err
			}
			if open { // else it was closed between the two statements
				c.windows[string(user)] = w
			}
			return nil
		}, ids...)
		if err != nil {
			return err
		}
	}
	return nil
}

// unknown leaves out the items whose event is in a window already.
func (c *collection) unknown(ctx context.Context, items []coupon.NoticeItem) ([]coupon.NoticeItem, error) {
	known := make(map[string]bool)
	for part := range slices.Chunk(items, inList) {
		args := make([]any, len(part))
		for i := range part {
			args[i] = []byte(part[i].EventID)
		}
		err := c.s.query(ctx, c.tx, stmtItemsKnown.in(len(part)), func(r *sql.Rows) error {
			var id []byte
			err := r.Scan(&id)
			known[string(id)] = true
			return err
		}, args...)
		if err != nil {
			return nil, err
		}
	}
	if len(known) == 0 {
		return items, nil
	}
	return slices.DeleteFunc(slices.Clone(items), func(i coupon.NoticeItem) bool { return known[i.EventID] }), nil
}

// openWindows opens a window for every user of items that has none and locks it; another pod's, if that was first.
func (c *collection) openWindows(ctx context.Context, items []coupon.NoticeItem) (bool, error) {
	const tries = 3 // a window that another pod opened may be full or closed by the time it is ours
	for try := 0; ; try++ {
		missing := slices.DeleteFunc(usersOf(items), func(u string) bool { _, ok := c.windows[u]; return ok })
		if len(missing) == 0 {
			return try > 0, nil
		}
		if try == tries {
			return false, fmt.Errorf("windows close as fast as they open: %w", coupon.ErrContention)
		}
		first := min(c.rules.Quiet, c.rules.MaxAge).Microseconds()
		for part := range slices.Chunk(missing, insertRows) {
			args := make([]any, 0, 3*len(part))
			for _, u := range part {
				args = append(args, []byte(u), string(c.kind), first)
			}
			if _, err := c.s.exec(ctx, c.tx, stmtWindowOpen.rows(len(part)), args...); err != nil {
				return false, err
			}
		}
		if err := c.lockWindows(ctx, missing); err != nil {
			return false, err
		}
	}
}

// fill adds items to the locked windows as far as there is room, and gives what was left over by full ones.
func (c *collection) fill(ctx context.Context, items []coupon.NoticeItem) (rest []coupon.NoticeItem, err error) {
	var rows []any
	grown := make(map[uint64]int)
	var sealed []any
	n := 0
	for i := range items {
		it := &items[i]
		w, ok := c.windows[it.UserID]
		if !ok || w.items >= c.rules.MaxItems { // full in this round, or found full: the limit was lowered
			if ok {
				sealed = append(sealed, w.id)
				delete(c.windows, it.UserID)
			}
			rest = append(rest, *it)
			continue
		}
		rows = append(rows, w.id, []byte(it.EventID), it.CouponID, it.Version, it.ExpiresAt, it.Value, it.Currency)
		n++
		grown[w.id]++
		w.items++
		c.windows[it.UserID] = w
		if w.items >= c.rules.MaxItems {
			sealed = append(sealed, w.id)
			delete(c.windows, it.UserID)
		}
	}
	const columns = 7
	for part := range slices.Chunk(rows, insertRows*columns) {
		if _, err := c.s.exec(ctx, c.tx, stmtItemInsert.rows(len(part)/columns), part...); err != nil {
			return nil, err
		}
	}
	if err := c.grow(ctx, grown); err != nil {
		return nil, err
	}
	return rest, c.update(ctx, stmtWindowSeal, nil, sealed)
}

// grow adds to the counts: one statement for all windows that grew by the same number.
func (c *collection) grow(ctx context.Context, grown map[uint64]int) error {
	by := make(map[int][]any)
	for id, n := range grown {
		by[n] = append(by[n], id)
	}
	for n, ids := range by {
		if err := c.update(ctx, stmtWindowGrow, []any{n}, ids); err != nil {
			return err
		}
	}
	return nil
}

// update changes exactly the rows of the ids.
func (c *collection) update(ctx context.Context, st Statement, args, ids []any) error {
	return c.s.updateExactly(ctx, c.tx, st, args, ids)
}

// updateExactly runs a statement whose list comes after args; a row that is not there rolls back and tries again.
func (s *Store) updateExactly(ctx context.Context, tx querier, st Statement, args, ids []any) error {
	for part := range slices.Chunk(ids, inList) {
		n, err := s.exec(ctx, tx, st.in(len(part)), append(slices.Clone(args), part...)...)
		if err != nil {
			return err
		}
		if n != int64(len(part)) {
			return fmt.Errorf("%s: %d rows instead of %d: %w", st.Name, n, len(part), coupon.ErrContention)
		}
	}
	return nil
}

func usersOf(items []coupon.NoticeItem) []string {
	users := make([]string, 0, len(items))
	for i := range items {
		if n := len(users); n == 0 || users[n-1] != items[i].UserID {
			users = append(users, items[i].UserID)
		}
	}
	return users
}

//nolint:gochecknoglobals // statements are constants
var stmtInboxList = define("notice.inbox_list", `SELECT id, kind, items, texts, created_at, read_at FROM inbox
	WHERE user_id = ? AND id < ? ORDER BY id DESC LIMIT ?`)

// Inbox lists a user's rows, newest first, those before the id (0: from the newest on).
func (s *Store) Inbox(ctx context.Context, user string, before uint64, limit int) ([]coupon.InboxItem, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	var items []coupon.InboxItem
	err := s.query(ctx, s.sql, stmtInboxList, func(r *sql.Rows) error {
		var it coupon.InboxItem
		var texts []byte
		var read sql.Null[time.Time]
		if err := r.Scan(&it.ID, &it.Kind, &it.Items, &texts, &it.CreatedAt, &read); err != nil {
			return err
		}
		it.ReadAt = read.V
		items = append(items, it)
		return decodeTexts(texts, &items[len(items)-1].Texts)
	}, []byte(user), before, limit)
	return items, err
}
