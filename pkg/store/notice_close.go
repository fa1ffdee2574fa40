package store

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtWindowNext = define("notice.window_next", `SELECT UTC_TIMESTAMP(3), (SELECT due_at FROM notice_window
		WHERE kind = ? ORDER BY due_at LIMIT 1)`)
	stmtWindowClaim = define("notice.window_claim", `SELECT id, user_id, slot, remind_at, late, items, open_mark IS NULL, opened_at, last_item_at,
		notify_at, UTC_TIMESTAMP(3) FROM notice_window FORCE INDEX (notice_window_due)
		WHERE kind = ? AND due_at <= UTC_TIMESTAMP(3) ORDER BY due_at LIMIT ? FOR UPDATE SKIP LOCKED`)
	stmtWindowWait = define("notice.window_wait", `UPDATE notice_window SET due_at = GREATEST(CAST(? AS DATETIME(3)),
		LEAST(last_item_at + INTERVAL ? MICROSECOND, opened_at + INTERVAL ? MICROSECOND)) WHERE id IN (?)`)
	stmtWindowClose = define("notice.window_close", `UPDATE notice_window SET open_mark = NULL, due_at = '9999-12-31', closed_at = UTC_TIMESTAMP(3),
		closed_by = ? WHERE id IN (?) AND closed_at IS NULL`)
	// Nothing was told: the slot is not gone.
	stmtWindowEmpty  = define("notice.window_empty", `UPDATE notice_window SET notify_at = NULL, ends_at = NULL WHERE id IN (?)`)
	stmtNoticeInsert = define("notice.insert", `INSERT INTO notice
		(window_id, channel, user_id, kind, slot, items, state, reason, next_channels, attempts, try_at, not_after, created_at, settled_at)
		VALUES (?,?,?,?,?,?,?,?,?,?,?,?,UTC_TIMESTAMP(3),?)`)
)

const closeItems = 20_000 // members of one closing transaction at most, so that it stays short; one window may be more

// claimed is a due window that this transaction has locked.
type claimed struct {
	id     uint64
	user   string
	slot   string
	offset string
	late   bool
	items  int
	sealed bool // full: no item can join
	by     string
	notify time.Time
}

