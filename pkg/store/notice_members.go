package store

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	// A member with its coupon as it is now, wherever that is kept. Coupons of what is dropped are not looked at.
	stmtMembers = define("notice.members", `SELECT i.window_id, i.event_id, i.coupon_id, i.template_id, i.version, i.expires_at, i.value, i.currency, i.dropped,
		COALESCE(c.status, a.status), COALESCE(c.version, a.version), COALESCE(c.expires_at, a.expires_at), c.lock_until, UTC_TIMESTAMP(3)
		FROM notice_item i FORCE INDEX (PRIMARY)
		LEFT JOIN coupon c ON i.dropped = '' AND c.id = i.coupon_id
		LEFT JOIN coupon_archive a ON i.dropped = '' AND c.id IS NULL AND a.id = i.coupon_id
		WHERE i.window_id IN (?) AND i.dropped <> 'full' ORDER BY i.window_id, i.event_id`)
	// Whether a reminder at the same offset was told of the coupon, or will be, by another window. One that waits counts if it is of
	// the same end, since that of another end will drop out.
	stmtMembersTold = define("notice.members_told", `SELECT i.event_id FROM notice_item i FORCE INDEX (PRIMARY)
		JOIN notice_window w ON w.id = i.window_id
		JOIN notice_item o FORCE INDEX (notice_item_coupon) ON o.coupon_id = i.coupon_id AND o.window_id <> i.window_id AND o.dropped = ''
		JOIN notice_window v ON v.id = o.window_id AND v.kind = w.kind AND v.remind_at = w.remind_at
		JOIN notice n ON n.window_id = v.id AND n.state IN ('pending','sending','sent','delivered','unknown')
		WHERE i.window_id IN (?) AND i.dropped = '' AND (o.expires_at = i.expires_at
			OR n.state <> 'pending' AND COALESCE(n.settled_at, UTC_TIMESTAMP(3)) > UTC_TIMESTAMP(3) - INTERVAL 1 DAY)`)
	stmtItemDrop = define("notice.item_drop", `UPDATE notice_item SET dropped = ? WHERE event_id IN (?)`)
)

// memberRow is an item of a window and what it meets.
type memberRow struct {
	window  uint64
	event   []byte
	version uint32
	coupon.Member
	dropped string
	now     coupon.Row // Status is 0 if there is no such coupon
	at      time.Time  // the database's clock
}

// fallen says why the member does not stand; empty if it does.
func (m *memberRow) fallen(kind coupon.NoticeKind) string {
	ok := false
	switch {
	case m.dropped != "":
		return m.dropped
	case m.now.Status == 0:
		return coupon.ReasonAbsent
	case kind == coupon.NoticeExpired:
		ok = m.now.Status == coupon.Expired && m.now.Version == m.version
	default:
		ok = m.now.ExpiresAt.Equal(m.ExpiresAt) && m.now.Seen(m.at) == coupon.Unused
	}
	if !ok {
		return coupon.ReasonChanged
	}
	return ""
}

