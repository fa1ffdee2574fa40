package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

// The protocol of windows. Whoever adds an item and whoever closes a window first locks the window's row by its
// primary key, and believes open_mark only then; so an item is in its window before the window is counted, or it
// opens the next one. An event's id is looked for after its user's window is locked: the same event belongs to the
// same user, so two pods that got it one after the other cannot both find it missing. Where the window was not there yet, or they
// take it for different windows (the user moved to another zone in between), the key of event ids lets one of them in, and the
// other one finds it when it tries again. Users are worked in order.
//
// A slot of reminders is one day's (or one span's) notice. Once a window of it has closed with members to tell of, the
// next one is late: it is opened as such, or turned into such by who opened it and then finds the other one closed.

//nolint:gochecknoglobals // statements are constants
var (
	stmtItemsKnown = define("notice.known", `SELECT event_id, version, dropped = 'changed' FROM notice_item WHERE event_id IN (?)`)
	stmtItemInsert = define("notice.item_insert", `INSERT INTO notice_item
		(window_id, event_id, coupon_id, template_id, version, expires_at, value, currency, dropped, added_at)
		VALUES (?,?,?,?,?,?,?,?,?,UTC_TIMESTAMP(3))`)
	stmtWindowGrow = define("notice.window_grow", `UPDATE notice_window SET items = items + ?, last_item_at = UTC_TIMESTAMP(3)
		WHERE id IN (?) AND open_mark = 1`)
	// Rows that are there and locked: what is inserted always meets its key. One statement serves windows that grow by different
	// numbers and whose instants move differently. A window that holds nothing to be told yet (it has no end) has been opened by what
	// was left out, and takes the hour of the first that is told.
	stmtWindowMove = define("notice.window_move", `INSERT INTO notice_window
		(id, user_id, kind, slot, remind_at, open_mark, late, items, opened_at, last_item_at, due_at, notify_at, ends_at, closed_by)
		VALUES (?,?,?,?,?,1,?,?,UTC_TIMESTAMP(3),UTC_TIMESTAMP(3),?,?,?,'') ON DUPLICATE KEY UPDATE
		items = items + VALUES(items), last_item_at = VALUES(last_item_at),
		due_at = IF(ends_at IS NULL AND VALUES(due_at) < '9999-12-31', GREATEST(VALUES(due_at), opened_at + INTERVAL ? MICROSECOND),
			LEAST(due_at, GREATEST(VALUES(due_at), opened_at + INTERVAL ? MICROSECOND))),
		notify_at = COALESCE(LEAST(notify_at, VALUES(notify_at)), notify_at, VALUES(notify_at)),
		ends_at = COALESCE(LEAST(ends_at, VALUES(ends_at)), ends_at, VALUES(ends_at))`)
	stmtWindowSeal = define("notice.window_seal", `UPDATE notice_window SET open_mark = NULL, due_at = UTC_TIMESTAMP(3), closed_by = 'size'
		WHERE id IN (?) AND open_mark = 1`)
)

const inList = 900 // members of one IN list: beyond a thousand MariaDB loses the order of the index

