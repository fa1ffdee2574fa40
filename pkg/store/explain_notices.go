package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var stmtExplainNotices = define("explain.notices", `SELECT i.event_id, i.dropped, i.added_at, w.id, w.kind, w.remind_at, w.slot, w.late, w.items, w.opened_at,
	w.due_at, w.closed_at, w.closed_by, n.channel, n.items, n.state, n.reason, n.next_channels, n.attempts, n.try_at, n.settled_at, n.ref
	FROM notice_item i FORCE INDEX (notice_item_coupon) JOIN notice_window w ON w.id = i.window_id LEFT JOIN notice n ON n.window_id = w.id
	WHERE i.coupon_id = ? ORDER BY w.id, i.event_id, n.channel LIMIT ?`)

// Told is a digest of notices that one of a coupon's events is in.
type Told struct {
	EventID  string
	Dropped  string // why the notice does not count it; empty if it does
	AddedAt  time.Time
	WindowID uint64
	Kind     coupon.NoticeKind
	Offset   string // of reminders
	Slot     string
	Late     bool // its slot's first digest had gone out
	Items    int
	OpenedAt time.Time
	DueAt    time.Time // when it is looked at next
	ClosedAt time.Time // zero: open
	ClosedBy string
	Notices  []ToldBy // none while it is open
}

// ToldBy is one channel's notice.
type ToldBy struct {
	Channel   coupon.Channel
	Items     int
	State     coupon.NoticeState
	Reason    string
	Next      string // the rest of the fallback chain
	Attempts  int
	TryAt     time.Time // when it is (next) delivered; Never once it is settled
	SettledAt time.Time // zero: not yet
	Ref       string    // the provider's id of it
}

// NoticesOfCoupon gives the digests that the coupon's events are in, the oldest first, with their notices; a thousand rows at
// most.
func (s *Store) NoticesOfCoupon(ctx context.Context, id uint64) ([]Told, error) {
	told, err := s.toldOf(ctx, s.sql, id)
	if err != nil {
		return nil, fmt.Errorf("notices of a coupon: %w", err)
	}
	return told, nil
}

func (s *Store) toldOf(ctx context.Context, q querier, id uint64) ([]Told, error) {
	var out []Told
	err := s.query(ctx, q, stmtExplainNotices, func(r *sql.Rows) error {
		var (
			t                            Told
			eventID, slot, ref           []byte
			closed, tryAt, settled       sql.NullTime
			channel, state, reason, next sql.NullString
			items, attempts              sql.NullInt64
		)
		if err := r.Scan(&eventID, &t.Dropped, &t.AddedAt, &t.WindowID, &t.Kind, &t.Offset, &slot, &t.Late, &t.Items, &t.OpenedAt,
			&t.DueAt, &closed, &t.ClosedBy, &channel, &items, &state, &reason, &next, &attempts, &tryAt, &settled, &ref); err != nil {
			return err
		}
		t.EventID, t.Slot, t.ClosedAt = string(eventID), string(slot), closed.Time
		if n := len(out); n == 0 || out[n-1].WindowID != t.WindowID || out[n-1].EventID != t.EventID {
			out = append(out, t)
		}
		if channel.Valid {
			last := &out[len(out)-1]
			last.Notices = append(last.Notices, ToldBy{
				Channel: coupon.Channel(channel.String), Items: int(items.Int64), State: coupon.NoticeState(state.String), Reason: reason.String,
				Next: next.String, Attempts: int(attempts.Int64), TryAt: tryAt.Time, SettledAt: settled.Time, Ref: string(ref),
			})
		}
		return nil
	}, id, explainRows)
	return out, err
}
