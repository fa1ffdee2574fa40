package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/coupon"
)

//nolint:gochecknoglobals // statements are constants
var (
	stmtNoticeSettle = define("notice.settle", `UPDATE notice SET state = ?, reason = ?, ref = ?, try_at = '9999-12-31', settled_at = UTC_TIMESTAMP(3),
		counted_on = IF(?, counted_on, NULL) WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeAgain = define("notice.again", `UPDATE notice SET state = 'pending', reason = ?, try_at = GREATEST(CAST(? AS DATETIME(3)), UTC_TIMESTAMP(3)),
		counted_on = NULL WHERE channel = ? AND window_id IN (?)`)
	stmtNoticeChain = define("notice.chain", `SELECT window_id, channel, state FROM notice FORCE INDEX (PRIMARY) WHERE window_id IN (?)`)
	stmtNoticeNext  = define("notice.next", `INSERT INTO notice
		(window_id, channel, user_id, kind, slot, items, state, reason, next_channels, attempts, try_at, not_after, created_at, settled_at)
		VALUES (?,?,?,?,?,?,'pending','',?,0,UTC_TIMESTAMP(3),?,UTC_TIMESTAMP(3),NULL)`)
)

const (
	maxNoticeReason = 64  // characters
	maxNoticeRef    = 128 // bytes
)

// settlement is what rows of one update have in common.
type settlement struct {
	state       coupon.NoticeState
	reason, ref string
	tryAt       time.Time
}

// SettleNotices records what became of tries. Those that are not of the notice's present attempt, or settled already, are left
// out. A notice that has failed for good, or is suppressed for a reason of the channel (coupon.HandsOn), hands on to the next
// channel of its chain; what was not sent is taken off the user's count.
func (s *Store) SettleNotices(ctx context.Context, channel coupon.Channel, rs []coupon.NoticeResult) (settled, fallbacks int, err error) {
	if len(rs) == 0 {
		return 0, 0, nil
	}
	for i := range rs {
		switch rs[i].State {
		case coupon.NoticeSent, coupon.NoticeFailed, coupon.NoticeUnknown, coupon.NoticeSuppressed, coupon.NoticePending:
		default:
			return 0, 0, fmt.Errorf("settle notices: no result of a try: %q", rs[i].State)
		}
	}
	err = s.tx(ctx, "settle notices", func(ctx context.Context, tx *txn) error {
		var err error
		settled, fallbacks, err = s.settleNotices(ctx, tx, channel, rs)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	return settled, fallbacks, nil
}

func (s *Store) settleNotices(ctx context.Context, tx *txn, channel coupon.Channel, rs []coupon.NoticeResult) (settled, fallbacks int, err error) {
	windows := make([]uint64, len(rs))
	for i := range rs {
		windows[i] = rs[i].WindowID
	}
	held, err := s.held(ctx, tx, channel, windows)
	if err != nil {
		return 0, 0, err
	}
	by := make(map[settlement][]any)
	var order []settlement
	var handOn []*heldNotice
	for i := range rs {
		r := &rs[i]
		h := held[r.WindowID]
		if h == nil || h.Attempt != r.Attempt || h.state != coupon.NoticePending && h.state != coupon.NoticeSending {
			continue
		}
		delete(held, r.WindowID)
		settled++
		key := settlement{state: r.State, reason: clip(r.Reason, maxNoticeReason), ref: clip(r.Ref, maxNoticeRef)}
		if r.State == coupon.NoticePending {
			key.tryAt = r.TryAt.UTC()
		}
		if by[key] == nil {
			order = append(order, key)
		}
		by[key] = append(by[key], r.WindowID)
		if r.State == coupon.NoticeFailed || r.State == coupon.NoticeSuppressed && coupon.HandsOn(r.Reason) {
			handOn = append(handOn, h)
		}
		if r.State != coupon.NoticeSent && r.State != coupon.NoticeUnknown {
			if err := s.giveBack(ctx, tx, h); err != nil {
				return 0, 0, err
			}
		}
	}
	for _, key := range order {
		st, args := stmtNoticeAgain, []any{key.reason, latest(key.tryAt), string(channel)}
		if key.state != coupon.NoticePending {
			keep := key.state == coupon.NoticeSent || key.state == coupon.NoticeUnknown
			st, args = stmtNoticeSettle, []any{string(key.state), key.reason, []byte(key.ref), keep, string(channel)}
		}
		if err := s.updateExactly(ctx, tx, st, args, by[key]); err != nil {
			return 0, 0, err
		}
	}
	fallbacks, err = s.fallBack(ctx, tx, handOn)
	return settled, fallbacks, err
}

// latest turns no instant into one long ago, which a column can be compared with.
func latest(at time.Time) time.Time {
	if at.IsZero() {
		return time.Unix(0, 0).Add(48 * time.Hour).UTC()
	}
	return at
}

// clip cuts a text to so many bytes, which are as many characters at least, between characters.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// fallBack lets the next channel of each chain tell what this one could not. A channel that tells of the window anyway, or
// has told, ends the chain; one that has failed or is suppressed as well is passed over.
func (s *Store) fallBack(ctx context.Context, tx *txn, handOn []*heldNotice) (int, error) {
	var windows []any
	for _, h := range handOn {
		if h.Next != "" {
			windows = append(windows, h.WindowID)
		}
	}
	if len(windows) == 0 {
		return 0, nil
	}
	type place struct {
		window  uint64
		channel coupon.Channel
	}
	there := make(map[place]coupon.NoticeState)
	if err := s.eachPart(ctx, tx, stmtNoticeChain, windows, func(r *sql.Rows) error {
		var p place
		var state coupon.NoticeState
		err := r.Scan(&p.window, &p.channel, &state)
		there[p] = state
		return err
	}); err != nil {
		return 0, err
	}
	var rows []any
	n := 0
	for _, h := range handOn {
		rest := h.Next
		for rest != "" {
			var next string
			next, rest, _ = strings.Cut(rest, ",")
			state, ok := there[place{h.WindowID, coupon.Channel(next)}]
			if ok && (state == coupon.NoticeFailed || state == coupon.NoticeSuppressed) {
				continue
			}
			if !ok {
				n++
				rows = append(rows, h.WindowID, next, []byte(h.UserID), string(h.Kind), []byte(h.Slot), h.Items, rest, h.NotAfter)
			}
			break
		}
	}
	err := s.insertAll(ctx, tx, stmtNoticeNext, rows, 8)
	if errors.Is(err, coupon.ErrConflict) { // another channel of the window failed in this very moment
		return 0, fmt.Errorf("%w: %w", coupon.ErrContention, err)
	}
	return n, err
}

// eachPart runs a statement with a list in parts that an index serves.
func (s *Store) eachPart(ctx context.Context, q querier, st Statement, ids []any, scan func(*sql.Rows) error) error {
	for len(ids) > 0 {
		n := min(len(ids), inList)
		if err := s.query(ctx, q, st.in(n), scan, ids[:n]...); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}
