package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtWindowFind = define("notice.window_find", `SELECT id FROM notice_window WHERE kind = ? AND slot = '' AND open_mark = 1 AND user_id IN (?)`)
	// All windows of the slots: those that are closed say that the next one is late. One statement serves many users of a slot at
	// half the cost; slots of few users go together.
	stmtSlotUsers = define("notice.slot_users", `SELECT id, user_id, kind, slot, open_mark IS NOT NULL, ends_at IS NOT NULL FROM notice_window
		FORCE INDEX (notice_window_open) WHERE kind = ? AND slot = ? AND user_id IN (?)`)
	stmtSlotFind = define("notice.slot_find", `SELECT id, user_id, kind, slot, open_mark IS NOT NULL, ends_at IS NOT NULL FROM notice_window
		FORCE INDEX (notice_window_open) WHERE (user_id = ? AND kind = ? AND slot = ?)`)
	stmtWindowLock = define("notice.window_lock", `SELECT id, user_id, kind, slot, remind_at, items, late, open_mark IS NOT NULL,
		due_at, notify_at, ends_at FROM notice_window FORCE INDEX (PRIMARY) WHERE id IN (?) ORDER BY id FOR UPDATE`)
	stmtWindowOpen = define("notice.window_open", `INSERT INTO notice_window
		(user_id, kind, slot, remind_at, open_mark, late, items, opened_at, last_item_at, due_at, notify_at, ends_at, closed_by)
		VALUES (?,?,?,?,1,?,0,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),
		GREATEST(UTC_TIMESTAMP(3) + INTERVAL ? MICROSECOND, CAST(? AS DATETIME(3))),?,?,'') ON DUPLICATE KEY UPDATE id = id`)
	stmtWindowLate = define("notice.window_late", `UPDATE notice_window SET late = 1, due_at = LEAST(due_at, opened_at + INTERVAL ? MICROSECOND)
		WHERE id IN (?) AND open_mark = 1`)
)

// lockWindows finds the open windows and locks their rows. Of reminders' slots it learns whether one is gone.
func (c *collection) lockWindows(ctx context.Context, keys []windowKey) error {
	ids, err := c.findExpired(ctx, keys)
	if err != nil {
		return err
	}
	more, err := c.findSlots(ctx, keys)
	if err != nil {
		return err
	}
	ids = append(ids, more...)
	slices.Sort(ids)
	var late []any
	for part := range slices.Chunk(ids, inList) {
		args := make([]any, len(part))
		for i, id := range part {
			args[i] = id
		}
		err := c.s.query(ctx, c.tx, stmtWindowLock.in(len(part)), func(r *sql.Rows) error {
			w := &window{}
			var user, slot []byte
			var key windowKey
			var open bool
			var notify, ends sql.Null[time.Time]
			if err := r.Scan(&w.id, &user, &key.kind, &slot, &w.offset, &w.items, &w.late, &open, &w.due, &notify, &ends); err != nil {
				return err
			}
			key.user, key.slot, w.notify, w.ends = string(user), string(slot), notify.V, ends.V
			w.told = ends.Valid
			if !open { // closed between the two statements
				return nil
			}
			if c.gone[key] && !w.late { // who opened it did not see the other one close
				w.late = true
				late = append(late, w.id)
			}
			c.windows[key] = w
			return nil
		}, args...)
		if err != nil {
			return err
		}
	}
	return c.s.updateExactly(ctx, c.tx, stmtWindowLate, []any{c.rules.Quiet.Microseconds()}, late)
}