// CloseNotices closes windows that are due: what has joined by now is their members, those whose coupon's state has
// changed since drop out, and what Decide says of each is recorded before anyone sends it. A window of which no member stands is
// decided, too, and what is recorded of it is suppressed. Several pods share the windows without waiting for each other.
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
		closed, err := s.fixMembers(ctx, tx, p.Kind, due)
		if err != nil {
			return err
		}
		if err := s.closeWindows(ctx, tx, due); err != nil {
			return err
		}
		return s.decide(ctx, tx, p, closed, &c)
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
		var user, slot []byte
		var opened, last time.Time
		var notify sql.Null[time.Time]
		if err := r.Scan(&w.id, &user, &slot, &w.offset, &w.late, &w.items, &w.sealed, &opened, &last, &notify, &c.Now); err != nil {
			return err
		}
		seen++
		w.user, w.slot, w.notify, w.by = string(user), string(slot), notify.V, coupon.ClosedBySize
		switch {
		case p.Kind != coupon.NoticeExpired && w.late:
			w.by = coupon.ClosedByQuiet
		case p.Kind != coupon.NoticeExpired:
			w.by = coupon.ClosedByTime
		case !w.sealed && w.items < p.Rules.MaxItems:
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

func (s *Store) closeWindows(ctx context.Context, tx querier, due []claimed) error {
	by := make(map[string][]any, 4)
	for i := range due {
		by[due[i].by] = append(by[due[i].by], due[i].id)
	}
	for _, reason := range []string{coupon.ClosedByQuiet, coupon.ClosedByAge, coupon.ClosedBySize, coupon.ClosedByTime} {
		if err := s.updateExactly(ctx, tx, stmtWindowClose, []any{reason}, by[reason]); err != nil {
			return err
		}
	}
	return nil
}

// decide asks what becomes of each window and records it: notices, and users at risk as events.
func (s *Store) decide(ctx context.Context, tx *txn, p coupon.ClosePlan, closed []*coupon.Closed, c *coupon.Closing) error {
	users := make([]string, len(closed))
	for i, w := range closed {
		users[i] = w.UserID
	}
	profiles, err := s.profilesIn(ctx, tx, users)
	if err != nil {
		return err
	}
	rows := make([]any, 0, len(closed)*2*noticeValues)
	var events []outboxRow
	var empty []any
	for _, w := range closed {
		w.Profile = profiles[w.UserID]
		w.Profile.UserID = w.UserID
		d := p.Decide(c.Now, w)
		if w.Items == 0 {
			empty = append(empty, w.WindowID)
			d = nothingLeft(w, d)
		}
		seen := make(map[coupon.Channel]bool, len(d.Notices))
		for i := range d.Notices {
			if n := &d.Notices[i]; !seen[n.Channel] {
				seen[n.Channel] = true
				rows = append(rows, plan(p, c, w, n)...)
			}
		}
		if d.AtRisk != nil {
			key, id, body := s.codec.AtRisk(*d.AtRisk)
			c.AtRisk++
			events = append(events, outboxRow{lane: LaneEvent, part: coupon.Partition(w.WindowID), msgID: id, key: key, class: ' ', body: body})
		}
	}
	if err := s.insertAll(ctx, tx, stmtNoticeInsert, rows, noticeValues); err != nil {
		return err
	}
	if p.Kind != coupon.NoticeExpired {
		if err := s.updateExactly(ctx, tx, stmtWindowEmpty, nil, empty); err != nil {
			return err
		}
	}
	return s.writeOutbox(ctx, tx, events)
}

// nothingLeft makes of what is decided of a window without members that it is recorded, and nothing sent.
func nothingLeft(w *coupon.Closed, d coupon.Decided) coupon.Decided {
	if len(d.Notices) == 0 {
		d.Notices = []coupon.PlannedNotice{{Channel: coupon.ChannelInbox}}
	}
	for i := range d.Notices {
		if n := &d.Notices[i]; n.State != coupon.NoticeSuppressed {
			d.Notices[i] = coupon.PlannedNotice{Channel: n.Channel, State: coupon.NoticeSuppressed, Reason: w.Reason, NotAfter: coupon.Never}
		}
	}
	d.AtRisk = nil
	return d
}

const noticeValues = 13

// plan gives the row of a planned notice and counts it. What may go at once is leased to this pod, if there is to be a lease.
func plan(p coupon.ClosePlan, c *coupon.Closing, w *coupon.Closed, n *coupon.PlannedNotice) []any {
	next := make([]string, len(n.Next))
	for i, ch := range n.Next {
		next[i] = string(ch)
	}
	row := coupon.Notice{
		WindowID: w.WindowID, Channel: n.Channel, UserID: w.UserID, Kind: w.Kind, Slot: w.Slot, Items: w.Items, NotAfter: n.NotAfter,
		Next: strings.Join(next, ","),
	}
	if row.NotAfter.IsZero() {
		row.NotAfter = coupon.Never
	}
	state, tryAt, settled := coupon.NoticePending, n.SendAt, any(nil)
	switch {
	case n.State == coupon.NoticeSuppressed:
		state, tryAt, settled = coupon.NoticeSuppressed, coupon.Never, c.Now
		c.Suppressed[n.Reason]++
	case !n.SendAt.After(c.Now):
		tryAt = c.Now.Add(p.Lease)
		if p.Lease > 0 {
			row.Attempt = 1
		}
		c.Pending = append(c.Pending, row)
	}
	return []any{
		row.WindowID, string(row.Channel), []byte(row.UserID), string(row.Kind), []byte(row.Slot), row.Items, string(state), n.Reason,
		row.Next, row.Attempt, tryAt.UTC(), row.NotAfter.UTC(), settled,
	}
}