// CollectNotices puts the items into their users' windows, opening those that are missing and closing to more items those
// of expired coupons that are full; reminders beyond closeItems of one window are recorded as dropped. A reminder makes its window due at its CloseAt at the latest, though never sooner than
// Quiet after it was opened. Items whose event id is known are left out. It gives the number added; after an error
// nothing was.
func (s *Store) CollectNotices(ctx context.Context, r coupon.WindowRules, items []coupon.NoticeItem) (int, error) {
	items = distinctItems(items)
	if len(items) == 0 {
		return 0, nil
	}
	added := 0
	err := s.tx(ctx, "collect notices", func(ctx context.Context, tx *txn) error {
		c := collection{s: s, tx: tx, rules: r, windows: make(map[windowKey]*window)}
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

// distinctItems orders items by window and leaves out repeats.
func distinctItems(items []coupon.NoticeItem) []coupon.NoticeItem {
	out := make([]coupon.NoticeItem, 0, len(items))
	seen := make(map[string]bool, len(items))
	for i := range items {
		if !seen[items[i].EventID] {
			seen[items[i].EventID] = true
			out = append(out, items[i])
		}
	}
	slices.SortStableFunc(out, func(a, b coupon.NoticeItem) int { return keyOf(&a).compare(keyOf(&b)) })
	return out
}

// windowKey tells open windows apart.
type windowKey struct {
	user string
	kind coupon.NoticeKind
	slot string
}

func keyOf(it *coupon.NoticeItem) windowKey { return windowKey{it.UserID, it.Kind, it.Slot} }

func (k windowKey) compare(l windowKey) int {
	return cmp.Or(cmp.Compare(k.user, l.user), cmp.Compare(k.kind, l.kind), cmp.Compare(k.slot, l.slot))
}

// window is an open window whose row this transaction has locked.
type window struct {
	id                uint64
	items             int
	late              bool
	told              bool // of reminders: it has an item that is not dropped
	offset            string
	due, notify, ends time.Time // zero: none
}

// collection is one transaction that collects.
type collection struct {
	s       *Store
	tx      *txn
	rules   coupon.WindowRules
	windows map[windowKey]*window
	gone    map[windowKey]bool // slots of which a window has closed with members to tell of
}

func (c *collection) run(ctx context.Context, items []coupon.NoticeItem) (int, error) {
	if err := c.lockWindows(ctx, keysOf(items)); err != nil {
		return 0, err
	}
	items, err := c.unknown(ctx, items)
	if err != nil {
		return 0, err
	}
	added := len(items)
	for len(items) > 0 {
		if err := c.openWindows(ctx, items); err != nil {
			return 0, err
		}
		if items, err = c.fill(ctx, items); err != nil {
			return 0, err
		}
	}
	return added, nil
}

// unknown leaves out the items whose event is in a window already. A reminder that was left out there, since an order held its
// coupon when the window closed, comes again by the same event when the order gives the coupon back before the reminder's instant:
// it is taken in as another, once for each time.
func (c *collection) unknown(ctx context.Context, items []coupon.NoticeItem) ([]coupon.NoticeItem, error) {
	known, err := c.known(ctx, items)
	if err != nil || len(known) == 0 {
		return items, err
	}
	fresh := make([]coupon.NoticeItem, 0, len(items))
	var back []coupon.NoticeItem
	for _, it := range items {
		k, ok := known[it.EventID]
		switch {
		case !ok:
			fresh = append(fresh, it)
		case k.changed && it.Kind == coupon.NoticeExpiring && it.Version > k.version:
			it.EventID += ":" + strconv.FormatUint(uint64(it.Version), 10)
			back = append(back, it)
		}
	}
	if len(back) == 0 {
		return fresh, nil
	}
	if known, err = c.known(ctx, back); err != nil {
		return nil, err
	}
	back = slices.DeleteFunc(back, func(it coupon.NoticeItem) bool { _, ok := known[it.EventID]; return ok })
	return distinctItems(append(fresh, back...)), nil
}

// knownItem is an item that is in a window.
type knownItem struct {
	version uint32
	changed bool // left out: its coupon was another then
}

// known gives those of the items that are in a window, by their events.
func (c *collection) known(ctx context.Context, items []coupon.NoticeItem) (map[string]knownItem, error) {
	known := make(map[string]knownItem)
	for part := range slices.Chunk(items, inList) {
		args := make([]any, len(part))
		for i := range part {
			args[i] = []byte(part[i].EventID)
		}
		err := c.s.query(ctx, c.tx, stmtItemsKnown.in(len(part)), func(r *sql.Rows) error {
			var id []byte
			var k knownItem
			err := r.Scan(&id, &k.version, &k.changed)
			known[string(id)] = k
			return err
		}, args...)
		if err != nil {
			return nil, err
		}
	}
	return known, nil
}

// growth is what items add to a window.
type growth struct {
	key                   windowKey
	window                *window
	items                 int
	closeAt, notify, ends time.Time // the least of those to be told; zero: none
}

func (g *growth) add(it *coupon.NoticeItem) {
	g.items++
	if it.Dropped != "" {
		return
	}
	g.closeAt, g.notify, g.ends = least(g.closeAt, it.CloseAt), least(g.notify, it.NotifyAt), least(g.ends, it.ExpiresAt)
}

// least is the earlier one; zero is none.
func least(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// fill adds items to the locked windows as far as there is room, and gives what was left over by full ones.
func (c *collection) fill(ctx context.Context, items []coupon.NoticeItem) (rest []coupon.NoticeItem, err error) {
	var rows []any
	var grown []*growth // in the order of the items
	by := make(map[*window]*growth, len(c.windows))
	var sealed []any
	for i := range items {
		it := &items[i]
		key := keyOf(it)
		w, ok := c.windows[key]
		if !ok || c.full(key, w) { // full in this round, or found full: the limit was lowered
			if ok {
				sealed = append(sealed, w.id)
				delete(c.windows, key)
			}
			rest = append(rest, *it)
			continue
		}
		told := it.Dropped == ""
		if told && key.kind != coupon.NoticeExpired && w.items >= closeItems && w.told {
			it.Dropped, told = coupon.ReasonFull, false
		}
		w.told = w.told || told
		rows = append(rows, w.id, []byte(it.EventID), it.CouponID, it.TemplateID, it.Version, it.ExpiresAt, it.Value, it.Currency, it.Dropped)
		g := by[w]
		if g == nil {
			g = &growth{key: key, window: w}
			by[w] = g
			grown = append(grown, g)
		}
		g.add(it)
		if w.items++; c.full(key, w) {
			sealed = append(sealed, w.id)
			delete(c.windows, key)
		}
	}
	if err := c.s.insertAll(ctx, c.tx, stmtItemInsert, rows, 9); err != nil {
		return nil, err
	}
	if err := c.grow(ctx, grown); err != nil {
		return nil, err
	}
	return rest, c.s.updateExactly(ctx, c.tx, stmtWindowSeal, nil, sealed)
}

// full reports whether the window takes no more. A day's reminders are one notice, however many.
func (c *collection) full(key windowKey, w *window) bool {
	return key.kind == coupon.NoticeExpired && w.items >= c.rules.MaxItems
}

// quiet is how long a window waits for more at the least.
func (c *collection) quiet(kind coupon.NoticeKind) time.Duration {
	if kind == coupon.NoticeExpired {
		return min(c.rules.Quiet, c.rules.MaxAge)
	}
	return c.rules.Quiet
}

// moves reports whether the window's instants become earlier.
func (g *growth) moves() bool {
	w := g.window
	earlier := func(at, was time.Time) bool { return !at.IsZero() && (was.IsZero() || at.Before(was)) }
	return g.key.kind != coupon.NoticeExpired && (!w.late && earlier(g.closeAt, w.due) || earlier(g.notify, w.notify) || earlier(g.ends, w.ends))
}

const moveColumns = 10

func (g *growth) moveArgs() []any {
	w, due := g.window, coupon.Never
	if !w.late && !g.closeAt.IsZero() {
		due = g.closeAt
	}
	return []any{
		w.id, []byte(g.key.user), string(g.key.kind), []byte(g.key.slot), w.offset, w.late, g.items, due,
		instantOrNull(g.notify), instantOrNull(g.ends),
	}
}

// grow adds to the counts, and moves the instants of reminders to the least. Windows that stay where they are and grow by the
// same number share a statement.
func (c *collection) grow(ctx context.Context, grown []*growth) error {
	by := make(map[int][]any)
	var moved []any
	for _, g := range grown {
		if g.moves() {
			moved = append(moved, g.moveArgs()...)
		} else {
			by[g.items] = append(by[g.items], g.window.id)
		}
	}
	for n, ids := range by {
		if err := c.s.updateExactly(ctx, c.tx, stmtWindowGrow, []any{n}, ids); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(moved, insertRows*moveColumns) {
		rows := len(part) / moveColumns
		quiet := c.rules.Quiet.Microseconds()
		n, err := c.s.exec(ctx, c.tx, stmtWindowMove.rows(rows), append(slices.Clone(part), quiet, quiet)...)
		if err != nil {
			return err
		}
		if n != 2*int64(rows) { // two for each that was there and changed
			return fmt.Errorf("%s: %d rows instead of %d: %w", stmtWindowMove.Name, n, 2*rows, coupon.ErrContention)
		}
	}
	return nil
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

// insertAll writes rows of so many arguments each.
func (s *Store) insertAll(ctx context.Context, tx querier, st Statement, args []any, columns int) error {
	for part := range slices.Chunk(args, insertRows*columns) {
		if _, err := s.exec(ctx, tx, st.rows(len(part)/columns), part...); err != nil {
			return err
		}
	}
	return nil
}

// keysOf gives the windows of items that are in their order, each once.
func keysOf(items []coupon.NoticeItem) []windowKey {
	keys := make([]windowKey, 0, len(items))
	for i := range items {
		if k := keyOf(&items[i]); len(keys) == 0 || keys[len(keys)-1] != k {
			keys = append(keys, k)
		}
	}
	return keys
}