// members reads the items of windows, by window, with their coupons.
func (s *Store) members(ctx context.Context, tx querier, windows []any) (map[uint64][]*memberRow, error) {
	out := make(map[uint64][]*memberRow, len(windows))
	for part := range slices.Chunk(windows, inList) {
		err := s.query(ctx, tx, stmtMembers.in(len(part)), func(r *sql.Rows) error {
			m := &memberRow{}
			var status, version sql.Null[uint32]
			var ends, until sql.Null[time.Time]
			err := r.Scan(&m.window, &m.event, &m.CouponID, &m.TemplateID, &m.version, &m.ExpiresAt, &m.Value, &m.Currency, &m.dropped,
				&status, &version, &ends, &until, &m.at)
			m.now = coupon.Row{Status: coupon.Status(status.V), Version: version.V, ExpiresAt: ends.V, LockUntil: until.V}
			out[m.window] = append(out[m.window], m)
			return err
		}, part...)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// fixMembers finds the members that stand when windows close, and records why the others do not.
func (s *Store) fixMembers(ctx context.Context, tx querier, kind coupon.NoticeKind, due []claimed) ([]*coupon.Closed, error) {
	ids := make([]any, len(due))
	for i := range due {
		ids[i] = due[i].id
	}
	members, err := s.members(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	told, err := s.toldElsewhere(ctx, tx, kind, ids)
	if err != nil {
		return nil, err
	}
	drops := make(map[string][]any)
	closed := make([]*coupon.Closed, len(due))
	for i := range due {
		w := &due[i]
		rows := members[w.id]
		coupons := make(map[uint64]bool, len(rows))
		standing := make([]*memberRow, 0, len(rows))
		for _, m := range rows {
			why := m.fallen(kind)
			if why == "" && (told[string(m.event)] || coupons[m.CouponID]) {
				why = coupon.ReasonRepeated
			}
			if why == "" {
				coupons[m.CouponID] = true
				standing = append(standing, m)
				continue
			}
			if m.dropped == "" {
				m.dropped = why
				drops[why] = append(drops[why], m.event)
			}
		}
		closed[i] = closedWindow(kind, w, rows, standing)
	}
	for _, why := range []string{coupon.ReasonChanged, coupon.ReasonAbsent, coupon.ReasonRepeated} {
		if err := s.updateExactly(ctx, tx, stmtItemDrop, []any{why}, drops[why]); err != nil {
			return nil, err
		}
	}
	return closed, nil
}

// toldElsewhere gives the events of reminders whose coupon another window tells of at the same offset.
func (s *Store) toldElsewhere(ctx context.Context, tx querier, kind coupon.NoticeKind, windows []any) (map[string]bool, error) {
	told := make(map[string]bool)
	if kind != coupon.NoticeExpiring {
		return told, nil
	}
	for part := range slices.Chunk(windows, inList) {
		err := s.query(ctx, tx, stmtMembersTold.in(len(part)), func(r *sql.Rows) error {
			var event []byte
			err := r.Scan(&event)
			told[string(event)] = true
			return err
		}, part...)
		if err != nil {
			return nil, err
		}
	}
	return told, nil
}

// closedWindow is what decides of a window is asked with.
func closedWindow(kind coupon.NoticeKind, w *claimed, rows, standing []*memberRow) *coupon.Closed {
	c := &coupon.Closed{
		WindowID: w.id, UserID: w.user, Kind: kind, Offset: w.offset, Slot: w.slot, Late: w.late,
		Items: len(standing), NotifyAt: w.notify,
	}
	if len(standing) == 0 {
		c.Reason = commonReason(rows)
		return c
	}
	c.Totals, c.EndsAt, c.LastEnd = sumOf(standing)
	for _, m := range standing {
		c.Of = append(c.Of, m.TemplateID)
	}
	slices.Sort(c.Of)
	c.Of = slices.Compact(c.Of)
	// The least of those that stand: the row has the least of all.
	if o, err := coupon.ParseOffset(w.offset); err == nil && !o.Local {
		c.NotifyAt = c.EndsAt.Add(-o.Before)
	}
	return c
}

// commonReason is why no member stands: what all of them say, if that is more than that coupons have changed.
func commonReason(rows []*memberRow) string {
	reason := ""
	for _, m := range rows {
		if reason != "" && m.dropped != reason {
			return coupon.ReasonEmpty
		}
		reason = m.dropped
	}
	if reason == "" || reason == coupon.ReasonChanged || reason == coupon.ReasonAbsent {
		return coupon.ReasonEmpty
	}
	return reason
}

// sumOf gives the totals by currency, in its order, and the first and the last end.
func sumOf(members []*memberRow) (totals []coupon.Amount, first, last time.Time) {
	for _, m := range members {
		first = least(first, m.ExpiresAt)
		if m.ExpiresAt.After(last) {
			last = m.ExpiresAt
		}
		i := slices.IndexFunc(totals, func(a coupon.Amount) bool { return a.Currency == m.Currency })
		if i < 0 {
			i = len(totals)
			totals = append(totals, coupon.Amount{Currency: m.Currency})
		}
		totals[i].Minor += m.Value
	}
	slices.SortFunc(totals, func(a, b coupon.Amount) int { return cmp.Compare(a.Currency, b.Currency) })
	return totals, first, last
}