// findExpired finds the open windows of expired coupons.
func (c *collection) findExpired(ctx context.Context, keys []windowKey) (ids []uint64, err error) {
	args := make([]any, 1, len(keys)+1)
	args[0] = string(coupon.NoticeExpired)
	for _, k := range keys {
		if k.kind == coupon.NoticeExpired {
			args = append(args, []byte(k.user))
		}
	}
	for part := range slices.Chunk(args[1:], inList) {
		err := c.s.query(ctx, c.tx, stmtWindowFind.in(len(part)), func(r *sql.Rows) error {
			var id uint64
			err := r.Scan(&id)
			ids = append(ids, id)
			return err
		}, append(args[:1:1], part...)...)
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// slotOf is a slot whoever's it is.
type slotOf struct {
	kind coupon.NoticeKind
	slot string
}

// manyUsers of one slot are asked for by a statement of their own.
const manyUsers = 10

// findSlots finds the open windows of reminders, and notes the slots that are gone.
func (c *collection) findSlots(ctx context.Context, keys []windowKey) (ids []uint64, err error) {
	by := make(map[slotOf][]windowKey)
	for _, k := range keys {
		if k.kind != coupon.NoticeExpired {
			by[slotOf{k.kind, k.slot}] = append(by[slotOf{k.kind, k.slot}], k)
		}
	}
	if len(by) > 0 && c.gone == nil {
		c.gone = make(map[windowKey]bool)
	}
	scan := func(r *sql.Rows) error {
		var id uint64
		var user, slot []byte
		var kind coupon.NoticeKind
		var open, told bool
		if err := r.Scan(&id, &user, &kind, &slot, &open, &told); err != nil {
			return err
		}
		switch {
		case open:
			ids = append(ids, id)
		case told:
			c.gone[windowKey{string(user), kind, string(slot)}] = true
		}
		return nil
	}
	var few []windowKey
	for of, keys := range by {
		if len(keys) < manyUsers {
			few = append(few, keys...)
			continue
		}
		for part := range slices.Chunk(keys, inList) {
			args := []any{string(of.kind), []byte(of.slot)}
			for _, k := range part {
				args = append(args, []byte(k.user))
			}
			if err := c.s.query(ctx, c.tx, stmtSlotUsers.in(len(part)), scan, args...); err != nil {
				return nil, err
			}
		}
	}
	const one = "(user_id = ? AND kind = ? AND slot = ?)"
	for part := range slices.Chunk(few, inList/3) {
		args := make([]any, 0, 3*len(part))
		for _, k := range part {
			args = append(args, []byte(k.user), string(k.kind), []byte(k.slot))
		}
		st := stmtSlotFind
		st.SQL = strings.Replace(st.SQL, one, one+strings.Repeat(" OR "+one, len(part)-1), 1)
		if err := c.s.query(ctx, c.tx, st, scan, args...); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// openWindows opens a window for every key of items that has none and locks it; another pod's, if that was first.
func (c *collection) openWindows(ctx context.Context, items []coupon.NoticeItem) error {
	const tries = 3 // a window that another pod opened may be full or closed by the time it is ours
	for try := 0; ; try++ {
		missing := slices.DeleteFunc(keysOf(items), func(k windowKey) bool { _, ok := c.windows[k]; return ok })
		if len(missing) == 0 {
			return nil
		}
		if try == tries {
			return fmt.Errorf("windows close as fast as they open: %w", coupon.ErrContention)
		}
		if err := c.s.insertAll(ctx, c.tx, stmtWindowOpen, c.opening(items), 9); err != nil {
			return err
		}
		if err := c.lockWindows(ctx, missing); err != nil {
			return err
		}
	}
}

// opening gives the rows of the windows that items need and that are not there.
func (c *collection) opening(items []coupon.NoticeItem) []any {
	var args []any
	at := time.Unix(0, 0).Add(48 * time.Hour).UTC() // long ago
	for i := 0; i < len(items); {
		key, offset := keyOf(&items[i]), items[i].Offset
		var g growth
		for ; i < len(items) && keyOf(&items[i]) == key; i++ {
			g.add(&items[i])
		}
		if _, ok := c.windows[key]; ok {
			continue
		}
		due, late := at, c.gone[key]
		if key.kind != coupon.NoticeExpired && !late && !g.closeAt.IsZero() {
			due = g.closeAt
		}
		args = append(args, []byte(key.user), string(key.kind), []byte(key.slot), offset, late, c.quiet(key.kind).Microseconds(), due,
			instantOrNull(g.notify), instantOrNull(g.ends))
	}
	return args
}
